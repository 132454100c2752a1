"""Report of a survey, for the terminal, for JSON, and for the proposal."""

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
    """Records with age, distance or lateness from `least` to `most`."""

    least: int
    most: int
    records: int


def buckets(counts: NDArray[np.int64]) -> list[Bucket]:
    """Return the buckets from the first to the last used one, by powers of two."""
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
    """Order of a candidate's numbers.

    identities: number of those with numbers, in each partition; rises: records above the last of their identity;
    steps: those just one above it; late: records below it and never seen before; late_most: largest distance; before:
    records below the first one read of their identity, of unknown kind.
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
        """Return the order from the counts."""
        rises, steps, late, before, identities = (int(order.counts[kind]) for kind in range(seen.ORDERS))
        return cls(identities, rises, steps, late, int(order.largest[0]), before, buckets(order.lates))

    @property
    def counts(self) -> bool:
        """Return True if most numbers are one above the last."""
        return 2 * self.steps > self.rises

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Windows, and how many of the late numbers each would pass."""
        if not self.late:
            return []
        sizes = [1 << bits for bits in range(1, WINDOW_MOST.bit_length())]
        return [(size, sum(each.records for each in self.lates if each.most < size)) for size in sizes]

    def as_dict(self) -> dict[str, Any]:
        """Return the order for JSON."""
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
    """Duplicates by one candidate.

    Attributes:
        records: records that have it.
        distinct: number of identities, over all partitions.
        equal, conflicts: records with an identity seen in their partition before, with the same value and with another.
        across, across_conflicts: likewise, where it was in other partitions only.
        one_of: one of this many identities was followed, with all of its records; 1: all of them.
        errors: by name, two standard errors of a sampled count.
        mistaken: expected number of identities confused by equal hashes.
        ages, ages_across: ms since the identity's last record, in this partition and in another.
        distances: offsets since its last record in this partition.
        age_most_ms, distance_most: -1 where there is none.
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
        """Return the result from the counts. records: of the topic."""
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
        """Return the result for JSON."""
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
    """Return the average number of pairs of identities with equal hashes by chance: n (n - 1) / 2 of 2^64.

    level: level of the sample; its hashes share that many bits.
    """
    return float(followed * max(followed - 1, 0) / 2 / 2.0 ** (HASH_BITS - level))


def _told(histogram: list[Bucket]) -> list[dict[str, int]]:
    return [{"least": each.least, "most": each.most, "records": each.records} for each in histogram]


def _example(each: Example) -> dict[str, int]:
    return {"partition": each.partition, "offset": each.offset, "before": each.before, "age_ms": each.age_ms}


@dataclass(frozen=True)
class Report:
    """Report of a survey.

    Attributes:
        findings: results by candidate; the first is of whole records.
        left_out: places that are no identity, with reasons, by the sample.
        forms: places with numbers of an unread form, with reasons, by the sample.
        broken: values other than JSON objects; 0 where no field was searched.
        deleted: records that retention deleted during the survey.
        future: timestamps more than a day ahead, left out.
        busy: records by minute of the clock.
        log_append_time: True if timestamps are the broker's.
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
        """Return the report from topic and counts."""
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
        """Return the time from the first record to the last, by the clock; 0 without a timestamp."""
        return max(0, self.last_ms - self.first_ms)

    @property
    def is_whole(self) -> bool:
        """Return True if all present records of the topic were read."""
        return len(self.ranges) == self.partitions and all(each.is_whole for each in self.ranges)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
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
