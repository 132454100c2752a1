"""Claims of topics: one writer for each output and each changelog, on one Kafka.

Two applications that write to one output double every event, and neither can notice it. A renamed application reads
its inputs from the beginning and writes everything to its output a second time. So each application claims its output
topics, in a topic shared by all, before it writes anything:

    ratchet-owners    compacted, one partition; key: a topic's name; value: JSON, see `WriterClaim`

All applications write claims with the same transactional id (`CLAIMING`). If two claim at the same time, Kafka fences
one of them, which then reads the other's claims.
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from kafka_ratchet.app.names import OWNERS_TOPIC
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import BrokerUnavailable, TopicError, TopicTaken
from kafka_ratchet.producers import admin_client, explained
from kafka_ratchet.producers.client import SILENT
from kafka_ratchet.topic_log.clients import consumer, offset_ranges, partition_counts
from kafka_ratchet.topic_log.reading import records

log = structlog.get_logger(__name__)

CLAIMING: Final = f"{OWNERS_TOPIC}/claims"
TRANSACTION_S: Final = 30.0
OUTPUT, CHANGELOG, DUPLICATES = "output", "changelog", "duplicates"
FORMAT: Final = 1
"""Newest format of a claim that this version reads. A claim in format 1 omits the field."""


class WriterClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """Claim of a topic by its only writer.

    app, stream: names of the writer; part: "output", "changelog" or "duplicates"; id: id of the topic, as Kafka's tools
    print it; at: time of the claim, ISO 8601, UTC. by, reason: operator and reason of a decision, if any; format: see
    `FORMAT`.

    partitions: partition count of a changelog when it was claimed; 0: unknown, as in claims of 0.1.0

    tables: names of the tables that the stream has had in the changelog; empty in claims of 0.1.0
    """

    app: str
    stream: str
    part: str
    id: str
    at: str = ""
    by: str = ""
    reason: str = ""
    format: int = 1
    partitions: int = 0
    tables: tuple[str, ...] = ()

    def is_of(self, app: str, stream: str) -> bool:
        """Return True if the claim belongs to this stream of this application."""
        return (self.app, self.stream) == (app, stream)

    def __str__(self) -> str:
        return f"application {self.app!r}, stream {self.stream!r}, as its {self.part}"


class _Format(msgspec.Struct):
    format: int = 1


# Made here and not by the first who reads, perhaps in a thread: see `kafka_ratchet.transport.owner`.
_FORMAT_OF: Final = msgspec.json.Decoder(_Format)
_CLAIM_OF: Final = msgspec.json.Decoder(WriterClaim)


Claims = Mapping[str, WriterClaim]


def now() -> str:
    """Return the time now: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def this_user() -> str:
    """Return user@machine, for the record of an operator's decision."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for this number in the system's list of users
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def read_claims(settings: Settings, bootstrap: str) -> dict[str, WriterClaim]:
    """Read all claims from Kafka, and return them by topic.

    Raises:
        BrokerUnavailable: Kafka did not answer.
        TransportError: Kafka refuses the read.
        TopicError: this version cannot decode one of the claims.
    """
    options = {"bootstrap.servers": bootstrap, **settings.kafka}
    if not partition_counts(admin_client(options), [OWNERS_TOPIC]):
        return {}
    claims: dict[str, WriterClaim] = {}
    timeout_s = settings.kafka_timeout_s
    with consumer(options, "ratchet-owners-reader") as client:
        (held,) = offset_ranges(client, OWNERS_TOPIC, 1, timeout_s)
        for message in records(client, OWNERS_TOPIC, begin=held.first, timeout_s=timeout_s, end=held.end):
            take_claim(claims, message.key(), message.value(), message.offset() or 0)
    return claims


def take_claim(claims: dict[str, WriterClaim], key: bytes | None, value: bytes | None, offset: int) -> None:
    """Apply one record of the claims topic to `claims`.

    Raises:
        TopicError: the record is not a claim that this version can read.
    """
    try:
        topic = (key or b"").decode()
        if value is None:
            claims.pop(topic, None)
        else:
            known = _FORMAT_OF.decode(value).format
            if known > FORMAT:
                raise TopicError(
                    f"{OWNERS_TOPIC}, offset {offset}: a newer Ratchet wrote this claim in format {known}, and this "
                    f"version reads formats up to {FORMAT}. Run the newer version"
                )
            claims[topic] = _CLAIM_OF.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # Not ignored: an unreadable claim may be another application's.
        raise TopicError(
            f"{OWNERS_TOPIC}, offset {offset}: not a claim that this Ratchet can read ({error}). Check whether another "
            "program, or a newer Ratchet, writes to this topic"
        ) from None


def claim(settings: Settings, bootstrap: str, decide: Callable[[Claims], Claims]) -> dict[str, WriterClaim]:
    """Write the claims that `decide` returns, if any.

    Args:
        settings: settings of the claiming application.
        bootstrap: host:port[,host:port]
        decide: function that receives all claims by topic, and returns the claims to write. It raises an error to
            refuse, and may be called more than once.

    Returns:
        all claims by topic, with the new ones

    Raises:
        BrokerUnavailable: Kafka did not answer.
        TopicTaken: raised by `decide`.
    """
    deadline = time.monotonic() + settings.kafka_timeout_s
    claims = read_claims(settings, bootstrap)
    if not decide(claims):
        return claims
    while True:
        producer = Producer(
            {
                **settings.kafka,
                "bootstrap.servers": bootstrap,
                "transactional.id": CLAIMING,
                "transaction.timeout.ms": int(TRANSACTION_S * 1000),
                "linger.ms": 0,
            },
            logger=SILENT,
        )
        try:
            producer.init_transactions(TRANSACTION_S)
            # another application cannot claim from here on without fencing this one
            claims = read_claims(settings, bootstrap)
            made = decide(claims)
            if not made:
                return claims
            producer.begin_transaction()
            for topic, one in made.items():
                producer.produce(OWNERS_TOPIC, msgspec.json.encode(one), topic.encode(), 0)
            producer.commit_transaction(TRANSACTION_S)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED or time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"{OWNERS_TOPIC}: the claims of stream topics cannot be written: {explained(error)}. Nothing was "
                    "claimed; try again"
                ) from failure
            time.sleep(0.2)  # fenced by another that claims, or Kafka is away for a moment
            continue
        for topic, one in made.items():
            log.info("topic claimed", topic=topic, app=one.app, stream=one.stream, part=one.part)
        return {**claims, **made}


def taken(topic: str, by: WriterClaim, app: str, stream: str) -> TopicTaken:
    """Return the error for a topic that another application or stream has claimed."""
    return TopicTaken(
        f"{topic}: is written by {by}; application {app!r}, stream {stream!r} would be a second writer, and events "
        "would count twice. If the application or the stream was renamed, put the old name back. To take the topic "
        f"over for good, stop the other one and run `ratchet resume --stream {stream} --adopt --from OFFSET --reason "
        "TEXT`, which shows the plan; --execute executes it. OFFSET is the input offset at which the other one "
        f"stopped: `kafka-consumer-groups.sh --describe --group {by.app}` prints it. Records before OFFSET are never "
        "forwarded; `latest` skips all that the other one has not read. For several partitions see "
        "docs/reference/halted.md"
    )
