"""Comparison of the replay's outputs with the output topic, in order and with bounded memory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from kafka_ratchet.app.verify.findings import Finding, FindingKind
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rows import content
from kafka_ratchet.app.verify.rule import RecordView

AHEAD: Final = 65_536
"""Maximum number of records to search on each side, after a difference, for the next equal ones.

A record takes some 500 bytes of memory. The same number limits the differing records kept for later findings, and the
kept digests of equal records.
"""
ALIKE: Final = 8
"""Number of the topic's first records to search in the replay, if older ones are deleted."""
SHOWN: Final = 200
"""Maximum number of bytes kept of a key and of a value, for display."""


class Output(NamedTuple):
    """Output of the replay, or record of the output topic, as kept in memory.

    digest: digest of key, value, headers and timestamp. place: digest of key and timestamp. Both digests omit the
    timestamp if timestamps are not compared.
    offset: offset in the output topic; for an output of the replay, the input offset of its event, if known.
    is_due: True if the output must be in the topic, as workers had committed its event before the topic was read.
    is_saved: True if its event is before the offset where the next run with `--state` continues.
    """

    digest: bytes
    place: bytes
    offset: int | None
    key: bytes | None
    value: bytes | None
    timestamp: int
    is_due: bool = True
    is_saved: bool = True

    @classmethod
    def of(
        cls,
        record: RecordView,
        offset: int | None,
        *,
        is_due: bool = True,
        is_saved: bool = True,
        has_time: bool = True,
    ) -> Output:
        """Make an output from a record.

        offset, is_due, is_saved: as in `Output`; has_time: False to leave the timestamp out of the comparison
        """
        digest = content(record, with_timestamp=has_time)
        place = content(RecordView(record.key, None, [], record.timestamp_ms), with_timestamp=has_time)
        key, value = (None if part is None else part[:SHOWN] for part in (record.key, record.value))
        return cls(digest, place, offset, key, value, record.timestamp_ms, is_due, is_saved)


class _Ahead:
    """Iterator over outputs that can also look ahead."""

    def __init__(self, source: Iterator[Output]) -> None:
        self._source, self._held, self._at = source, list[Output](), 0

    def peek(self, number: int = 0) -> Output | None:
        """Return the output `number` places after the next one without consuming any; None after the end."""
        while len(self._held) - self._at <= number:
            found = next(self._source, None)
            if found is None:
                return None
            self._held.append(found)
        return self._held[self._at + number]

    def take(self, count: int) -> list[Output]:
        """Consume and return up to `count` outputs that `peek` has returned."""
        found = self._held[self._at : self._at + count]
        self._at += len(found)
        if self._at >= AHEAD or self._at == len(self._held):
            del self._held[: self._at]
            self._at = 0
        return found


class Gap(NamedTuple):
    """Difference between replay and topic: records only in the replay, and records only in the topic."""

    missing: list[Output]
    extra: list[Output]


