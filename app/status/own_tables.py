"""Queries for the tables of a program: one key, or a page of keys, with committed values only.

Each worker answers for its partitions (`kafka_ratchet.app.status.table_reading`); `merge_tables` combines the answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final, NamedTuple

from kafka_ratchet.app.status.lookup import QueryError, parse_limit

KEY_MOST: Final = 2_000
"""Maximum number of bytes of a listed key, so that its hex digits fit into a query string. Longer keys are not listed,
only counted.
"""


class TableQuery(NamedTuple):
    """Query of a table for one key, as text or bytes, or for at most `limit` keys after `after`."""

    key: str | None = None
    key_bytes: bytes | None = None
    after: bytes | None = None
    limit: int = 0

    @property
    def lists(self) -> bool:
        """Return True if the query asks for a page of keys."""
        return self.key is None and self.key_bytes is None

    def parameters(self) -> dict[str, str]:
        """Return the query as parameters; see `parse_table_query`."""
        found = {
            "key": self.key,
            "hex": None if self.key_bytes is None else self.key_bytes.hex(),
            "after": None if self.after is None else self.after.hex(),
            "limit": str(self.limit) if self.limit else None,
        }
        return {name: text for name, text in found.items() if text is not None}


@dataclass(frozen=True, slots=True)
class TableValue:
    """Value of a key in one partition.

    value: the decoded JSON; None if the value is too long, or is not JSON.
    excerpt: in that case, the beginning of the value's text.
    bytes: size of the value in the table.
    """

    partition: int
    value: Any
    bytes: int
    excerpt: str | None = None


@dataclass(frozen=True, slots=True)
class TableEntry:
    """Key of a table, with its value in each partition.

    key_hex: the key's bytes in the table, in hex.
    window: start and end in seconds since the epoch, if the table has windows.
    """

    key: Any
    key_hex: str
    values: list[TableValue]
    window: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class AskedPartition:
    """Searched partition, and the changelog offset where its committed table ends.

    For a global table, they are a partition of the table's topic, and the offset where reading ended.
    """

    partition: int
    changelog_position: int


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """Body of GET /status/table.

    reached: key, in hex; the answer has all keys up to it. None: the answer has all keys.
    complete: False: keys of the last seconds may be missing.
    left_out: number of keys too long for the list.
    problems: sentences for display.
    """

    entries: list[TableEntry]
    asked: list[AskedPartition] = field(default_factory=list)
    reached: str | None = None
    complete: bool = True
    left_out: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TablePage:
    """Key of a table, or a page of its keys in byte order, from all answering partitions.

    stream: stream of the table; None: a global table, or unknown.
    partitions: answering partitions, each with the changelog offset where its committed table ends.
    not_asked: partitions without an answering worker.
    next: `after` of the following page, in hex; None: this page is the last.
    problems: sentences for display.
    """

    table: str
    stream: str | None
    entries: list[TableEntry]
    partitions: list[AskedPartition]
    not_asked: list[int]
    next: str | None
    problems: list[str]


def window_text(window: tuple[float, float] | None) -> str:
    """Return a window's start and end as text, in UTC; invalid dates in seconds since the epoch."""
    if window is None:
        return ""
    try:
        start, end = (datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None) for seconds in window)
    except (ValueError, OverflowError, OSError):
        return f"{window[0]} to {window[1]} s"
    return f"{start.isoformat(' ')} to {end.isoformat(' ') if end.date() != start.date() else end.time()}"


def parse_table_query(query: Mapping[str, str]) -> TableQuery:
    """Return the query in the parameters key, hex, after and limit of an address.

    An empty parameter `key` counts as missing. To query the empty text as a key, write it as JSON: `""`.

    Raises:
        QueryError: a parameter is invalid.
    """
    key, key_bytes = query.get("key") or None, _bytes_of(query, "hex")
    if key is not None and key_bytes is not None:
        raise QueryError("the key is given both as text and as hex. Give one of the two")
    if key is not None:
        try:
            size = len(key.encode())
        except UnicodeEncodeError:
            raise QueryError("the key is not UTF-8 text; give its bytes in hex") from None
        if size > KEY_MOST:
            raise QueryError(f"the key has {size:,} bytes; the longest possible one has {KEY_MOST:,}")
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
        raise QueryError(f"{name} has {len(found):,} bytes; the longest possible key has {KEY_MOST:,}")
    return found


def merge_tables(
    table: str,
    stream: str | None,
    answers: Mapping[str, TableAnswer],
    query: TableQuery,
    partitions: Iterable[int],
    problems: Iterable[str],
) -> TablePage:
    """Combine the workers' answers into a page.

    Args:
        table: name of the table
        stream: stream of the table
        answers: answers by worker
        query: the query
        partitions: all partitions of the stream
        problems: problems of the workers without an answer
    """
    problems = [*problems, *sorted({said for answer in answers.values() for said in answer.problems})]
    asked = _newest(answers)
    whole = {number: position for number, (_, position) in sorted(asked.items())}
    reached = min((answer.reached for answer in answers.values() if answer.reached is not None), default=None)
    values: dict[str, tuple[TableEntry, list[TableValue]]] = {}
    for worker, answer in answers.items():
        for entry in answer.entries:
            if reached is not None and entry.key_hex > reached:
                continue
            mine = [row for row in entry.values if row.partition in asked and asked[row.partition][0] == worker]
            if mine:
                values.setdefault(entry.key_hex, (entry, []))[1].extend(mine)
    found = [
        replace(entry, values=sorted(rows, key=lambda row: row.partition))
        for _, (entry, rows) in sorted(values.items(), key=itemgetter(0))
    ]
    if query.lists and len(found) > query.limit:
        found = found[: query.limit]
        reached = found[-1].key_hex
    if reached is not None and query.after is not None and reached <= query.after.hex():
        problems.append(f"the list ends here: after it are too many keys of more than {KEY_MOST:,} bytes")
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
    """Return for each partition its worker and offset; if two workers report it, those with the higher offset."""
    newest: dict[int, tuple[str, int]] = {}
    for worker, answer in sorted(answers.items()):
        for each in answer.asked:
            if each.partition not in newest or newest[each.partition][1] < each.changelog_position:
                newest[each.partition] = worker, each.changelog_position
    return newest
