"""Report of a survey, the basis of its text, its JSON and its proposal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.survey import seen
from kafka_ratchet.app.survey.counting import Count, Counts, OrderCounts
from kafka_ratchet.app.survey.places import Candidate, Candidates
from kafka_ratchet.app.survey.reading import Range, Topic

HASH_BITS: Final = 64
WINDOW_MOST: Final = 4_096
"""Largest reorder_window."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bucket of records with an age, distance or lateness from `least` to `most`."""

    least: int
    most: int
    records: int


def buckets(counts: NDArray[np.int64]) -> list[Bucket]:
    """Return the buckets from the first to the last with records. counts: int64[BUCKETS], by bits."""
    held = np.flatnonzero(counts)
    if not len(held):
        return []
    return [
        Bucket(0 if bits == 0 else 1 << (bits - 1), (1 << bits) - 1, int(counts[bits]))
        for bits in range(int(held[0]), int(held[-1]) + 1)
    ]


@dataclass(frozen=True, slots=True)
class Example:
    """Example of a duplicate.

    partition, offset: position of the duplicate; before: offset of the record that it repeats; age_ms: time between the
    two records; -1: unknown
    """

    partition: int
    offset: int
    before: int
    age_ms: int


@dataclass(frozen=True, slots=True)
class NumberOrder(Document):
    """Order of a candidate's numbers, compared with the highest number of their identity so far.

    identities: number of identities with numbers, counted in each partition. rises: records above the highest number;
    steps: records just one above it. late: new records below the highest number; late_most: their largest distance to
    it; lates: late records by distance. before: records below the first number read of their identity, which may be
    late or repeats.
    """

    json_keys = (
        "identities",
        "rises",
        "steps",
        "late",
        "late_most",
        "before",
        "lates",
        "windows=named_windows",
    )

    identities: int
    rises: int
    steps: int
    late: int
    late_most: int
    before: int
    lates: list[Bucket]

    @classmethod
    def of(cls, order: OrderCounts) -> NumberOrder:
        """Make the result from the counts of a candidate."""
        rises, steps, late, before, identities = (int(order.counts[kind]) for kind in range(seen.ORDERS))
        return cls(identities, rises, steps, late, int(order.largest[0]), before, buckets(order.lates))

    @property
    def counts(self) -> bool:
        """Return True if most rising numbers are just one above their identity's highest number so far."""
        return 2 * self.steps > self.rises

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Return possible reorder windows, each with the number of late records that it would accept."""
        if not self.late:
            return []
        sizes = [1 << bits for bits in range(1, WINDOW_MOST.bit_length())]
        return [(size, sum(each.records for each in self.lates if each.most < size)) for size in sizes]

    @property
    def named_windows(self) -> list[dict[str, int]]:
        """Return possible reorder windows and the late records that each would accept, for JSON."""
        return [{"reorder_window": size, "passes": passes} for size, passes in self.windows]


@dataclass(frozen=True)
class Finding(Document):
    """Results of a survey for one candidate.

    Attributes:
        records: number of records that have the identity.
        without: number of records that lack it.
        distinct: number of identities, over all partitions.
        equal, conflicts: repeats of an identity seen in the same partition, with the same content (key and value) and
            with another one.
        across, across_conflicts: repeats of an identity seen only in other partitions, with the same content and with
            another one.
        one_of: size of the sample: one of this many identities was followed, with all of its records; 1: all.
        errors: twice the standard error of each sampled count, by name of the count.
        mistaken: expected number of pairs of identities that count as one because of equal hashes.
        ages, ages_across: repeats by ms since the identity's last record, in the same partition and in another.
        distances: repeats by offsets since the identity's last record in the same partition.
        age_most_ms, distance_most: largest age and distance in the same partition; -1: no repeat there.
    """

    json_keys = (
        "identity=candidate.setting",
        "sequence=sequence_text",
        "records",
        "without",
        "distinct",
        "duplicates",
        "conflicts",
        "across_partitions",
        "across_conflicts",
        "one_of",
        "errors",
        "mistaken",
        "ages_ms=ages",
        "ages_across_ms=ages_across",
        "distances",
        "age_most_ms",
        "distance_most",
        "examples",
        "conflict_examples",
        "numbers",
    )

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
    numbers: NumberOrder | None

    @classmethod
    def of(cls, count: Count, records: int) -> Finding:
        """Make the results from the counts of a candidate. records: number of records read."""
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
            None if count.order is None else NumberOrder.of(count.order),
        )

    @property
    def duplicates(self) -> int:
        """Return the number of records that a worker would drop as duplicates."""
        return self.equal + self.conflicts

    @property
    def sequence_text(self) -> str | None:
        """Return the header or field of the sequence as text; None without one."""
        return None if self.candidate.sequence is None else str(self.candidate.sequence)

    @property
    def across_partitions(self) -> int:
        """Return the number of repeats seen only in other partitions."""
        return self.across + self.across_conflicts


def mistaken(followed: int, level: int) -> float:
    """Return the expected number of pairs of identities with equal hashes: n (n - 1) / 2 divided by 2^64.

    followed: number of identities; level: level of the sample, as its hashes have that many bits in common
    """
    return float(followed * max(followed - 1, 0) / 2 / 2.0 ** (HASH_BITS - level))


@dataclass(frozen=True)
class Report(Document):
    """Report of a survey.

    Attributes:
        findings: results by candidate; the first candidate is the whole record.
        left_out: headers and fields of the sample that are no candidates, with reasons.
        forms: headers and fields of the sample with sequences in a form that a stream cannot read, with reasons.
        broken: number of values other than JSON objects; 0 if no field was searched.
        deleted: number of offsets that retention deleted during the survey.
        future: number of timestamps more than a day ahead, which were ignored.
        busy: number of records by minute of the clock, which is the highest timestamp of a partition so far.
        log_append_time: True if all timestamps are the broker's; None: nothing was read.
    """

    json_keys = (
        "topic",
        "partitions",
        "ranges=range_bounds",
        "whole=is_whole",
        "records",
        "bytes",
        "seconds=seconds_shown",
        "records_per_s",
        "first_ms",
        "last_ms",
        "log_append_time",
        "not_json=broken",
        "deleted_meanwhile=deleted",
        "timestamps_ahead=future",
        "sampled",
        "identities=findings",
        "forms=form_reasons",
        "no_identities=left_out_reasons",
    )

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
        """Make the report from topic and counts. seconds: duration of the reading."""
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
        """Return the milliseconds from the first time of the clock to the last; 0 without a timestamp."""
        return max(0, self.last_ms - self.first_ms)

    @property
    def is_whole(self) -> bool:
        """Return True if all present records of the topic were read."""
        return len(self.ranges) == self.partitions and all(each.is_whole for each in self.ranges)

    @property
    def range_bounds(self) -> list[dict[str, int]]:
        """Return the range of offsets read in each partition, for JSON."""
        names = ("partition", "first", "begin", "end")
        return [{name: getattr(each, name) for name in names} for each in self.ranges]

    @property
    def seconds_shown(self) -> float:
        """Return the seconds of reading, rounded to whole milliseconds."""
        return round(self.seconds, 3)

    @property
    def records_per_s(self) -> int:
        """Return the number of records read per second."""
        return round(self.records / max(self.seconds, 1e-9))

    @property
    def form_reasons(self) -> list[dict[str, str]]:
        """Return the headers and fields with sequences that a stream cannot read, with reasons, for JSON."""
        return [{"place": place, "why": why} for place, why in self.forms]

    @property
    def left_out_reasons(self) -> list[dict[str, str]]:
        """Return the headers and fields of the sample that are no candidates, with reasons, for JSON."""
        return [{"place": place, "why": why} for place, why in self.left_out]
