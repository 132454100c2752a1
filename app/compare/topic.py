"""Topic as one side of a comparison: committed records, read without a group."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kafka_ratchet.app.compare.address import Address
from kafka_ratchet.app.compare.columns import Place
from kafka_ratchet.app.compare.side import UNKNOWN_MS, Rows, Wanted
from kafka_ratchet.app.compare.values import Kind
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import LogTruncated, SettingsError, TopicMissing, TopicReplaced
from kafka_ratchet.producers.topics import admin_client, describe_topic
from kafka_ratchet.topic_log.clients import OffsetRange, offset_ranges, open_consumer
from kafka_ratchet.topic_log.reading import records_between, second_read

if TYPE_CHECKING:
    from confluent_kafka import Message

ROWS: Final = 50_000
"""Records handed over at a time."""

NO_TIMESTAMP: Final = 0
"""librdkafka's type of a missing timestamp."""

UNREADABLE: Final = object()
"""Value of a record that the format does not read."""

Decode = Callable[[bytes | None], Any]
"""From the bytes of a value to an object with the fields; `UNREADABLE` where they are none."""


class TopicSide:
    """Topic of Kafka, up to its last committed record.

    Args:
        address: with the topic's name.
        settings: bootstrap, client options and time-outs.
        decode: reader of values.

    Raises:
        SettingsError: no Kafka is named.
        TopicMissing: there is no such topic.
        BrokerUnavailable: Kafka does not answer.
    """

    def __init__(self, address: Address, settings: Settings, decode: Decode | None) -> None:
        if settings.bootstrap is None:
            raise SettingsError("name the Kafka of the topic: --bootstrap, or bootstrap in the settings file")
        self.topic, self._settings, self._decode = address.place, settings, decode
        self.unread: list[str] = []
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
            """Offsets by partition, deleted before they were read: from the beginning of reading to the first one."""
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
            raise TopicMissing(f"topic {self.topic!r} does not exist, or this user may not see it")
        return found.id, found.partitions

    def require_same_topic(self, id: str, when: str) -> None:
        """Compare the topic's id.

        Args:
            id: of the topic that was read before.
            when: time of that, for the sentence.

        Raises:
            TopicReplaced: the topic of that id is gone.
        """
        now, _ = self._shape()
        if now != id:
            raise TopicReplaced(
                f"topic {self.topic!r} was deleted and created again: {when} its id was {id}, now it is {now}. "
                "Offsets read so far are of the topic that is gone. Compare anew, with --state with another file"
            )

    def ends(self) -> dict[int, OffsetRange]:
        """Return the offsets that each partition holds now, up to the last stable offset."""
        held = offset_ranges(self._committed, self.topic, self._count, self._settings.kafka_timeout_s)
        return dict(enumerate(held))

    def fix_end(self) -> None:
        """Fix the end of reading, and note the records held back by open transactions."""
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
        """Begin reading at these offsets, not at the first ones; note the `gaps` after them.

        Raises:
            LogTruncated: a partition ends before such an offset.
        """
        assert self._ends is not None  # noqa: S101 - the caller has fixed the end
        self.begins = dict(begins)
        for number, begin in begins.items():
            span = self._ends.get(number, OffsetRange(0, 0))
            if span.end < begin:
                raise LogTruncated(
                    f"topic {self.topic!r}, partition {number} ends at offset {span.end:,}, and was read up to offset "
                    f"{begin:,}: its log has lost its end. Compare anew, with --state with another file"
                )
            if span.first > begin:
                self.gaps[number] = OffsetRange(begin, span.first)

    def next_offsets(self) -> dict[int, int]:
        """Return the fixed end of each partition."""
        return {number: span.end for number, span in (self._ends or {}).items()}

    def kinds(self, places: Sequence[Place]) -> list[Kind]:
        """Return no types: each value of a topic has its own."""
        return ["any" for _ in places]

    def where(self, part: int, position: int) -> dict[str, Any]:
        """Return topic, partition and offset."""
        return {"topic": self.topic, "partition": part, "offset": position}

    def rows(self, wanted: Wanted) -> Iterator[Rows]:
        """Read the records of all partitions up to the fixed end."""
        assert self._ends is not None  # noqa: S101 - the caller has fixed the end
        spans = {
            number: OffsetRange(max(span.first, self.begins.get(number, span.first)), span.end)
            for number, span in self._ends.items()
        }
        read, texts = _reader(wanted.places, self._decode), wanted.texts()
        rows = Rows()
        messages = records_between(
            self._committed,
            self.topic,
            spans,
            timeout_s=self._settings.kafka_timeout_s,
            second=second_read(self._options, self._settings.max_batch_mb << 20),
        )
        for message in messages:
            identity, content = texts(read(message))
            rows.identities.append(identity)
            rows.contents.append(content)
            rows.parts.append(message.partition() or 0)
            rows.positions.append(message.offset() or 0)
            kind, ms = message.timestamp()
            rows.times.append(UNKNOWN_MS if kind == NO_TIMESTAMP else ms)
            if len(rows) >= ROWS:
                yield rows
                rows = Rows()
        yield rows


