"""Plain count of a survey: dictionaries over all records. It shares no code with the survey."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class PlainRecord(NamedTuple):
    """headers: (name, value); timestamp_ms: -1 is not known."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass
class PlainCount:
    """Counts of one identity; ages and distances by the bits of the number."""

    records: int = 0
    distinct: int = 0
    equal: int = 0
    conflicts: int = 0
    across: int = 0
    across_conflicts: int = 0
    ages: Counter[int] = field(default_factory=Counter)
    distances: Counter[int] = field(default_factory=Counter)
    age_most: int = -1


def plain_count(records: Iterable[PlainRecord], identity: Callable[[PlainRecord], Hashable | None]) -> PlainCount:
    """Records of a partition in their order. identity: None where a record has none."""
    found = PlainCount()
    first: dict[Hashable, Hashable] = {}
    last: dict[tuple[int, Hashable], tuple[int, int, Hashable]] = {}
    clocks: dict[int, int] = {}
    for record in records:
        clock = max(clocks.get(record.partition, 0), record.timestamp_ms)
        clocks[record.partition] = clock
        name = identity(record)
        if name is None:
            continue
        found.records += 1
        here = record.partition, name
        if here in last:
            before_clock, before_offset, content = last[here]
            found.equal += content == (record.key, record.value)
            found.conflicts += content != (record.key, record.value)
            if before_clock > 0 and clock > 0:
                found.ages[(clock - before_clock).bit_length()] += 1
                found.age_most = max(found.age_most, clock - before_clock)
            found.distances[(record.offset - before_offset).bit_length()] += 1
            last[here] = clock, record.offset, content
            continue
        if name not in first:
            found.distinct += 1
            first[name] = record.key, record.value
        elif first[name] == (record.key, record.value):
            found.across += 1
        else:
            found.across_conflicts += 1
        last[here] = clock, record.offset, (record.key, record.value)
    return found


class PlainOrder(NamedTuple):
    """Numbers by their identity: above the last, late and new, below the first that was read, and by how much late."""

    rises: int
    late: int
    before: int
    late_most: int
    lates: Counter[int]


def plain_order(
    records: Iterable[PlainRecord], identity: Callable[[PlainRecord], Hashable], number: Callable[[PlainRecord], int]
) -> PlainOrder:
    """Count the order of numbers in topics not read from their very first record on."""
    seen: set[Hashable] = set()
    highest: dict[Hashable, int] = {}
    lowest: dict[Hashable, int] = {}
    rises = late = before = 0
    lates: Counter[int] = Counter()
    most = -1
    for record in records:
        own, found = identity(record), number(record)
        here = record.partition, own
        known = (own, found) in seen
        seen.add((own, found))
        if here not in highest:
            highest[here] = lowest[here] = found
        elif found > highest[here]:
            rises, highest[here] = rises + 1, found
        elif not known and found < lowest[here]:
            before += 1
        elif not known:
            late += 1
            lates[(highest[here] - found).bit_length()] += 1
            most = max(most, highest[here] - found)
    return PlainOrder(rises, late, before, most, lates)
