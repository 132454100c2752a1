"""Tables of one's own, read from outside: one key, or a page of keys; committed values only.

A worker answers for its partitions (`read_table`), and whoever asks all workers puts their answers together
(`merge_tables`). Keys and values are whatever events have brought: each is bounded, and so is an answer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from kafka_ratchet.app.status.lookup import QueryError, parse_limit
from kafka_ratchet.app.status.producers import shown
from kafka_ratchet.errors import TableError
from kafka_ratchet.tables.values.codec import Codec

KEY_MOST: Final = 2_000
"""bytes: what a query string has room for, in hex. Longer keys are counted, not listed."""
LONG_KEYS_MOST: Final = 1_000
"""So many keys that are too long are passed over for one page."""
LISTED_MOST: Final = 500
"""bytes of JSON: a longer value is cut in a list."""
VALUE_MOST: Final = 64 << 10
"""bytes of JSON: a longer value is cut where its key was asked for."""
ANSWER_MOST: Final = 6 << 20
"""bytes, roughly: a page ends early where it would be larger."""
ROW_BYTES: Final = 150
"""What a row takes beside its key and value."""
DEPTH_MOST: Final = 100
"""Values nested deeper are shown as text: who reads the answer has to come back out of it."""

Shown = tuple[Any, str | None, int]


class Part(Protocol):
    """One partition of a table: `CommittedTable`, or what was read of a global table's topic."""

    codec: Codec

    @property
    def is_complete(self) -> bool:
        """Whether `entries` has every key."""

    def get(self, kept: Any) -> bytes | None:
        """The value's bytes, of a key as the codec keeps it; None where it is not in the table."""

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Bytes of keys and values, in the order of the keys' bytes, from behind one on (None: from the first)."""


class TableQuery(NamedTuple):
    """What is asked of a table: a key, as text or by its bytes, or else the keys behind `after`."""

    key: str | None = None
    key_bytes: bytes | None = None
    after: bytes | None = None
    limit: int = 0

    @property
    def lists(self) -> bool:
        """Whether no key was asked for."""
        return self.key is None and self.key_bytes is None

    def parameters(self) -> dict[str, str]:
        """As in a query string; see `parse_table_query`."""
        found = {
            "key": self.key,
            "hex": None if self.key_bytes is None else self.key_bytes.hex(),
            "after": None if self.after is None else self.after.hex(),
            "limit": str(self.limit) if self.limit else None,
        }
        return {name: text for name, text in found.items() if text is not None}