def _reader(places: Sequence[Place], decode: Decode | None) -> Callable[[Message], list[Any]]:
    """Return the function from a record to the values of the places."""
    fields = [place.path for place in places if place.kind == "field"]
    values = _fields_reader(fields, decode)
    order = iter(range(len(fields)))
    slots = [(place, next(order) if place.kind == "field" else -1) for place in places]

    def read(message: Message) -> list[Any]:
        found = values(message.value()) if fields else ()
        return [found[slot] if slot >= 0 else _of_record(message, place) for place, slot in slots]

    return read


def _of_record(message: Message, place: Place) -> Any:
    if place.kind == "header":
        return next((value for name, value in reversed(message.headers() or []) if name == place.name), None)
    if place.kind == "timestamp":
        kind, ms = message.timestamp()
        return None if kind == NO_TIMESTAMP else ms
    return getattr(message, place.kind)()


def _fields_reader(paths: Sequence[tuple[str, ...]], decode: Decode | None) -> Callable[[bytes | None], Sequence[Any]]:
    """Return the function from the bytes of a value to the values at the paths, null where there is none."""
    nothing = [None] * len(paths)
    if decode is None:
        return _json_reader(paths, nothing)

    def read(value: bytes | None) -> Sequence[Any]:
        found = decode(value)
        return nothing if found is UNREADABLE else [at(found, path) for path in paths]

    return read


def _json_reader(paths: Sequence[tuple[str, ...]], nothing: Sequence[Any]) -> Callable[[bytes | None], Sequence[Any]]:
    """Return the reader of JSON objects. Other fields are skipped."""
    firsts = list(dict.fromkeys(path[0] for path in paths if path))
    slots = {first: f"f{number}" for number, first in enumerate(firsts)}
    shape = msgspec.defstruct(
        "Fields", [(slot, Any, None) for slot in slots.values()], rename={slot: name for name, slot in slots.items()}
    )
    decoder = msgspec.json.Decoder(shape, float_hook=Decimal)
    wanted = [(slots[path[0]], path[1:]) for path in paths]

    def read(value: bytes | None) -> Sequence[Any]:
        if value is None:
            return nothing
        try:
            found = decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return slow(value)
        return [at(getattr(found, slot), rest) if rest else getattr(found, slot) for slot, rest in wanted]

    def slow(value: bytes) -> Sequence[Any]:
        """Read what msgspec refuses and JSON allows, such as a lone surrogate."""
        found = from_json(value)
        return nothing if found is UNREADABLE else [at(found, path) for path in paths]

    return read


def from_json(value: bytes | None) -> Any:
    """Read JSON with the slow and patient parser; `UNREADABLE` where it is none."""
    if value is None:
        return UNREADABLE
    try:
        return json.loads(value, parse_float=Decimal)
    except (ValueError, RecursionError):
        return UNREADABLE


def at(value: Any, path: Sequence[str]) -> Any:
    """Return what stands at a path of nested objects; None where nothing does."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def unframed(value: bytes) -> bytes:
    """Return a value without the five bytes that name its schema in a registry.

    Raises:
        ValueError: they are not there.
    """
    if len(value) < 5 or value[0]:
        raise ValueError("no schema is named")
    return value[5:]
