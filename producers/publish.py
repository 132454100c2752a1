"""Publishing of a source to a topic, from the position of the producer's name to the source's end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka_ratchet.errors import RatchetError, RecordTooLarge, SourceError
from kafka_ratchet.producers.file_set import FileSet
from kafka_ratchet.producers.files import FileLines
from kafka_ratchet.producers.formats import FIELD_MARK
from kafka_ratchet.producers.headers import NOTHING_YET
from kafka_ratchet.producers.named import NamedProducer
from kafka_ratchet.producers.producer import Producer
from kafka_ratchet.producers.source import Source

MIN_PAUSE_S = 0.005
"""Minimum seconds that a throttled publisher sleeps: shorter sleeps cost more than they wait."""


@dataclass(frozen=True, slots=True)
class Published:
    """Result of one publishing run."""

    published: int
    """Number of records sent in this run."""
    resumed_after: int
    """Highest sequence of the name before this run; -1: none."""
    last_sequence: int
    """Highest sequence after this run such that all records up to it are persisted."""


def publish(
    source: Source,
    producer: Producer,
    *,
    from_start: bool = False,
    records_per_s: float | None = None,
    on_record: Callable[[int], None] | None = None,
) -> Published:
    """Publish the records that follow sequence `producer.resume_from()`, and wait for all acknowledgements.

    Args:
        source: source of the records, preferably the one that the producer was created with.
        producer: producer to send with.
        from_start: True publishes from the beginning; the producer must have the same setting.
        records_per_s: maximum records per second; None: no limit.
        on_record: function called with the sequence of each record as soon as it is in flight.

    Raises:
        SourceError: a record cannot be read. All records before it are published and acknowledged; after the source is
            corrected, publishing continues with that record. Or the records' own sequences end below the progress.
        RecordTooLarge: a record is larger than the client or the topic allows.
        TransportError: Kafka has refused a record for good.
    """
    resumed_after = producer.resumed_after
    first = 0 if from_start else resumed_after + 1
    # Such a source is read from its beginning anyway; its last sequence tells if the progress belongs to it.
    has_own_sequences = (producer.resumed_mark or "").startswith(FIELD_MARK)
    published, last = 0, NOTHING_YET
    began = time.monotonic()
    try:
        for record in source.read(0 if has_own_sequences else first):
            last = record.sequence
            if last < first:
                continue
            producer.send(record.value, record.key, sequence=record.sequence)
            published += 1
            if on_record:
                on_record(record.sequence)
            if records_per_s:
                ahead_s = published / records_per_s - (time.monotonic() - began)
                if ahead_s >= MIN_PAUSE_S:
                    time.sleep(ahead_s)
        if NOTHING_YET < last < first - 1:
            raise _ends_early(source, producer, last)
        producer.flush()
    except SourceError:
        producer.flush()
        raise
    except RecordTooLarge as error:
        raise too_large(source, producer, error) from error
    return Published(published, NOTHING_YET if from_start else resumed_after, producer.resume_from())


def too_large(source: Source, producer: NamedProducer[Any], error: RecordTooLarge) -> RecordTooLarge:
    """Return the error for a too large record with its place in the source, and flush the records before it.

    The record is the newest one of the source, if the producer itself refuses it. A refusal by Kafka comes later, and
    ends the producer.
    """
    try:
        producer.flush()
    except RatchetError:
        return RecordTooLarge(f"{_label(source)}: a record is too large: {error}")
    origin = source.origin() if isinstance(source, FileLines | FileSet) else _label(source)
    return RecordTooLarge(f"{origin}: the record is too large: {error}")


def _label(source: Source) -> str:
    return str(getattr(source, "label", "the source"))


def _ends_early(source: Source, producer: Producer, last: int) -> SourceError:
    return SourceError(
        f"{_label(source)}: ends at sequence {last}, but producer {producer.name!r} has published to "
        f"{producer.topic!r} up to sequence {producer.resumed_after}, so its records up to there are not sent. If a "
        "wrong number was corrected, publish with --from-start (Producer and publish: from_start=True); publish "
        "another source under another producer name"
    )
