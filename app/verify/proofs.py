"""Proofs for the page: the last result of verify for each stream, recorded by `ratchet verify --record`.

Proofs are in a compacted topic of one partition, `APP-proofs`: key `["proof", STREAM]`, value JSON. Workers never read
them.
"""

from __future__ import annotations

import json
from typing import Final, Literal

import msgspec
import structlog

from kafka_ratchet.app.names import proofs_topic
from kafka_ratchet.app.operations.write_one import write_one
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.verify.report import ExitCode, Report
from kafka_ratchet.app.worker.claims import now, this_user
from kafka_ratchet.app.worker.topics import prepare_single
from kafka_ratchet.producers import admin_client
from kafka_ratchet.rule.verdicts import COUNTERS
from kafka_ratchet.topic_log.clients import consumer, offset_ranges, partition_count
from kafka_ratchet.topic_log.reading import records

log = structlog.get_logger(__name__)

FORMAT: Final = 1
FINDINGS_MOST: Final = 20
FINDING_MOST: Final = 500

Verdict = Literal["proven", "wrong", "not all proven"]
VERDICTS: Final[dict[ExitCode, Verdict]] = {
    ExitCode.PROVEN: "proven",
    ExitCode.WRONG: "wrong",
    ExitCode.NOT_ALL_PROVEN: "not all proven",
}


class Proof(msgspec.Struct, frozen=True):
    """Result of one run of verify on one stream.

    at: time of the run, ISO 8601, UTC.
    by: user@machine.
    compared_to: for each partition, the offset after the last compared record of the input, and that of the output.
    unproven: reasons why the proof is incomplete.
    findings: texts of the first findings.
    compared: compared parts: the topics, and the table or the files if the run compared them.
    format: version of this record.
    """

    stream: str
    at: str
    by: str
    verdict: Verdict
    compared_to: dict[int, tuple[int, int]]
    counts: dict[str, int]
    unproven: list[str] = []
    findings: list[str] = []
    compared: list[str] = []
    format: int = FORMAT


_PROOF_OF: Final = msgspec.json.Decoder(Proof)
"""Decoder of proofs, made when the module is imported.

It must not be made by a thread that reads proofs: see `kafka_ratchet.transport.owner`.
"""


def proof_of(report: Report) -> Proof:
    """Make a proof from a report of verify, with the present time and user."""
    parts = [part for part in (report, report.results, report.source) if part is not None]
    compared = ["topics"]
    compared += [report.results.table] if report.results is not None else []
    compared += [f"files of producer {report.source.producer}"] if report.source is not None else []
    counts: dict[str, int] = {}
    for part in parts:
        for name, count in part.counts.items():
            # An event of the files without a record is lost, as an input record without one is.
            found = "lost" if name == "missing" else name
            counts[found] = counts.get(found, 0) + count
    names = ("lost", "doubled", "reordered", "altered", "unexpected", "contradicted")
    counted = (*COUNTERS, "delivered", "dead_letters", "pending")
    return Proof(
        report.stream,
        now(),
        this_user(),
        VERDICTS[report.exit_code()],
        dict(report.compared_to),
        {
            **{name: counts.get(name, 0) for name in names},
            **{name: int(getattr(report, name)) for name in counted},
        },
        report.unproven(),
        [str(each)[:FINDING_MOST] for part in parts for each in part.findings][:FINDINGS_MOST],
        compared,
    )


def record_proof(settings: Settings, bootstrap: str, proof: Proof) -> None:
    """Write a proof to the topic of proofs, in place of the stream's last one.

    The topic is created if it is missing.

    Raises:
        TopicError: the topic cannot be created, or has an unfit configuration.
        BrokerUnavailable: Kafka did not confirm the record.
    """
    topic = proofs_topic(settings.app)
    admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
    prepare_single(admin, settings, topic, "proofs of earlier verifications")
    write_one(
        settings,
        bootstrap,
        topic,
        (proof_key(proof.stream), msgspec.json.encode(proof)),
        "the proof",
        "Run verify --record again",
    )


def proof_key(stream: str) -> bytes:
    """Return the key of a stream's record in the topic of proofs."""
    return json.dumps(["proof", stream], separators=(",", ":")).encode()


def read_proofs(settings: Settings, bootstrap: str) -> dict[str, Proof]:
    """Read the last proof of each stream from Kafka; a stream without a proof is left out.

    Records that cannot be decoded are logged and left out, and so are those in another format.

    Raises:
        BrokerUnavailable: Kafka does not answer.
        TransportError: Kafka refuses the read.
    """
    options, topic = {"bootstrap.servers": bootstrap, **settings.kafka}, proofs_topic(settings.app)
    found: dict[str, Proof] = {}
    with consumer(options, "ratchet-proofs-reader") as client:
        if not partition_count(client, topic, settings.kafka_timeout_s):
            return {}
        (held,) = offset_ranges(client, topic, 1, settings.kafka_timeout_s)
        for message in records(client, topic, 0, held.first, timeout_s=settings.kafka_timeout_s, end=held.end):
            try:
                proof = _PROOF_OF.decode(message.value() or b"")
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                log.warning(
                    "a record of the topic of proofs is not a proof; it is ignored",
                    topic=topic,
                    offset=message.offset(),
                    reason=str(error),
                )
                continue
            if message.key() == proof_key(proof.stream) and proof.format == FORMAT:
                found[proof.stream] = proof
    return found
