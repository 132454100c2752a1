"""Sending of many records at once: columns of any length, read a few hundred records at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import NamedTuple

from kafka_ratchet.errors import SourceError

PART_RECORDS = 256
"""Number of records read from the columns before they are sent, so that the calls per column cost almost nothing."""


class RecordsPart(NamedTuple):
    """Part of the records, as columns of the same length."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    """Key of each record; None: no record has a key."""
    sequences: Sequence[int] | None
    """Sequence of each record; None: sequences are automatic."""


def in_parts(
    values: Iterable[bytes | None],
    keys: Iterable[bytes | None] | None,
    sequences: Iterable[int] | None,
    records: int = PART_RECORDS,
) -> Iterator[RecordsPart]:
    """Yield the columns in parts of at most `records` records.

    An error that a column raises is raised after the records before it were yielded.

    Raises:
        SourceError: the columns have different lengths. If the lengths are known, it is raised before the first part.
    """
    columns = {"values": values, "keys": keys, "sequences": sequences}
    given = {name: column for name, column in columns.items() if column is not None}
    if len({len(column) for column in given.values() if isinstance(column, Sized)}) > 1:
        raise _differ(given)
    readers = {name: iter(column) for name, column in given.items()}
    ended = False
    while not ended:
        parts, room, raised = _taken(readers, records)
        if room:
            yield RecordsPart(*(parts[name][:room] if name in parts else None for name in columns))  # type: ignore[arg-type]
        if raised is not None:
            raise raised
        ended = room < records
        if any(len(part) > room for part in parts.values()) or (
            ended and any(True for reader in readers.values() for _ in reader)
        ):
            raise _differ(given)


def _taken(
    readers: Mapping[str, Iterator[object]], records: int
) -> tuple[dict[str, list[object]], int, BaseException | None]:
    """Return the next values of each column, the number of complete records in them, and the first error."""
    parts: dict[str, list[object]] = {}
    raised: BaseException | None = None
    for name, reader in readers.items():
        part = parts[name] = []
        try:
            part.extend(islice(reader, records))  # values before an error stay in the list
        except BaseException as error:
            raised = raised or error
        records = len(part)  # of the next no more than this one has
    return parts, records, raised


def _differ(given: Iterable[str]) -> SourceError:
    return SourceError(f"{' and '.join(given)} have different lengths: give each record one of each")
