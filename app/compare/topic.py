"""Topic as one side of a comparison: committed records, read without a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from confluent_kafka import KafkaException

from kafka_ratchet.app.compare.address import Address
from kafka_ratchet.app.compare.batches import batches_between, reads_batches
from kafka_ratchet.app.compare.columns import ValueLocation
from kafka_ratchet.app.compare.record_columns import BatchRecords, ColumnsReader, Decode, Messages, Records
from kafka_ratchet.app.compare.side import RequestedValues, Rows
from kafka_ratchet.app.compare.values import Kind
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import LogTruncated, SettingsError, TopicMissing, TopicReplaced
from kafka_ratchet.producers.topics import admin_client, cleanup_policy, describe_topic
from kafka_ratchet.topic_log.clients import OffsetRange, offset_ranges, open_consumer
from kafka_ratchet.topic_log.reading import in_batches, records_between, second_read

ROWS: Final = 50_000
"""Number of records passed to the comparison at a time."""


class TopicSide:
    """Kafka topic as one side of a comparison, up to its last committed record.

    Args:
        address: address with the topic's name.
        settings: bootstrap, client options and time-outs.
        decode: decoder of values; None: JSON.

    Raises:
        SettingsError: neither options nor settings name the Kafka cluster.
        TopicMissing: there is no such topic.
        BrokerUnavailable: Kafka does not answer.
    """

    def __init__(self, address: Address, settings: Settings, decode: Decode | None) -> None:
        if settings.bootstrap is None:
            raise SettingsError(
                "bootstrap is missing: give the Kafka cluster of the topic by --bootstrap, or bootstrap in the "
                "settings file"
            )
        self.topic, self._settings, self._decode = address.place, settings, decode
        self.unread: list[str] = []
        self.present: set[int] = set()
        self._tombstones = 0
        self._stack = ExitStack()
        self._options = {"bootstrap.servers": settings.bootstrap, **settings.kafka}
        self._admin = admin_client(self._options)
        self._committed = open_consumer(self._options, "ratchet-verify")
        self._stack.callback(self._committed.close)
        self._all = open_consumer(self._options, "ratchet-verify", committed=False)
        self._stack.callback(self._all.close)
        try:
            self.id, self._count = self._shape()
            self.begins: dict[int, int] = {}
            self.gaps: dict[int, OffsetRange] = {}
            """Offsets deleted before they were read, by partition: from the intended first offset up to the first
            existing one.
            """
            self._ends: dict[int, OffsetRange] | None = None
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """Close the clients."""
        self._stack.close()

    def _shape(self) -> tuple[str, int]:
        """Return the topic's id, and its number of partitions."""
        timeout_s = self._settings.kafka_timeout_s
        found = describe_topic(self._admin, self.topic, timeout_s=timeout_s, say=lambda text: None)
        if found is None:
            raise TopicMissing(
                f"topic {self.topic!r} does not exist, or this user has no right to see it. Check the name and the "
                "user's rights"
            )
        return found.id, found.partitions

    def require_same_topic(self, id: str, when: str) -> None:
        """Check that the topic still has a given id.

        Args:
            id: id of the topic at the earlier reading.
            when: phrase for the time of the earlier reading, for the error text.

        Raises:
            TopicReplaced: the topic was deleted and created again.
        """
        now, _ = self._shape()
        if now != id:
            raise TopicReplaced(
                f"topic {self.topic!r} was deleted and created again: {when} its id was {id}, and now it is {now}. "
                "Offsets read so far belong to the former topic. Start a new comparison, with another file for "
                "--state"
            )

    def ends(self) -> dict[int, OffsetRange]:
        """Return the offsets that each partition holds now, up to the last stable offset."""
        held = offset_ranges(self._committed, self.topic, self._count, self._settings.kafka_timeout_s)
        return dict(enumerate(held))

    @property
    def is_end_fixed(self) -> bool:
        """Return True once the end offsets of the reading are fixed."""
        return self._ends is not None

    def fix_end(self) -> None:
        """Fix the offsets at which reading ends, and note offsets held back by open transactions.

        This includes partitions added since this object was made.
        """
        _, count = self._shape()
        if count > self._count:
            self._count = count
            for reader in (self._committed, self._all):  # they know the partitions of their first request
                with suppress(KafkaException):  # the next request names the fault
                    reader.list_topics(self.topic, timeout=self._settings.kafka_timeout_s)
        high = offset_ranges(self._all, self.topic, self._count, self._settings.kafka_timeout_s)
        self._ends = self.ends()
        for number, span in self._ends.items():
            waiting = high[number].end - span.end
            if waiting > 0:
                self.unread.append(
                    f"{self.topic}, partition {number}: {waiting:,} offsets, from {span.end:,} on, wait behind an open "
                    "transaction"
                )

    def read_from(self, begins: Mapping[int, int]) -> None:
        """Begin reading at the offsets in `begins` instead of the first ones.

        If the offsets in `begins` are deleted, the gap up to the first existing offset is added to `gaps`.

        Raises:
            LogTruncated: a partition ends before its offset in `begins`.
        """
        assert self._ends is not None  # noqa: S101 - the caller has fixed the end
        # A partition added since the last run is read from offset 0; an empty mapping is a first run.
        self.begins = {**dict.fromkeys(self._ends, 0), **begins} if begins else {}
        for number, begin in self.begins.items():
            span = self._ends.get(number, OffsetRange(0, 0))
            if span.end < begin:
                raise LogTruncated(
                    f"topic {self.topic!r}, partition {number} ends at offset {span.end:,}, but was read up to "
                    f"offset {begin:,} before: its log has lost its end. Start a new comparison, with another file "
                    "for --state"
                )
            if span.first > begin:
                self.gaps[number] = OffsetRange(begin, span.first)

    def next_offsets(self) -> dict[int, int]:
        """Return the offset at which reading ends, by partition."""
        return {number: span.end for number, span in (self._ends or {}).items()}

    def notes(self) -> list[str]:
        """Return sentences about compaction and tombstones. Call it after reading."""
        found = []
        policy = cleanup_policy(self._admin, self.topic, timeout_s=self._settings.kafka_timeout_s)
        if policy is not None and "compact" in policy:
            found.append(
                f"topic {self.topic!r} is compacted: Kafka has removed each record, doubled or not, that has a later "
                "record with its key"
            )
        if self._tombstones:
            found.append(
                f"topic {self.topic!r}: {self._tombstones:,} records read now have no value (tombstones); they are "
                "compared as records, and delete nothing"
            )
        return found

    def kinds(self, places: Sequence[ValueLocation]) -> list[Kind]:
        """Return the type `any` for each place, because a topic declares no types."""
        return ["any" for _ in places]

    def where(self, part: int, position: int) -> dict[str, Any]:
        """Return topic, partition and offset."""
        return {"topic": self.topic, "partition": part, "offset": position}

    def rows(self, wanted: RequestedValues) -> Iterator[Rows]:
        """Read the records of all partitions up to the fixed end."""
        from kafka_ratchet.app.compare.column_texts import rows_of

        assert self._ends is not None  # noqa: S101 - the caller has fixed the end
        spans = {
            number: OffsetRange(max(span.first, self.begins.get(number, span.first)), span.end)
            for number, span in self._ends.items()
        }
        reader = ColumnsReader(wanted.places, self._decode)
        self.present = reader.present
        has_fields = any(place.kind == "field" for place, _ in wanted.compared)
        for records in self._records(spans):
            self._tombstones += records.tombstones()
            rows = rows_of(reader.read(records), wanted)
            rows.unreadable = reader.unreadable if has_fields else []
            rows.parts, rows.positions, rows.times = records.partitions(), records.offsets(), records.times()
            yield rows

    def _records(self, spans: Mapping[int, OffsetRange]) -> Iterator[Records]:
        """Read batches with the worker's client if `reads_batches` allows it, else records with librdkafka."""
        if reads_batches(self._settings, spans):
            for batch in batches_between(self._settings, self.topic, self.id, spans):
                yield BatchRecords(batch)
            return
        messages = records_between(
            self._committed,
            self.topic,
            spans,
            timeout_s=self._settings.kafka_timeout_s,
            second=second_read(self._options, self._settings.max_batch_mb << 20),
        )
        for some in in_batches(messages, ROWS):
            yield Messages(some)