class OutputComparison:
    """Comparison of one output partition. Its memory does not grow with the topic; see `AHEAD`."""

    def __init__(self, topic: str, partition: int, report: Report, failed: Callable[[], bool] = lambda: False) -> None:
        """Prepare the comparison without reading.

        Args:
            topic: name of the output topic.
            partition: number of the partition, in input and output.
            report: receives counts and findings.
            failed: function that returns True if the program failed, so that the replay ended early; called at the end.
        """
        self._topic, self._partition, self._report, self._failed = topic, partition, report, failed
        self._gaps: list[Gap] = []
        self._held = 0
        self._recent: deque[bytes] = deque()
        self._there: Counter[bytes] = Counter()
        """Number of the newest records found on both sides, by digest."""
        self._extra = set[bytes]()
        """Digests of the records in `_gaps` found only in the topic."""
        self._copies = set[bytes]()
        """Digests in `_extra` of records with an equal record elsewhere on both sides."""
        self.saved_to: int | None = None
        """Output offset where the next run with `--state` continues; None: no record was matched.

        All matched outputs before this offset come from events that the next run does not replay.
        """

    def compare(self, expected: Iterator[Output], output: Iterator[Output], *, is_whole: bool = True) -> bool:
        """Compare the outputs of the replay with all records of the topic.

        expected: outputs of the replay.
        output: records of the topic.
        is_whole: False if retention has deleted the beginning of the topic.

        Returns:
            False if nothing was compared, since the first records of the topic are nowhere in the replay
        """
        mine, theirs = _Ahead(expected), _Ahead(output)
        if not is_whole and not self._begin(mine, theirs):
            return False
        while True:
            wanted, found = mine.peek(), theirs.peek()
            if wanted is not None and found is not None and wanted.digest == found.digest:
                self._match(*mine.take(1), *theirs.take(1))
            elif wanted is None and (found is None or self._failed()):
                break
            else:
                self._step_over_difference(mine, theirs)
        while theirs.peek() is not None:  # the replay has failed: what comes after it is counted and no more
            self._report.delivered += len(theirs.take(1))
        self._resolve()
        return True

    def _begin(self, mine: _Ahead, theirs: _Ahead) -> bool:
        """Skip outputs of the replay up to the topic's first remaining record.

        Returns:
            False if the replay has no such output, so that nothing can be compared
        """
        first = [found.digest for number in range(ALIKE) if (found := theirs.peek(number)) is not None]
        before = 0
        while (wanted := mine.peek()) is not None:
            if first and wanted.digest == first[0] and first == self._digests(mine, len(first)):
                self._report.output_deleted += before
                return True
            before += wanted.is_due
            mine.take(1)
        self._report.undecided += before
        while theirs.peek() is not None:
            self._report.delivered += len(theirs.take(1))
        return not first

    @staticmethod
    def _digests(ahead: _Ahead, count: int) -> list[bytes]:
        return [found.digest for number in range(count) if (found := ahead.peek(number)) is not None]

    def _match(self, wanted: Output, found: Output) -> None:
        self._report.delivered += 1
        if wanted.is_saved and found.offset is not None:
            self.saved_to = found.offset + 1
        if found.digest in self._extra:
            self._copies.add(found.digest)
        self._recent.append(found.digest)
        self._there[found.digest] += 1
        if len(self._recent) > AHEAD:
            oldest = self._recent.popleft()
            self._there[oldest] -= 1
            if not self._there[oldest]:
                del self._there[oldest]

    def _step_over_difference(self, mine: _Ahead, theirs: _Ahead) -> None:
        wanted, found = self._next_alike(mine, theirs)
        gap = Gap(mine.take(wanted), theirs.take(found))
        self._report.delivered += len(gap.extra)
        if mine.peek() is None and self._failed():
            gap.extra.clear()  # the replay would have come to them
        self._gaps.append(gap)
        digests = {each.digest for each in gap.extra}
        self._extra |= digests
        self._copies |= digests & self._there.keys()
        self._held += wanted + found
        if self._held > AHEAD:
            self._resolve()

    @staticmethod
    def _next_alike(mine: _Ahead, theirs: _Ahead) -> tuple[int, int]:
        """Find the next record that both sides have.

        Returns:
            (outputs to skip in the replay, records to skip in the topic); (AHEAD, AHEAD) without a common record
        """
        places: tuple[dict[bytes, int], dict[bytes, int]] = {}, {}
        for number in range(AHEAD):
            wanted, found = mine.peek(number), theirs.peek(number)
            if wanted is not None:
                places[0].setdefault(wanted.digest, number)
            if found is not None:
                places[1].setdefault(found.digest, number)
            if wanted is not None and wanted.digest in places[1]:
                return number, places[1][wanted.digest]
            if found is not None and found.digest in places[0]:
                return places[0][found.digest], number
            if wanted is None and found is None:
                break
        return AHEAD, AHEAD

    def _resolve(self) -> None:
        """Report all records skipped on one side as findings, and remove them from memory."""
        # Equal records elsewhere; then those with key and time of a missing one, near it or further away.
        self._pair("reordered", [self._all()], lambda each: each.digest)
        for gap in self._gaps:
            for found in [each for each in gap.extra if each.digest in self._copies]:
                self._add("doubled", None, found)
            gap.extra[:] = [each for each in gap.extra if each.digest not in self._copies]
        self._pair("altered", self._gaps, lambda each: each.place)
        self._pair("altered", [self._all()], lambda each: each.place)
        for gap in self._gaps:
            self._explain(*gap)
        for held in (self._gaps, self._extra, self._copies):
            held.clear()
        self._held = 0

    def _all(self) -> Gap:
        missing = [each for gap in self._gaps for each in gap.missing]
        return Gap(missing, [each for gap in self._gaps for each in gap.extra])

    def _pair(self, kind: FindingKind, gaps: Sequence[Gap], by: Callable[[Output], bytes]) -> None:
        """Report pairs of a record missing in the topic and an extra record there.

        by: function that returns equal bytes for the two records of a pair
        """
        paired = set[int]()
        for gap in gaps:
            spare: dict[bytes, deque[Output]] = {}
            for found in gap.extra:
                spare.setdefault(by(found), deque()).append(found)
            for wanted in gap.missing:
                if left := spare.get(by(wanted)):
                    found = left.popleft()
                    paired |= {id(wanted), id(found)}
                    self._add(kind, wanted, found)
        for gap in self._gaps if paired else ():
            for side in gap:
                side[:] = [each for each in side if id(each) not in paired]

    def _explain(self, missing: list[Output], extra: list[Output]) -> None:
        """Report the records of one gap that `_pair` has not paired."""
        if len(missing) == len(extra):
            for wanted, found in zip(missing, extra, strict=True):
                self._add("altered", wanted, found)
            return
        for wanted in missing:
            if wanted.is_due:
                self._add("lost", wanted, None)
            else:
                self._report.pending += 1
        for found in extra:
            self._add("unexpected", None, found)

    def _add(self, kind: FindingKind, wanted: Output | None, found: Output | None) -> None:
        origin = None if wanted is None or wanted.offset is None else self._partition
        where = (origin, None if origin is None else wanted.offset if wanted and origin is not None else None)
        offset = None if found is None else found.offset
        detail = self._difference(wanted, found)
        if found is None:
            detail = f"partition {self._partition}: {detail}"
        self._report.add(Finding(kind, self._topic, *where, self._partition, offset, detail=detail))

    @staticmethod
    def _difference(wanted: Output | None, found: Output | None) -> str:
        if wanted is None or found is None or wanted.digest == found.digest:
            one = found or wanted
            assert one is not None  # noqa: S101 - a finding is about a record
            side = {
                (True, False): " in the replay, but not in the topic",
                (False, True): " in the topic, but not in the replay",
            }
            return f"key {shown(one.key)}, value {shown(one.value)}" + side.get((found is None, wanted is None), "")
        parts = [f"key {shown(wanted.key)}"] if wanted.key == found.key else [_both("key", wanted.key, found.key)]
        if wanted.value != found.value:
            parts.append(_both("value", wanted.value, found.value))
        if wanted.timestamp != found.timestamp:
            parts.append(f"timestamp {wanted.timestamp} in the replay, {found.timestamp} in the topic")
        if wanted[3:6] == found[3:6]:
            parts.append(f"value {shown(found.value)}, headers, or the bytes after the first {SHOWN}, differ")
        return ", ".join(parts)


def shown(data: bytes | None) -> str:
    """Return bytes from Kafka as printable text on one line, at most SHOWN bytes."""
    return "null" if data is None else repr(data[:SHOWN].decode("utf-8", "backslashreplace"))


def _both(what: str, wanted: bytes | None, found: bytes | None) -> str:
    return f"{what} {shown(wanted)} in the replay, {shown(found)} in the topic"
