"""Check of a stream: recomputes its output and dead letters from its input, and compares them with the topics."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.repartition import RepartitionSettings, arrivals_of
from kafka_ratchet.app.settings import Settings, StreamSettings, with_arrivals
from kafka_ratchet.app.status.results import result_stream
from kafka_ratchet.app.verify.arrivals import Identify, compare_arrivals
from kafka_ratchet.app.verify.columns.choice import Changelog, ColumnComparison
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.decided import DecidedPartition, JoinedLegs, Rules, legs_now, not_followed
from kafka_ratchet.app.verify.findings import Finding, FindingKind, IntervalCheck
from kafka_ratchet.app.verify.identities import OutputRecords
from kafka_ratchet.app.verify.letters import Letters, Order
from kafka_ratchet.app.verify.policies import skipped_by_decision
from kafka_ratchet.app.verify.reading import OffsetRanges, TopicReader, halted_partitions
from kafka_ratchet.app.verify.report import (
    BY_COMPACTION,
    ComparedStart,
    ExitCode,
    HaltedPartition,
    Report,
    SkippedInput,
    UnjudgedInput,
)
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.app.verify.run import Run, without_beginning
from kafka_ratchet.app.verify.source import SourceComparison, SourceFiles
from kafka_ratchet.app.verify.windows import judging_of
from kafka_ratchet.errors import PositionLost, SettingsError, TopicError
from kafka_ratchet.transport.owner import AGENTS, Mark, Owner

if TYPE_CHECKING:
    from kafka_ratchet.app.verify.results import ResultTable, Session

__all__ = [
    "ComparedStart",
    "ExitCode",
    "Finding",
    "FindingKind",
    "HaltedPartition",
    "IntervalCheck",
    "RecordView",
    "Report",
    "SkippedInput",
    "SourceFiles",
    "UnjudgedInput",
    "halted_partitions",
    "verify",
    "verify_results",
]

TRIES: Final = 20
"""Maximum number of reads of one partition if retention deletes its first records during each read."""


def verify(
    settings: Settings,
    stream: str | None = None,
    *,
    state: Path | None = None,
    source: SourceFiles | None = None,
    independent: bool | None = None,
) -> Report:
    """Compare a stream's output and dead letters with those recomputed from its input.

    The comparison ends at the offsets that the group `settings.app` has committed. It may run next to workers, and
    changes nothing. All records from intervals with deduplication off must be in the output, and the policy topic must
    confirm these intervals. If retention has deleted the beginning of a topic, the comparison starts after the deleted
    records, and the report has this starting offset.

    The quick comparison over columns uses the worker's reader and compiled rule. Its result counts only for partitions
    without any finding. All other partitions are compared record by record, with librdkafka and verify's own rule, and
    `Report.singly` has the reasons. The comparison record by record reads one partition at a time. It takes some 200
    bytes of memory per fresh record, 400 per identity, and 300 per dead letter. The comparison over columns reads two
    to four partitions at a time. Each takes some 80 MB of memory, and 150 bytes per identity.

    Args:
        settings: with `bootstrap` set.
        stream: name of the stream; None for the only one.
        state: file with the end of the last run. A run without findings replaces it. It need not exist.
        source: files that a producer has published to the input, to compare with Kafka as well; None: no files.
        independent: True: compare record by record; False: over columns if possible; None: over columns if possible
            and if there is enough input.

    Raises:
        SettingsError: stream or bootstrap are unknown, an extractor cannot be imported, or the options do not fit the
            stream.
        StateFileRefused: the state is damaged, or belongs to another stream, application, topic or rule.
        TopicMissing: the input or output, or the topic of dead letters or dropped records, does not exist.
        PartitionsDiffer: the output, or the topic of dropped records, has another partition count than the input.
        OwnerDiffers, StateError: an entry of the changelog was written by a newer Ratchet.
        SourceError: the files of `source` cannot be read.
        PositionLost: a topic ends before the committed offset or before the end of the last run, or retention has
            deleted records during every read.
        ForeignOffset: another client has committed offsets in the worker's group.
        BrokerUnavailable: Kafka does not answer.
        TransportError: a partition cannot be read.
    """
    settings = with_arrivals(settings)
    name, chosen = settings.stream(stream)
    return _verify(settings, name, chosen, _bootstrap(settings), None, state, source, independent)


def verify_results(
    settings: Settings, stream: str | None, session: Session, *, source: SourceFiles | None = None
) -> Report:
    """Run `verify`, and check that the result table has each record of the output once.

    The table is read before the output, so the job may run at the same time. In addition to `verify`, an append-only
    table takes eight bytes of memory for each row, and a table with a key some 700 for each key. Each record of one
    output partition takes 16 bytes more.

    Args:
        settings: with `bootstrap` set.
        stream: name of the stream; None: the stream in `sink.stream`, or the only one.
        session: function that starts Spark; not called if sink.sql or sink.transform makes the rows.
        source: see `verify`.

    Raises:
        SetupError: the table cannot be read.
        PositionLost: retention has deleted the beginning of input or output.
        SettingsError: see `verify`; or the results belong to another stream.
        RatchetError: see `verify`.
    """
    from kafka_ratchet.app.verify.raw import verify_raw
    from kafka_ratchet.app.verify.results import ResultTable

    settings = with_arrivals(settings)
    name, chosen = result_stream(settings, stream)
    if settings.sink.stream not in {None, name}:
        raise SettingsError(
            f"sink.stream: the result table has the records of stream {settings.sink.stream!r}, not of {name!r}. "
            "Leave out --stream"
        )
    if settings.sink.from_input:
        if source is not None:
            raise SettingsError(
                f"streams.{name}: --source compares files with the output topic, and a stream with sink.from_input has "
                "none. Leave out --source"
            )
        return verify_raw(settings, name, chosen, _bootstrap(settings), session)
    table = ResultTable(settings, chosen.output, _bootstrap(settings), session)
    return _verify(settings, name, chosen, _bootstrap(settings), table, None, source, None)


def _bootstrap(settings: Settings) -> str:
    if settings.bootstrap is None:
        raise SettingsError("bootstrap is missing. Set it to the address of the stream's Kafka")
    return settings.bootstrap


def _verify(
    settings: Settings,
    name: str,
    chosen: StreamSettings,
    bootstrap: str,
    table: ResultTable | None,
    state: Path | None,
    source: SourceFiles | None,
    independent: bool | None,
) -> Report:
    if isinstance(chosen, RepartitionSettings):
        raise SettingsError(
            f"streams.{name}: this internal stream is verified together with stream {chosen.of}. "
            f"Write --stream {chosen.of}"
        )
    if source is not None and chosen.repartition_by is not None:
        raise SettingsError(
            f"streams.{name}: --source does not work with repartition_by, because Ratchet copies each record from the "
            "producer's partition to the partition of the record's identity. Leave out --source"
        )
    if source is not None and not chosen.forward:
        raise SettingsError(
            f"streams.{name}: --source searches the output for the records of the files, and a stream with "
            "forward = false has none there. Leave out --source"
        )
    options = {"--results": table, "--source": source}
    reader = TopicReader(settings, chosen, bootstrap)
    rules = Rules(chosen, reader.letters_topic())
    rule = rules.of()
    sent = None if source is None else SourceComparison(source, reader.published(source.producer))
    if table is not None:
        table.read()
    ranges = reader.offset_ranges()
    report = Report(name)
    run = Run(settings, name, reader, ranges, report)
    with run.continued(state):
        letters = run.letters()
        intervals, owners, edits = reader.changelog(changelog_name(settings.app, name))
        if any(owner.rule.get("output") == AGENTS for owner in owners.values()):
            raise SettingsError(
                f"streams.{name}: agents of a program write the output, and without --replay verify compares only "
                "records forwarded unchanged. Run the agents over the input again: "
                f"ratchet verify --replay --app MODULE:NAME --stream {name}"
            )
        if state is not None and any(map(judging_of, owners.values())):
            raise SettingsError(
                f"streams.{name}: the stream has, or had, reorder_window or conflicts, and the file of --state cannot "
                "hold the state of these settings. Run verify without --state"
            )
        as_columns = ColumnComparison(
            settings,
            bootstrap,
            chosen,
            ranges,
            Changelog(intervals, owners, edits),
            reader.topic_ids,
            report,
            independent=independent,
            more=next((option for option, given in options.items() if given is not None), None),
            state=state is not None,
        )
        comparison = _Comparison(
            chosen,
            reader,
            rules,
            ranges,
            report,
            run,
            letters,
            as_columns,
            Changelog(intervals, owners, edits),
            table,
            sent,
        )
        for partition in range(reader.partitions):
            comparison.of_partition(partition)
        letters.finish()
        if isinstance(arrivals := settings.streams.get(arrivals_of(name)), RepartitionSettings):
            owned = reader.changelog(changelog_name(settings.app, arrivals_of(name)))[1]
            _compare_arrivals(reader, arrivals, owned, rule.identity_of, report)
    if report.counts and report.counts.keys() <= BY_COMPACTION:
        with suppress(TopicError):  # without the right to read the setting, findings stay findings
            report.input_compacted = reader.is_compacted(chosen.input)
    if table is not None:
        report.results = table.finish()
    if sent is not None:
        report.source = sent.finish(
            ranges.judged, ranges.input_begins, ranges.output_begins, {each.partition for each in report.blocked}
        )
    return report


@dataclass
class _Comparison:
    """Comparison of the topics of one stream with its input, one partition after the other."""

    chosen: StreamSettings
    reader: TopicReader
    rules: Rules
    ranges: OffsetRanges
    report: Report
    run: Run
    letters: Letters
    as_columns: ColumnComparison
    changelog: Changelog
    table: ResultTable | None
    sent: SourceComparison | None

    def of_partition(self, partition: int) -> None:
        """Compare the output and the dead letters of one partition with its input.

        The comparison starts again if retention deletes the partition's first records while they are read.

        Raises:
            RatchetError: see `verify`.
        """
        before = self.report.saved()
        for left in reversed(range(TRIES)):
            try:
                self._compare(partition)
                return
            except PositionLost:
                if not left or not self.run.has_moved_on(partition):
                    raise
            self.report.restore(before)
            before = self.report.saved()
            if self.sent is not None:
                self.sent.drop(partition)

    def _compare(self, partition: int) -> None:
        chosen, reader, rules, ranges, report = self.chosen, self.reader, self.rules, self.ranges, self.report
        run, letters, table, sent = self.run, self.letters, self.table, self.sent
        intervals, edits, owner = self.changelog.intervals, self.changelog.edits, self.changelog.owners.get(partition)
        baseline = run.begin(partition)
        if run.is_of_other_topics(partition, owner):
            self._leave_out(partition)
            return
        if table is not None and (baseline.input_from or baseline.output_from):
            raise without_beginning(chosen, partition, baseline)
        unjudged = run.check_intervals(partition, list(intervals.get(partition, ())), baseline.input_from, owner)
        changed = run.edited(partition, list(edits.get(partition, ())), baseline.input_from)
        unjudged, changed = not_followed(owner, baseline.decided, unjudged, changed)
        if (exact := self.as_columns.exact(partition, baseline)) is not None:
            exact.add_to(report)
            waits_from, lettered = letters.compare(partition, exact.invalid, ranges.judged[partition], baseline)
            run.end(partition, exact, [waits_from], lettered, owner)
            return
        try:
            one = rules.of(None if owner is None else owner.rule)
            for decision in owner.decisions if owner is not None else ():
                rules.of(None if decision.mark is None else decision.mark.rule)
        except SettingsError as error:
            run.leave_out(partition, f"an earlier rule of its records cannot be used: {error}")
            self._leave_out(partition)
            return
        written: Order | None = None
        since: Mark | None = None
        in_table: tuple[ExpectedPartition | JoinedLegs, OutputRecords] | None = None
        dropped = run.dropped(partition)
        on_dropped = dropped.expect if dropped is not None else None
        if legs := legs_now(owner, baseline, ranges.committed_to[partition]):
            decided = DecidedPartition(chosen, reader, rules, ranges, report, partition)
            compared = decided.compare(legs, baseline, owner, unjudged, changed, on_dropped)
            expected, invalid, written, since = compared.last, compared.invalid, compared.letters, legs[0].since
            if sent is not None:
                run.watch(sent, one, partition, baseline)
            if table is not None:
                together = JoinedLegs(compared, ranges.judged[partition])
                in_table = together, together.emitted
            if since is not None:
                letters.leave_out_before(partition, since.dead_letters)
            run.read_skipped(partition, owner, baseline.decided)
        else:
            expected = ExpectedPartition(
                one,
                partition,
                unjudged,
                baseline,
                skipped_by_decision(owner),
                changed,
                judging_of(owner),
                forward=chosen.forward,
                on_dropped=on_dropped,
            )
            given = reader.records(chosen.input, partition, ranges.committed_to[partition], baseline.input_from)
            output = reader.records(chosen.output, partition, ranges.output_ends[partition], baseline.output_from)
            if sent is not None:
                given, output = run.watched(sent, one, partition, baseline, given, output)
            for offset, record in given:
                expected.add_input(offset, record, report)
            emitted = None if table is None else OutputRecords()
            expected.compare(chosen.output, output, ranges.judged[partition], report, emitted)
            if emitted is not None:
                in_table = expected, emitted
            invalid = expected.invalid
            run.note_skipped(partition, expected, ranges.committed_to[partition])
        dropped_wait = None if dropped is None else run.compare_dropped(dropped, expected, owner, since)
        # Last: nothing is read after them, and neither rows nor dead letters can be compared a second time.
        if table is not None and in_table is not None:
            table.compare(*in_table, ranges.judged[partition])
        letters_wait, lettered = letters.compare(partition, invalid, ranges.judged[partition], baseline, written)
        run.end(partition, expected, [letters_wait, dropped_wait], lettered, owner)

    def _leave_out(self, partition: int) -> None:
        """Exclude a partition's dead letters and rows of the table from the comparison."""
        self.letters.leave_out(partition)
        if self.table is not None:
            self.table.leave_out(partition)


def _compare_arrivals(
    reader: TopicReader, arrivals: RepartitionSettings, owners: dict[int, Owner], identify: Identify, report: Report
) -> None:
    """Compare the input with the internal topic of a stream with `repartition_by`.

    The comparison starts again if retention deletes records while they are read.
    """
    before = report.saved()
    for left in reversed(range(TRIES)):
        try:
            compare_arrivals(reader, arrivals, owners, identify, report)
            return
        except PositionLost:
            if not left:
                raise
        report.restore(before)
        before = report.saved()