@dataclass(frozen=True, slots=True)
class TableValue:
    """What a key has in one partition.

    value is decoded JSON. excerpt is the beginning of its text where it is too long, or cannot be shown otherwise;
    value is null then. bytes is its size in the table.
    """

    partition: int
    value: Any
    bytes: int
    excerpt: str | None = None


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A key, and its value in each partition that has it. key_hex has the bytes of the key in the table."""

    key: Any
    key_hex: str
    values: list[TableValue]


@dataclass(frozen=True, slots=True)
class AskedPartition:
    """A partition that was looked into, and the changelog offset up to which its table was committed.

    Of a global table they are those of its topic.
    """

    partition: int
    changelog_position: int


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """The body of GET /status/table.

    reached is the key, in hex, up to which all keys are here; None: to the end. complete is False where keys that came
    within the last seconds may be missing; left_out counts keys that are too long to be listed.
    """

    entries: list[TableEntry]
    asked: list[AskedPartition] = field(default_factory=list)
    reached: str | None = None
    complete: bool = True
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class TablePage:
    """A key of a table, or a page of its keys in the order of their bytes, of all partitions that could be asked.

    stream is whose table it is; None: a global table, or nobody could say. partitions have the changelog offset that
    each value is as of, not_asked those that nobody answers for now. next is what `after` has to be for the following
    keys, in hex; None: these are the last. problems are sentences for the reader.
    """

    table: str
    stream: str | None
    entries: list[TableEntry]
    partitions: list[AskedPartition]
    not_asked: list[int]
    next: str | None
    problems: list[str]


def parse_table_query(query: Mapping[str, str]) -> TableQuery:
    """Read key, hex, after and limit of a query string. An empty key is none: the empty text is `""`, as JSON.

    Raises:
        QueryError: one of them cannot be used.
    """
    key, key_bytes = query.get("key") or None, _bytes_of(query, "hex")
    if key is not None and key_bytes is not None:
        raise QueryError("give the key as text or as hex, not both")
    if key is not None:
        try:
            size = len(key.encode())
        except UnicodeEncodeError:
            raise QueryError("the key is not UTF-8 text; give its bytes in hex") from None
        if size > KEY_MOST:
            raise QueryError(f"the key has {size:,} bytes; the longest one that can be asked for has {KEY_MOST:,}")
    return TableQuery(key, key_bytes, _bytes_of(query, "after"), parse_limit(query.get("limit")))


def _bytes_of(query: Mapping[str, str], name: str) -> bytes | None:
    text = query.get(name)
    if not text:
        return None
    try:
        found = bytes.fromhex(text)
    except ValueError:
        raise QueryError(f"{name} must be pairs of the digits 0-9 and a-f, such as 00ff1b") from None
    if len(found) > KEY_MOST:
        raise QueryError(f"{name} has {len(found):,} bytes; the longest key that can be asked for has {KEY_MOST:,}")
    return found


def read_table(partitions: Mapping[int, tuple[Part, int]], query: TableQuery) -> TableAnswer:
    """A worker's answer.

    Args:
        partitions: by number, the table and the offset of its changelog, or topic, that it is as of
        query: what is asked

    Raises:
        QueryError: no key of this table can have those bytes.
        StoreDamaged: a store cannot be read.
    """
    asked = [AskedPartition(number, position) for number, (_, position) in sorted(partitions.items())]
    if not partitions:
        return TableAnswer([], asked)
    tables = {number: table for number, (table, _) in partitions.items()}
    return _listed(tables, asked, query) if query.lists else TableAnswer(_found(tables, query), asked)


def _found(tables: Mapping[int, Part], query: TableQuery) -> list[TableEntry]:
    codec = next(iter(tables.values())).codec
    entries = []
    for kept in _keys_of(codec, query):
        found = {number: value for number, table in tables.items() if (value := table.get(kept)) is not None}
        if found:
            entries.append(_entry(codec, codec.key_bytes(kept), sorted(found.items()), VALUE_MOST))
    return entries


def _keys_of(codec: Codec, query: TableQuery) -> list[Any]:
    """Keys that may be meant, as the codec keeps them: 7 may be the number or the text, so both are looked for."""
    if query.key_bytes is not None:
        candidates = [query.key_bytes]
    elif codec.key_type is bytes:
        return [(query.key or "").encode()]
    else:
        candidates = [(query.key or "").encode(), msgspec.json.encode(query.key)]
    kept: list[Any] = []
    for data in candidates:
        try:
            found = codec.kept_key(data) if codec.is_simple else codec.check_key(codec.key(data))
        except (TableError, msgspec.MsgspecError, RecursionError):
            continue
        if found not in kept:
            kept.append(found)
    if not kept:
        raise QueryError(f"no key of table {codec.table} is written so: its keys are {codec.key_type}, given as JSON")
    return kept


def _listed(tables: Mapping[int, Part], asked: list[AskedPartition], query: TableQuery) -> TableAnswer:
    codec = next(iter(tables.values())).codec
    entries: list[TableEntry] = []
    size, left_out, reached = 0, 0, query.after
    more = False
    with closing(_by_key(tables, query.after)) as found:
        for key, values in found:
            if len(entries) >= query.limit or size > ANSWER_MOST or left_out >= LONG_KEYS_MOST:
                more = True
                break
            reached = key[:KEY_MOST]  # of a longer one: all keys up to there were looked at
            if len(key) > KEY_MOST:
                left_out += 1
                continue
            entries.append(entry := _entry(codec, key, values, LISTED_MOST))
            size += 4 * len(key) + sum(ROW_BYTES + 2 * min(value.bytes, LISTED_MOST) for value in entry.values)
    return TableAnswer(
        entries,
        asked,
        reached.hex() if more and reached is not None else None,
        all(table.is_complete for table in tables.values()),
        left_out,
    )


def _by_key(
    tables: Mapping[int, Part], after: bytes | None
) -> Generator[tuple[bytes, list[tuple[int, bytes]]], None, None]:
    """Each key with its value in each partition."""

    def of(number: int, table: Part) -> Iterator[tuple[bytes, int, bytes]]:
        return ((key, number, value) for key, value in table.entries(after))

    rows = merge(*(of(number, table) for number, table in tables.items()), key=itemgetter(0, 1))
    for key, same in groupby(rows, key=itemgetter(0)):
        yield key, [(number, value) for _, number, value in same]


def _entry(codec: Codec, key: bytes, values: Iterable[tuple[int, bytes]], most: int) -> TableEntry:
    rows = []
    for number, data in values:
        value, excerpt, size = _shown(data, most, packed=codec.serializer == "msgpack")
        rows.append(TableValue(number, value, size, excerpt))
    if codec.key_type is bytes:
        return TableEntry(key.decode("utf-8", "backslashreplace"), key.hex(), rows)
    value, excerpt, _ = _shown(key, KEY_MOST, packed=False)
    return TableEntry(value if excerpt is None else excerpt, key.hex(), rows)


def _shown(data: bytes, most: int, *, packed: bool) -> Shown:
    """(the value, the beginning of its text where it is not shown as a value, its bytes)."""
    try:
        value = msgspec.msgpack.decode(data) if packed else msgspec.json.decode(data)
        text = msgspec.json.encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return None, shown(data[:most]), len(data)
    if len(text) > most or _is_deep(value, text):
        return None, shown(text[:most]), len(data)
    return value, None, len(data)


def _is_deep(value: Any, text: bytes) -> bool:
    if text.count(b"[") + text.count(b"{") <= DEPTH_MOST:
        return False
    level = [value]
    for _ in range(DEPTH_MOST):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [value for values in inner for value in values]
    return bool(level)


def merge_tables(
    table: str,
    stream: str | None,
    answers: Mapping[str, TableAnswer],
    query: TableQuery,
    partitions: Iterable[int],
    problems: Iterable[str],
) -> TablePage:
    """The workers' answers put together.

    Args:
        table: its name
        stream: whose it is
        answers: by worker
        query: what was asked
        partitions: all of the stream's
        problems: of the workers that gave none
    """
    problems = list(problems)
    asked = _newest(answers)
    whole = {number: position for number, (_, position) in sorted(asked.items())}
    reached = min((answer.reached for answer in answers.values() if answer.reached is not None), default=None)
    values: dict[str, tuple[Any, list[TableValue]]] = {}
    for worker, answer in answers.items():
        for entry in answer.entries:
            if reached is not None and entry.key_hex > reached:
                continue
            mine = [row for row in entry.values if row.partition in asked and asked[row.partition][0] == worker]
            if mine:
                values.setdefault(entry.key_hex, (entry.key, []))[1].extend(mine)
    found = [
        TableEntry(key, name, sorted(rows, key=lambda row: row.partition))
        for name, (key, rows) in sorted(values.items())
    ]
    if query.lists and len(found) > query.limit:
        found = found[: query.limit]
        reached = found[-1].key_hex
    if reached is not None and query.after is not None and reached <= query.after.hex():
        problems.append(f"the list ends here: behind it are too many keys of more than {KEY_MOST:,} bytes")
        reached = None
    if left_out := sum(answer.left_out for answer in answers.values()):
        problems.append(f"{left_out:,} keys of more than {KEY_MOST:,} bytes are left out")
    if not all(answer.complete for answer in answers.values()):
        problems.append("very many keys came within the last seconds; some of them may be missing here")
    return TablePage(
        table,
        stream,
        found,
        [AskedPartition(number, position) for number, position in whole.items()],
        sorted(set(partitions) - whole.keys()),
        reached,
        problems,
    )


def _newest(answers: Mapping[str, TableAnswer]) -> dict[int, tuple[str, int]]:
    """By partition, who has committed furthest: while it moves, two workers may have it."""
    newest: dict[int, tuple[str, int]] = {}
    for worker, answer in sorted(answers.items()):
        for each in answer.asked:
            if each.partition not in newest or newest[each.partition][1] < each.changelog_position:
                newest[each.partition] = worker, each.changelog_position
    return newest
