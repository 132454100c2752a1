"""A source into a topic: from where the name had come to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from kafka_ratchet.errors import RatchetError, RecordTooLarge, SourceError
from kafka_ratchet.producers.file_set import FileSet
from kafka_ratchet.producers.files import FileLines
from kafka_ratchet.producers.headers import NOTHING_YET
from kafka_ratchet.producers.producer import Producer
from kafka_ratchet.producers.source import Source

MIN_PAUSE_S = 0.005
"""A throttled publisher sleeps when it is ahead by this much: shorter sleeps cost more than they wait."""


@dataclass(frozen=True, slots=True)
class Published:
    """Result of one publishing run."""

    published: int
    """Records of this run."""
    resumed_after: int
    """Highest sequence of the name before this run; -1: none."""
    last_sequence: int
    """Highest sequence now, with everything below it included."""


def publish(
    source: Source,
    producer: Producer,
    *,
    from_start: bool = False,
    records_per_s: float | None = None,
    on_record: Callable[[int], None] | None = None,
) -> Published:
    """Publish the source's records after `producer.resume_from()`, and wait for all acknowledgements.

    Args:
        source: source of the records; best the one the producer was made with.
        producer: to send with.
        from_start: publish from the beginning; the producer must have been made with it as well.
        records_per_s: at most so many records per second.
        on_record: called with each record's sequence when it is in flight.

    Raises:
        SourceError: a record cannot be read. Everything before it is published and acknowledged: mend the source and
            publish again to go on with that record.
        TransportError: Kafka has refused a record for good.
    """
    resumed_after = producer.resumed_after
    published = 0
    began = time.monotonic()
    try:
        for record in source.read(0 if from_start else resumed_after + 1):
            producer.send(record.value, record.key, sequence=record.sequence)
            published += 1
            if on_record:
                on_record(record.sequence)
            if records_per_s:
                ahead_s = published / records_per_s - (time.monotonic() - began)
                if ahead_s >= MIN_PAUSE_S:
                    time.sleep(ahead_s)
    except SourceError:
        producer.flush()
        raise
    except RecordTooLarge as error:
        origin = source.origin() if isinstance(source, FileLines | FileSet) else "the source"
        with suppress(RatchetError):  # it may have ended the producer
            producer.flush()
        raise RecordTooLarge(f"{origin}: the record is too large: {error}") from error
    producer.flush()
    return Published(published, NOTHING_YET if from_start else resumed_after, producer.resume_from())
