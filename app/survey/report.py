"""What a survey found: for the terminal, for JSON, and for the proposal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.app.survey import seen
from kafka_ratchet.app.survey.counting import Count, Counts, Order
from kafka_ratchet.app.survey.places import Candidate, Candidates
from kafka_ratchet.app.survey.reading import Range, Topic

HASH_BITS: Final = 64
WINDOW_MOST: Final = 4_096
"""Largest reorder_window."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Records whose age, distance or lateness is from `least` to `most`."""

    least: int
    most: int
    records: int


def buckets(counts: NDArray[np.int64]) -> list[Bucket]:
    """Those from the first to the last that has any, by powers of two."""
    held = np.flatnonzero(counts)
    if not len(held):
        return []
    return [
        Bucket(0 if bits == 0 else 1 << (bits - 1), (1 << bits) - 1, int(counts[bits]))
        for bits in range(int(held[0]), int(held[-1]) + 1)
    ]


@dataclass(frozen=True, slots=True)
class Example:
    """One duplicate to look at: where it is, and where the record was that it repeats. age_ms: -1 is not known."""

    partition: int
    offset: int
    before: int
    age_ms: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """How the numbers of a candidate follow each other.

    identities: that have numbers, in each partition; rises: records above the last of their identity; steps: those of
    them that are one above it; late: below it and never seen before; late_most: by how much; before: below the first
    that was read of their identity, so that nobody knows
    """

    identities: int
    rises: int
    steps: int
    late: int
    late_most: int
    before: int
    lates: list[Bucket]

    @classmethod
    def of(cls, order: Order) -> Numbers:
        """From the counts."""
        rises, steps, late, before, identities = (int(order.counts[kind]) for kind in range(seen.ORDERS))
        return cls(identities, rises, steps, late, int(order.largest[0]), before, buckets(order.lates))

    @property
    def counts(self) -> bool:
        """Whether most numbers are one above the last."""
        return 2 * self.steps > self.rises

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Windows, and how many of the late numbers each would pass."""
        if not self.late:
            return []
        sizes = [1 << bits for bits in range(1, WINDOW_MOST.bit_length())]
        return [(size, sum(each.records for each in self.lates if each.most < size)) for size in sizes]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "identities": self.identities,
            "rises": self.rises,
            "steps": self.steps,
            "late": self.late,
            "late_most": self.late_most,
            "before": self.before,
            "lates": _told(self.lates),
            "windows": [{"reorder_window": size, "passes": passes} for size, passes in self.windows],
        }


@dataclass(frozen=True)
class Finding:
    """What one candidate says of the duplicates.

    Attributes:
        records: that have it
        distinct: identities, over all partitions
        equal, conflicts: records whose identity was in their partition before, with the same value and with another
        across, across_conflicts: likewise, where it was in other partitions only
        one_of: of how many identities one was followed, with all of its records; 1: all of them
        errors: by name, two standard errors of a count that was made with a sample
        mistaken: how many identities are expected to be taken for others, because their hashes are equal
        ages, ages_across: ms since the identity came last, in this partition and in another
        distances: offsets since it came last in this partition
        age_most_ms, distance_most: -1 where there is none
    """

    candidate: Candidate
    records: int
    without: int
    distinct: int
    equal: int
    conflicts: int
    across: int
    across_conflicts: int
    one_of: int
    errors: dict[str, int]
    mistaken: float
    ages: list[Bucket]
    ages_across: list[Bucket]
    distances: list[Bucket]
    age_most_ms: int
    distance_most: int
    examples: list[Example]
    conflict_examples: list[Example]
    numbers: Numbers | None

    @classmethod
    def of(cls, count: Count, records: int) -> Finding:
        """From the counts. records: of the topic."""
        of = count.seen
        first, equal, conflicts, across, across_conflicts = map(int, of.counts)
        errors = {
            "distinct": of.error(seen.FIRST),
            "duplicates": of.error(seen.EQUAL, seen.CONFLICT),
            "conflicts": of.error(seen.CONFLICT),
            "across_partitions": of.error(seen.ACROSS, seen.ACROSS_CONFLICT),
        }
        equals, others = ([Example(*map(int, each)) for each in kind if each[0] >= 0] for kind in of.examples)
        return cls(
            count.candidate,
            records - of.without,
            of.without,
            first,
            equal,
            conflicts,
            across,
            across_conflicts,
            1 << of.level,
            errors,
            mistaken(first >> of.level, of.level),
            buckets(of.ages[0]),
            buckets(of.ages[1]),
            buckets(of.distances),
            int(of.largest[0]),
            int(of.largest[1]),
            equals,
            others,
            None if count.order is None else Numbers.of(count.order),
        )

    @property
    def duplicates(self) -> int:
        """Records that a worker would drop."""
        return self.equal + self.conflicts

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "identity": self.candidate.setting,
            "sequence": None if self.candidate.sequence is None else str(self.candidate.sequence),
            "records": self.records,
            "without": self.without,
            "distinct": self.distinct,
            "duplicates": self.duplicates,
            "conflicts": self.conflicts,
            "across_partitions": self.across + self.across_conflicts,
            "across_conflicts": self.across_conflicts,
            "one_of": self.one_of,
            "errors": self.errors,
            "mistaken": self.mistaken,
            "ages_ms": _told(self.ages),
            "ages_across_ms": _told(self.ages_across),
            "distances": _told(self.distances),
            "age_most_ms": self.age_most_ms,
            "distance_most": self.distance_most,
            "examples": [_example(each) for each in self.examples],
            "conflict_examples": [_example(each) for each in self.conflict_examples],
            "numbers": None if self.numbers is None else self.numbers.as_dict(),
        }


def mistaken(followed: int, level: int) -> float:
    """How many pairs of so many identities have equal hashes by chance, on average: n (n - 1) / 2 of 2^64.

    level: of the sample; its hashes share that many bits.
    """
    return float(followed * max(followed - 1, 0) / 2 / 2.0 ** (HASH_BITS - level))


def _told(histogram: list[Bucket]) -> list[dict[str, int]]:
    return [{"least": each.least, "most": each.most, "records": each.records} for each in histogram]


def _example(each: Example) -> dict[str, int]:
    return {"partition": each.partition, "offset": each.offset, "before": each.before, "age_ms": each.age_ms}


@dataclass(frozen=True)
class Report:
    """The whole of it.

    Attributes:
        findings: by candidate; the first is of whole records
        left_out: what is no identity, and why, by the sample
        forms: places whose numbers seem to have another form than a stream reads, and why, by the sample
        broken: values that are no JSON objects; 0 where no field was looked for
        deleted: records that retention deleted meanwhile
        future: timestamps more than a day ahead, which were left out
        busy: records by minute of the clock
        log_append_time: whether timestamps are the broker's
    """

    topic: str
    ranges: list[Range]
    partitions: int
    records: int
    bytes: int
    seconds: float
    first_ms: int
    last_ms: int
    log_append_time: bool | None
    broken: int
    deleted: int
    future: int
    sampled: int
    busy: dict[int, int]
    findings: list[Finding]
    left_out: tuple[tuple[str, str], ...]
    forms: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        topic: Topic,
        counts: Counts,
        candidates: Candidates,
        sampled: int,
        seconds: float,
        forms: tuple[tuple[str, str], ...] = (),
    ) -> Report:
        """From what was read and counted."""
        return cls(
            topic.name,
            topic.ranges,
            topic.partitions,
            counts.records,
            counts.bytes,
            seconds,
            counts.first_ms,
            counts.last_ms,
            topic.log_append_time,
            counts.broken,
            topic.deleted,
            counts.future,
            sampled,
            counts.busy,
            [Finding.of(count, counts.records) for count in counts.of],
            candidates.left_out,
            forms,
        )

    @property
    def span_ms(self) -> int:
        """From the first record to the last, by the clock; 0 where no timestamp is known."""
        return max(0, self.last_ms - self.first_ms)

    @property
    def is_whole(self) -> bool:
        """Whether all was read that the topic still has."""
        return len(self.ranges) == self.partitions and all(each.is_whole for each in self.ranges)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "topic": self.topic,
            "partitions": self.partitions,
            "ranges": [
                {"partition": each.partition, "first": each.first, "begin": each.begin, "end": each.end}
                for each in self.ranges
            ],
            "whole": self.is_whole,
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.records / max(self.seconds, 1e-9)),
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "log_append_time": self.log_append_time,
            "not_json": self.broken,
            "deleted_meanwhile": self.deleted,
            "timestamps_ahead": self.future,
            "sampled": self.sampled,
            "identities": [each.as_dict() for each in self.findings],
            "forms": [{"place": place, "why": why} for place, why in self.forms],
            "no_identities": [{"place": place, "why": why} for place, why in self.left_out],
        }
