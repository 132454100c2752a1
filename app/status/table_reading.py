"""Answer of a worker to a query of a table, from its partitions or its global tables.

Keys and values come from events, so each of them and the whole answer have a limit.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Protocol

import msgspec

from kafka_ratchet.app.status.lookup import QueryError
from kafka_ratchet.app.status.own_tables import (
    KEY_MOST,
    AskedPartition,
    TableAnswer,
    TableEntry,
    TableQuery,
    TableValue,
)
from kafka_ratchet.app.status.producers import shown
from kafka_ratchet.errors import TableError
from kafka_ratchet.tables.values.codec import Codec
from kafka_ratchet.tables.values.committed import WINDOWS_MOST
from kafka_ratchet.tables.values.windows import START_BYTES, WindowCodec, WindowKey

LONG_KEYS_MOST: Final = 1_000
"""Maximum number of overlong keys to skip for one page."""
LISTED_MOST: Final = 500
"""Maximum bytes of JSON for a value in a list. Only the beginning of a longer value is shown."""
VALUE_MOST: Final = 64 << 10
"""Maximum bytes of JSON for a value of a requested key. Only the beginning of a longer value is shown."""
ANSWER_MOST: Final = 6 << 20
"""Approximate maximum number of bytes of an answer; a page with longer values has fewer keys."""
ROW_BYTES: Final = 150
"""Estimated bytes of a row in an answer, without its key and value."""
DEPTH_MOST: Final = 100
"""Deepest nesting of a value in the answer's JSON. A deeper one is sent as text, since it may break JSON parsers."""

Shown = tuple[Any, str | None, int]


class TablePart(Protocol):
    """Interface of a table's partition for queries. `CommittedTable` has it, and a partition of a global table."""

    codec: Codec

    @property
    def is_complete(self) -> bool:
        """Return True if `entries` yields every key."""

    def get(self, kept: Any) -> bytes | None:
        """Return the value's bytes of an encoded key; None if the table lacks the key."""

    def starts(self) -> tuple[Iterable[int], bool]:
        """Return the starts of windows that may have keys, and True if the table may have further windows."""

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value bytes after a key, in the order of the keys' bytes (None: from the first)."""


def read_table(partitions: Mapping[int, tuple[TablePart, int]], query: TableQuery) -> TableAnswer:
    """Return a worker's answer to a query of a table.

    Args:
        partitions: partitions of the table by number, each with the offset of its changelog or topic
        query: key or page

    Raises:
        QueryError: the table cannot have the key of the query.
        StoreDamaged: a store cannot be read.
    """
    asked = [AskedPartition(number, position) for number, (_, position) in sorted(partitions.items())]
    if not partitions:
        return TableAnswer([], asked)
    tables = {number: table for number, (table, _) in partitions.items()}
    if query.lists:
        return _listed(tables, asked, query)
    codec = next(iter(tables.values())).codec
    if isinstance(codec, WindowCodec) and query.key_bytes is None:
        entries, problems = _in_windows(tables, codec, query)
        return TableAnswer(entries, asked, problems=problems)
    return TableAnswer(_found(tables, codec, _keys_of(codec, query)), asked)


def _found(tables: Mapping[int, TablePart], codec: Codec, keys: Iterable[Any]) -> list[TableEntry]:
    entries = []
    for kept in keys:
        found = {number: value for number, table in tables.items() if (value := table.get(kept)) is not None}
        if found:
            entries.append(_entry(codec, codec.key_bytes(kept), sorted(found.items()), VALUE_MOST))
    return entries


def _in_windows(
    tables: Mapping[int, TablePart], codec: WindowCodec, query: TableQuery
) -> tuple[list[TableEntry], list[str]]:
    """Return the values of a key in its newest windows, and sentences about omitted windows."""
    keys, entries = _keys_of(codec.inner, query), list[TableEntry]()
    try:
        looked = [table.starts() for table in tables.values()]
    except TableError as error:
        raise QueryError(str(error)) from None
    problems = []
    if any(is_cut for _, is_cut in looked):
        problems = [
            f"only the oldest {WINDOWS_MOST} windows in a partition's store were searched: newer ones may have the key"
        ]
    for start in sorted({start for starts, _ in looked for start in starts}, reverse=True):
        if len(entries) >= query.limit:
            newest = f"these are the newest {query.limit} of them; older ones may have the key too: see limit"
            return entries, [*problems, newest]
        entries += _found(tables, codec, [WindowKey(start, key) for key in keys])
    return entries, problems


def _keys_of(codec: Codec, query: TableQuery) -> list[Any]:
    """Return the possible keys of a query, as the codec keeps them: `7` may be the number or the text."""
    if query.key_bytes is not None:
        candidates = [query.key_bytes]
    elif codec.key_type is bytes:
        return [(query.key or "").encode()]
    else:
        candidates = [(query.key or "").encode(), msgspec.json.encode(query.key)]
    kept: list[Any] = []
    for data in candidates:
        try:
            is_kept = codec.is_simple or isinstance(codec, WindowCodec)
            found = codec.kept_key(data) if is_kept else codec.check_key(codec.key(data))
        except (TableError, msgspec.MsgspecError, RecursionError):
            continue
        if found not in kept:
            kept.append(found)
    if not kept:
        raise QueryError(
            f"table {codec.table} cannot have such a key: its keys are {codec.key_type}. Write such a key as JSON"
        )
    return kept


def _listed(tables: Mapping[int, TablePart], asked: list[AskedPartition], query: TableQuery) -> TableAnswer:
    codec = next(iter(tables.values())).codec
    entries: list[TableEntry] = []
    size, left_out, reached = 0, 0, query.after
    more = False
    with closing(_by_key(tables, query.after)) as found:
        for key, values in found:
            if len(entries) >= query.limit or size > ANSWER_MOST or left_out >= LONG_KEYS_MOST:
                more = True
                break
            reached = key[:KEY_MOST]  # for a longer one: all keys up to there were searched
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
    tables: Mapping[int, TablePart], after: bytes | None
) -> Generator[tuple[bytes, list[tuple[int, bytes]]], None, None]:
    """Yield each key, in byte order, with its value in each partition."""

    def of(number: int, table: TablePart) -> Iterator[tuple[bytes, int, bytes]]:
        return ((key, number, value) for key, value in table.entries(after))

    rows = merge(*(of(number, table) for number, table in tables.items()), key=itemgetter(0, 1))
    for key, same in groupby(rows, key=itemgetter(0)):
        yield key, [(number, value) for _, number, value in same]


def _entry(codec: Codec, key: bytes, values: Iterable[tuple[int, bytes]], most: int) -> TableEntry:
    rows = []
    for number, data in values:
        value, excerpt, size = _shown(data, most, packed=codec.serializer == "msgpack")
        rows.append(TableValue(number, value, size, excerpt))
    window, bare = None, key
    if isinstance(codec, WindowCodec) and len(key) >= START_BYTES:
        window, bare = codec.window_of(key), key[START_BYTES:]
    if codec.key_type is bytes:
        return TableEntry(bare.decode("utf-8", "backslashreplace"), key.hex(), rows, window)
    value, excerpt, _ = _shown(bare, KEY_MOST, packed=False)
    return TableEntry(value if excerpt is None else excerpt, key.hex(), rows, window)


def _shown(data: bytes, most: int, *, packed: bool) -> Shown:
    """Return the value as JSON, or the beginning of its text; and the value's size in bytes.

    The result is text if the value has more than `most` bytes, is nested too deeply, or is not JSON.
    """
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
