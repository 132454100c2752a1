"""Course of one run of verify over a stream: starting offsets, changelog, report and state file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from kafka_ratchet.app.names import policy_topic
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.dropped import DroppedRecords, WrittenDrops, first_kept
from kafka_ratchet.app.verify.findings import Finding
from kafka_ratchet.app.verify.letters import Letters
from kafka_ratchet.app.verify.policies import PolicyTopic, check_intervals, empty_intervals, skipped_by_decision
from kafka_ratchet.app.verify.reading import OffsetRanges, TopicReader, is_other_topic, plain_id
from kafka_ratchet.app.verify.report import ComparedStart, HaltedPartition, Report, SkippedInput, UnjudgedInput
from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.app.verify.source import SourceComparison
from kafka_ratchet.app.verify.state import Baseline, Entry, KnownSequence, ProvenStream, SavedState, StateWriter
from kafka_ratchet.errors import PartitionsDiffer, PositionLost
from kafka_ratchet.tables.edits import Edit
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.topic_log.clients import OffsetRange
from kafka_ratchet.transport.owner import POLICY, RECORDS, Mark, Owner

Records = Iterator[tuple[int, RecordView]]
"""Records with their offsets."""


def without_beginning(stream: StreamSettings, partition: int, baseline: Baseline) -> PositionLost:
    """Return the error for `--results` if retention has deleted the beginning of a topic."""
    lost = baseline.input_from > 0
    topic, first = (stream.input, baseline.input_from) if lost else (stream.output, baseline.output_from)
    return PositionLost(
        f"{topic} partition {partition} begins at offset {first}: earlier records are deleted, so it is unknown which "
        "rows of the table come from them and which are wrong. To check the topics from there on, leave out --results"
    )


class EndedPartition(Protocol):
    """Compared partition; see `ExpectedPartition`."""

    baseline: Baseline

    def proven_to(self, judged_to: int, committed_to: int, letters_pending_from: int | None) -> int:
        """Return the input offset where the next run continues."""

    def known_at(self, end: int) -> Iterator[tuple[bytes, KnownSequence]]:
        """Yield each known identity with its last sequence before input offset `end`."""

    def is_complete_at(self, end: int) -> bool:
        """Return True if `known_at` yields every identity of the input before `end`."""


class Run:
    """Run over one stream: its offsets, changelog, report and state file. It does not compare records."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        reader: TopicReader,
        ranges: OffsetRanges,
        report: Report,
        contents: str = RECORDS,
    ) -> None:
        """Begin a run. contents: kind of records in the output, as the changelog's owner entry names it."""
        self._settings, self._name, self._reader = settings, name, reader
        self._ranges, self._report = ranges, report
        report.compared_to = {
            number: (committed_to, ranges.output_ends[number]) for number, committed_to in ranges.committed_to.items()
        }
        report.blocked = reader.blocked(settings.streams[name].input, ranges.input_ends, ranges.input_high)
        self._stream, self._contents = settings.streams[name], contents
        self._policies: PolicyTopic | None = None
        self._saved: SavedState | None = None
        self._writer: StateWriter | None = None
        self._all_compared = True
        self._dropped_spans: list[OffsetRange] | None = None
        self._current: tuple[int, Baseline | None] | None = None
        """Partition of the newest call of `begin`, and its state from the last run."""

    @contextmanager
    def continued(self, path: Path | None) -> Iterator[None]:
        """Continue from a state file; replace it at the end of a run without findings.

        A state saved after a loss would hide that loss from the next run.

        Raises:
            StateFileRefused: the file is damaged, belongs to another stream, rule or topic, or cannot be written.
        """
        if path is None:
            yield
            return
        proven = self._proven_stream()
        self._saved = SavedState.open(path, proven)
        try:
            self._writer = StateWriter(path, proven, self._ranges.dead_letter_ends)
            try:
                yield
                if self._saved is not None:
                    self._saved.refuse_more(self._reader.partitions)
                right = not self._report.counts and not self._report.doubtful
                self._report.state_written = self._all_compared and right
                if self._report.state_written:
                    self._writer.finish()
            finally:
                self._writer.discard()
        finally:
            if self._saved is not None:
                self._saved.close()

    def letters(self) -> Letters:
        """Read the dead letters that the last run has not read."""
        ranges = self._ranges
        begins = dict(ranges.dead_letter_begins)
        last = dict.fromkeys(begins, 0)
        if self._saved is not None:
            last.update(zip(begins, self._saved.dead_letters_from, strict=False))
        for partition, ended in last.items():
            self._refuse_shorter(self._stream.dead_letters, partition, ended, ranges.dead_letter_ends[partition])
        whole = all(begins[partition] <= last[partition] for partition in begins)
        starts = {partition: max(begins[partition], last[partition]) for partition in begins}
        before = self._report.saved()
        app, stream = self._settings.app, self._stream
        letters = Letters(app, stream.input, stream.dead_letters, whole=whole, report=self._report)
        try:
            letters.read(self._reader.dead_letters(starts, ranges.dead_letter_ends))
        except PositionLost:
            begins = self._reader.begins(self._stream.dead_letters, begins)
            if begins == ranges.dead_letter_begins:
                raise
            ranges.dead_letter_begins.update(begins)
            self._report.restore(before)
            return self.letters()
        return letters

    def begin(self, partition: int, put: Callable[[Iterable[Entry]], None] | None = None) -> Baseline:
        """Return the known state before a partition's first record. Call it in rising order of partitions.

        put: function that receives the saved entries of the partition's tables; None: tables are not needed
        """
        ranges, report = self._ranges, self._report
        input_begin, output_begin = ranges.input_begins[partition], ranges.output_begins[partition]
        if self._current is None or self._current[0] != partition:
            self._current = partition, self._saved.partition(partition, put) if self._saved is not None else None
        saved = None if self._current[1] is None else replace(self._current[1], last=dict(self._current[1].last))
        gap_from = None
        if saved is None:
            baseline = Baseline.after_retention(input_begin, output_begin)
        else:
            self._refuse_shorter(self._stream.input, partition, saved.input_from, ranges.input_ends[partition])
            self._refuse_shorter(self._stream.output, partition, saved.output_from, ranges.output_ends[partition])
            gap_from = saved.input_from if input_begin > saved.input_from else None
            baseline = saved.moved_to(input_begin, output_begin)
        if baseline.input_from or baseline.output_from:
            where = (partition, baseline.input_from, baseline.output_from)
            report.begins.append(ComparedStart(*where, saved is not None, gap_from))
        self._note_what_waits(partition)
        return baseline

    def has_moved_on(self, partition: int) -> bool:
        """Read a partition's first offsets again, and return True if retention has deleted more records."""
        stream, ranges, moved = self._stream, self._ranges, False
        for topic, begins in ((stream.input, ranges.input_begins), (stream.output, ranges.output_begins)):
            now = self._reader.begins(topic, [partition])[partition]
            moved |= now > begins[partition]
            begins[partition] = max(now, begins[partition])
        if stream.duplicates is not None and self._dropped_spans is not None:
            now, held = self._reader.begins(stream.duplicates, [partition])[partition], self._dropped_spans[partition]
            moved |= now > held.first
            self._dropped_spans[partition] = held._replace(first=max(now, held.first))
        return moved

    def check_intervals(
        self, partition: int, intervals: list[PolicyInterval], begin: int, owner: Owner | None
    ) -> list[PolicyInterval]:
        """Check a partition's policy intervals from an input offset on against the policy topic.

        Returns:
            all intervals with deduplication off, including those before the offset
        """
        unjudged = [interval for interval in intervals if not interval.deduplicate]
        if not intervals:
            return unjudged
        if self._policies is None:
            self._policies = self._reader.policies(policy_topic(self._settings.app))
        topic, known = self._policies, owner.topics.get("policy") if owner is not None else None
        if known is not None and plain_id(known.id) != plain_id(self._reader.topic_ids.get(topic.name, known.id)):
            topic = PolicyTopic(f"{topic.name} (id {known.id})", 0, 0, {})  # another one has its name now
        marks = [each.mark for each in owner.decisions if each.mark is not None] if owner is not None else []
        accepted = max((each.intervals for each in marks if POLICY in each.replaced), default=0)
        decisions = owner.decisions if owner is not None else ()
        empty = empty_intervals(intervals, decisions, self._ranges.committed_to[partition])
        checks = check_intervals(topic, self._settings, self._name, partition, intervals, begin, accepted, empty)
        for check in checks:
            self._report.policies.append(check)
            if check.verdict == "contradicted":
                at = check.policy - 1 if check.policy else None
                decided = None if at is None else 0
                where = (partition, check.start, decided, at)
                self._report.add(Finding("contradicted", topic.name, *where, detail=str(check)))
        self._report.intervals += [(partition, each.start, each.end) for each in unjudged if each.end > begin]
        return unjudged

    def edited(self, partition: int, edits: list[Edit], begin: int) -> list[Edit]:
        """Report the operators' edits that changed the state at input offset `begin` or later; return all edits."""
        self._report.edits += [(partition, each) for each in edits if each.has_changed and each.position >= begin]
        return edits

    def watched(
        self,
        sent: SourceComparison,
        rule: Rule,
        partition: int,
        baseline: Baseline,
        given: Records,
        output: Records,
    ) -> tuple[Records, Records]:
        """Pass all records of a partition to the comparison with a producer's files.

        This includes records that the comparison of topics does not read: older ones, and input that the group has not
        committed yet.

        Returns:
            iterators over `given` and `output`, which pass on each record as the caller reads it
        """
        ranges, reader, stream = self._ranges, self._reader, self._stream
        begin, committed_to = ranges.input_begins[partition], ranges.committed_to[partition]
        unread = (committed_to if committed_to > begin else begin, ranges.input_ends[partition])
        for start, end in ((begin, baseline.input_from), unread):
            for _ in sent.watch_input(partition, reader.records(stream.input, partition, end, start), rule.identify):
                pass
        begin = ranges.output_begins[partition]
        older = reader.records(stream.output, partition, baseline.output_from, begin)
        for _ in sent.watch_output(partition, older):
            pass
        return sent.watch_input(partition, given, rule.identify), sent.watch_output(partition, output)

    def watch(self, sent: SourceComparison, rule: Rule, partition: int, baseline: Baseline) -> None:
        """Pass all records of a partition to the comparison with a producer's files.

        Call it for a partition compared in legs (`kafka_ratchet.app.verify.decided`).
        """
        reader, stream, ranges = self._reader, self._stream, self._ranges
        given = reader.records(stream.input, partition, ranges.committed_to[partition], baseline.input_from)
        output = reader.records(stream.output, partition, ranges.output_ends[partition], baseline.output_from)
        for records in self.watched(sent, rule, partition, baseline, given, output):
            for _ in records:
                pass

    def is_of_other_topics(self, partition: int, owner: Owner | None) -> bool:
        """Return True if a partition's owner entry names another input or output topic than today's.

        The topic was then deleted and created again, or replaced. The partition is left out of the comparison, and
        reported as halted, because its worker halts for the same reason.
        """
        ids, report, ranges = self._reader.topic_ids, self._report, self._ranges
        parts = (("input", self._stream.input), ("output", self._stream.output))
        for part, name in parts:
            known = owner.topics.get(part) if owner is not None else None
            if not is_other_topic(known, name, ids[name]):
                continue
            reason = (
                f"its {part} was {known}, and is {name} (id {ids[name]}) now: their records cannot be compared. See "
                "docs/reference/halted.md"
            )
            report.halted.append(HaltedPartition(partition, reason))
            self.leave_out(partition, reason)
            waiting = ranges.input_high[partition] - ranges.input_begins[partition]
            report.pending += max(0, waiting - max(0, ranges.input_high[partition] - ranges.committed_to[partition]))
            return True
        return False

    def note_skipped(self, partition: int, expected: ExpectedPartition, committed_to: int) -> None:
        """Report the input that operators have skipped."""
        for skip, records in zip(expected.skips, expected.skipped, strict=True):
            if skip.start < committed_to:
                found = SkippedInput(partition, skip.start, skip.end, records, skip.by, skip.at, skip.reason)
                self._report.skipped.append(found)

    def read_skipped(self, partition: int, owner: Owner | None, decided: str) -> None:
        """Count and report the skipped input of a partition compared in legs.

        decided: time of the newest decision that an earlier run has processed; ISO 8601
        """
        for skip in skipped_by_decision(owner):
            end = min(skip.end, self._ranges.input_ends[partition])
            start = max(skip.start, self._ranges.input_begins[partition])
            if skip.at <= decided or skip.start >= self._ranges.committed_to[partition]:
                continue
            records = sum(1 for _ in self._reader.records(self._stream.input, partition, end, start))
            found = SkippedInput(partition, skip.start, skip.end, records, skip.by, skip.at, skip.reason)
            self._report.skipped.append(found)

    def dropped(self, partition: int) -> DroppedRecords | None:
        """Return an empty collection for a partition's dropped records; None if the stream does not keep them."""
        if self._stream.duplicates is None:
            return None
        return DroppedRecords(partition, values=self._stream.duplicates_keep == "all")

    def compare_dropped(
        self, dropped: DroppedRecords, expected: ExpectedPartition, owner: Owner | None, since: Mark | None
    ) -> int | None:
        """Compare the dropped records with their topic.

        since: mark with the offset where the compared records begin in the topic; None: the topic's beginning

        Returns:
            input offset of the first dropped record that workers may still write; None if all are there.

        Raises:
            TopicMissing: the topic of dropped records does not exist.
            PartitionsDiffer: the topic does not have the partition count of the input.
        """
        topic, ranges, reader = self._stream.duplicates or "", self._ranges, self._reader
        if self._dropped_spans is None:
            self._dropped_spans = reader.sent(topic)
            if len(self._dropped_spans) != reader.partitions:
                raise PartitionsDiffer(
                    f"topic {topic!r} for dropped records has {len(self._dropped_spans)} partitions, and input "
                    f"{self._stream.input!r} has {reader.partitions}: both must have the same number. Name another "
                    f"topic in streams.{self._name}.duplicates"
                )
        partition = expected.partition
        begin, end = self._dropped_spans[partition]
        first = 0 if since is None else first_kept(owner, since, topic, reader.topic_ids[topic])
        whole, begin = begin <= first, max(begin, first)
        compared = range(expected.baseline.input_from, ranges.committed_to[partition])
        kept = WrittenDrops(owner, topic, reader.topic_ids[topic], compared, whole=whole, complete=expected.is_complete)
        found = reader.records(topic, partition, end, begin)
        return dropped.compare(topic, self._stream.input, found, kept, ranges.judged[partition], self._report)

    def end(
        self,
        partition: int,
        expected: EndedPartition,
        waits_from: Iterable[int | None],
        lettered: list[int],
        owner: Owner | None,
    ) -> None:
        """Write a compared partition to the new state file, if `--state` is given.

        Args:
            partition: number of the partition.
            expected: the compared partition.
            waits_from: first input offset with a dead letter that workers may still write, and first input offset with
                a dropped record that they may still write; None: there is no such offset.
            lettered: input offsets that have their dead letters in the topic.
            owner: owner entry of the partition; all decisions in the entry have been processed.
        """
        if self._writer is None:
            return
        ranges = self._ranges
        waiting = min((each for each in waits_from if each is not None), default=None)
        ended = expected.proven_to(ranges.judged[partition], ranges.committed_to[partition], waiting)
        self._writer.add(
            partition,
            input_from=ended,
            output_from=max(expected.baseline.output_from, ranges.output_ends[partition]),
            complete=expected.is_complete_at(ended),
            letters=[offset for offset in lettered if offset >= ended],
            known=expected.known_at(ended),
            decided=max((each.at for each in owner.decisions), default="") if owner is not None else "",
        )

    def leave_out(self, partition: int | None, reason: str = "") -> None:
        """Record that a partition is not compared, and write no new state file.

        Args:
            partition: number of the partition; None: a part of the comparison is missing for every partition.
            reason: reason for the report; "": the report already has it elsewhere.
        """
        self._all_compared = False
        if partition is not None and reason:
            self._report.left_out[partition] = reason
        self._report.begins[:] = [begin for begin in self._report.begins if begin.partition != partition]

    @property
    def writes_state(self) -> bool:
        """Return True if `--state` is given."""
        return self._writer is not None

    def end_replay(self, partition: int, ended: Baseline, entries: Iterable[Entry]) -> None:
        """Write a replayed partition and its tables to the new state file, with `--state`."""
        if self._writer is not None:
            self._writer.add(
                partition,
                input_from=ended.input_from,
                output_from=ended.output_from,
                complete=True,
                letters=ended.lettered,
                known=ended.last.items(),
                entries=entries,
                decided=ended.decided,
            )

    def _note_what_waits(self, partition: int) -> None:
        ranges, report = self._ranges, self._report
        begin, committed_to, end = (
            ranges.input_begins[partition],
            ranges.committed_to[partition],
            ranges.input_high[partition],
        )
        report.pending += max(0, end - max(begin, committed_to))
        if partition in ranges.uncommitted:
            if begin > 0:
                report.never_judged.append(UnjudgedInput(partition, 0, begin, deleted=True))
            if end > begin:
                report.never_judged.append(UnjudgedInput(partition, begin, end, deleted=False))
        elif committed_to < begin:
            report.never_judged.append(UnjudgedInput(partition, committed_to, begin, deleted=True))

    def _refuse_shorter(self, topic: str, partition: int, ended: int, end: int) -> None:
        if end < ended:
            raise PositionLost(
                f"{topic} partition {partition} ends at offset {end}, and the last run ended at {ended}: the topic has "
                "lost its end. Find the cause; to prove the present records, delete the file of --state"
            )

    def _proven_stream(self) -> ProvenStream:
        stream, ids = self._stream, self._reader.topic_ids
        return ProvenStream(
            self._settings.app,
            self._name,
            str(stream.identity),
            stream.sequence,
            str(stream.sequence_form),
            stream.input,
            ids[stream.input],
            stream.output,
            ids[stream.output],
            stream.dead_letters,
            ids[stream.dead_letters],
            self._contents,
        )
