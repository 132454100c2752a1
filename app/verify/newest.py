"""Check of an input's newest records, before a policy switches deduplication on."""

from __future__ import annotations

from typing import Final

from kafka_ratchet.app.operations.policy_topic import read_policies
from kafka_ratchet.app.repartition import judging
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.producers import admin_client
from kafka_ratchet.rule.identity import SequenceSource
from kafka_ratchet.topic_log.clients import OffsetRange, consumer, offset_ranges, partition_counts
from kafka_ratchet.topic_log.reading import records_between, second_read

NEWEST: Final = 1_000
"""Number of newest offsets to read, over all partitions of an input."""


def refuse_without_sequence(settings: Settings, bootstrap: str, stream: str | None) -> None:
    """Refuse deduplication if half of a stream's newest records would become dead letters.

    Args:
        settings: all settings.
        bootstrap: host:port[,host:port].
        stream: name of the stream; None: all streams without a policy or setting of their own.

    Raises:
        SettingsError: at least half of the newest records of an input cannot be judged.
        BrokerUnavailable: Kafka does not answer.
    """
    stored = read_policies(settings, bootstrap).stored if stream is None else {}
    for name, chosen in judging(settings.streams).items():
        has_own = chosen.deduplicate is not None or (name in stored and stored[name].deduplicate is not None)
        if (stream is not None and name != stream) or (stream is None and has_own):
            continue
        judged, without = _judged_newest(settings, bootstrap, chosen)
        if without * 2 >= judged > 0:
            raise SettingsError(
                f"stream {name}: {without:,} of the {judged:,} newest records of {chosen.input} have no usable "
                f"identity and sequence (identity = {str(chosen.identity)!r}, sequence = {chosen.sequence!r}). With "
                "deduplication on, each of them would become a dead letter. Nothing was changed. Name the identity and "
                f"the sequence of the records in [streams.{name}]; a stream that reads the exactly-once output of "
                "another stream or of an agent needs neither: keep deduplicate = false"
            )


def _judged_newest(settings: Settings, bootstrap: str, stream: StreamSettings) -> tuple[int, int]:
    """Apply the rule to an input's newest records; return their number, and that of invalid ones."""
    options = {"bootstrap.servers": bootstrap, **settings.kafka}
    count = partition_counts(admin_client(options), [stream.input]).get(stream.input, 0)
    if not count:
        return 0, 0
    rule = Rule(stream.identity, SequenceSource.parse(stream.sequence), stream.sequence_form)
    judged = without = 0
    second = second_read(options, settings.max_batch_mb << 20)
    with consumer(options, settings.app) as client:
        held = enumerate(offset_ranges(client, stream.input, count, settings.kafka_timeout_s))
        share = -(-NEWEST // count)
        spans = {number: OffsetRange(max(first, end - share), end) for number, (first, end) in held}
        for message in records_between(client, stream.input, spans, timeout_s=settings.kafka_timeout_s, second=second):
            headers = [each for each in message.headers() or () if not isinstance(each[1], str)]
            record = RecordView(message.key(), message.value(), headers, message.timestamp()[1])
            judged += 1
            without += rule.identify(record) is None
    return judged, without
