"""Replay of a stream: a program runs over its committed input again, and its results are compared with Kafka."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.verify.decided import Rules
from kafka_ratchet.app.verify.findings import Finding
from kafka_ratchet.app.verify.legs import Leg, UnknownOrder, legs_of
from kafka_ratchet.app.verify.letters import Letters
from kafka_ratchet.app.verify.reading import TopicReader, plain_id
from kafka_ratchet.app.verify.replay.outputs import Output, OutputComparison
from kafka_ratchet.app.verify.replay.partition import ReplayedPartition, spec_of
from kafka_ratchet.app.verify.replay.report import ReplayReport
from kafka_ratchet.app.verify.replay.sent import SentRecord, SentRecords, cut
from kafka_ratchet.app.verify.replay.tables import ANY_SIZE, ReplayTables
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rows import content
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.app.verify.run import Records, Run
from kafka_ratchet.app.verify.state import Baseline, KnownSequence
from kafka_ratchet.app.verify.windows import judging_of
from kafka_ratchet.app.worker.steps import with_steps
from kafka_ratchet.errors import PositionLost, SettingsError
from kafka_ratchet.tables.edits import FORGET, Edit
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.tables.values.view import close_views
from kafka_ratchet.transport.lane_spec import letters_in
from kafka_ratchet.transport.owner import AGENTS, RECORDS, Owner
from kafka_ratchet.transport.sent_topics import SentTopic


class ReplayedAgents:
    """Agents of one stream for a repeated run.

    Args:
        program: program of `ratchet worker --app`.
        named: MODULE:NAME of the program, from `--app`.
        settings: settings with the streams.
        stream: name of the stream; None: the only one with agents.

    Raises:
        SettingsError: for this stream, the program has no agent, an agent that is not deterministic, or a timer.
    """

    def __init__(self, program: App, named: str, settings: Settings, stream: str | None = None) -> None:
        self.settings = with_steps(settings, program)
        """Settings with the program's internal streams."""
        program.check(self.settings.streams)
        busy = [name for name, each in program.streams.items() if each.has_own_agents]
        self.stream, _ = self.settings.stream(busy[0] if stream is None and len(busy) == 1 else stream)
        self._program, self._named, self._agents = program, named, program.of(self.stream)
        if not self._agents:
            has = ", ".join(busy)
            raise SettingsError(
                f"streams.{self.stream}: program {named} has no agent for this stream. Name a stream with agents "
                f"({has}) with --stream"
            )
        for agent in self._agents:
            if not agent.deterministic:
                raise SettingsError(
                    f"streams.{self.stream}: agent {agent.name} is declared as not deterministic "
                    "(deterministic=False), so a replay cannot compute its outputs. Name another stream with --stream, "
                    "or make the agent depend on events and tables only"
                )

        for timer in program.streams[self.stream].timers:
            raise SettingsError(
                f"streams.{self.stream}: timer {timer.name} runs by the clocks of workers, so a replay cannot compute "
                "its outputs. Name another stream with --stream, or remove the timer from this stream"
            )

    def verify(self, bootstrap: str, state: Path | None = None) -> Report:
        """Run the agents over the committed input again, and compare outputs, dead letters and tables.

        The replay may run next to workers, and changes nothing in Kafka. Other effects of the agents, such as requests
        to a service, happen again. The replay takes 200 bytes of memory per identity of one partition at a time, 300
        per dead letter, and `state_memory_mb` for the tables' values. If outputs differ, the comparison takes some 100
        MB more. Tables are in a temporary RocksDB.

        Args:
            bootstrap: host:port[,host:port].
            state: see `kafka_ratchet.app.verify.verify`; the state file has the tables' entries, too.

        Raises:
            SettingsError: the output has forwarded records instead of agents' outputs, or the stream has settings that
                a replay does not support.
            RatchetError: see `kafka_ratchet.app.verify.verify`.
        """
        found = ReplayReport(self._named, [agent.name for agent in self._agents])
        settings = self.settings.model_copy(update={"bootstrap": bootstrap})
        return _Replay(settings, self.stream, self._program, found).run(state)


class _Replay:
    """Replay of all partitions of a stream."""

    def __init__(self, settings: Settings, name: str, program: App, found: ReplayReport) -> None:
        assert settings.bootstrap is not None  # noqa: S101 - checked by the caller
        self.settings, self.name, self.stream = settings, name, settings.streams[name]
        self.agents, self.tables = program.of(name), program.tables_of(name)
        self.found, self.report = found, Report(name, replay=found)
        self.reader = TopicReader(settings, self.stream, settings.bootstrap)
        self.dead_letters = self.reader.letters_topic()
        self.rules = Rules(self.stream, self.dead_letters)
        self.changelog = changelog_name(settings.app, name)
        # The group's offsets and the output, requested next, cover the changelog's present entries.
        self.spans = self.reader.spans(self.changelog)
        self.ranges = self.reader.offset_ranges()
        internal = [settings.streams[each.name].input for each in program.streams.values() if each.topic is not None]
        topics = sorted({*program.topics, *internal} - {self.stream.input})
        self.sends = {topic: SentTopic(self.reader.count(topic), ANY_SIZE) for topic in topics}
        self.is_unordered = sum(inspect.isasyncgenfunction(agent.function) for agent in self.agents) > 1
        """True if several agents yield. The order of their outputs then depends on the worker's batches."""
        self.is_continued = False
        self.sent_ranges = {topic: self.reader.sent(topic) for topic in self.sends}
        self.unknown = {close_views(table) for table in program.tables.values()}
        """Texts of errors from look-ups in views and global tables: their former contents are unknown."""
        for table in program.global_tables.values():
            table.problem = f"table {table.name}: changes outside the transactions of this stream"
            self.unknown.add(table.problem)
        self.progress = Run(settings, name, self.reader, self.ranges, self.report, AGENTS)

    def run(self, state: Path | None) -> Report:
        """Replay the partitions one after the other, and return the report."""
        self.is_continued = state is not None
        with self.progress.continued(state):
            letters = self.progress.letters()
            intervals, owners, edits = self.reader.changelog(self.changelog)
            if any(owner.rule.get("output", RECORDS) == RECORDS for owner in owners.values()):
                raise SettingsError(
                    f"streams.{self.name}: its output has records forwarded unchanged, and none from agents. Run "
                    "ratchet verify without --replay"
                )
            if any(map(judging_of, owners.values())):
                raise SettingsError(
                    f"streams.{self.name}: the stream has, or had, reorder_window or conflicts. Its agents cannot be "
                    "replayed, because a replay judges by rising sequences only. Run ratchet verify without --replay"
                )
            with self._sent():
                for number in range(self.reader.partitions):
                    of = owners.get(number), intervals.get(number, []), edits.get(number, [])
                    before = self.report.saved()
                    try:
                        self._compare(number, letters, *of)
                    except PositionLost as error:
                        if not self.progress.has_moved_on(number):
                            raise
                        self.report.restore(before)
                        self.leave_out(number, "outputs, dead letters and tables", str(error))
                        letters.leave_out(number)
                letters.finish()
                for topic in self.sends:
                    self._compare_sent(topic)
                if self.is_unordered:
                    self._compare_unordered()
            self.found.note_causes(found_any=not self.report.ok)
        return self.report

    @contextmanager
    def _sent(self) -> Iterator[None]:
        with TemporaryDirectory(prefix="ratchet-replay-") as folder:
            self.sent = SentRecords(Path(folder) / "store", [*self.sends, self.stream.output])
            try:
                yield
            finally:
                self.sent.close()

    def _compare_sent(self, topic: str) -> None:
        count, found, sent = self.sent.counts[topic], self.found, self.sent
        what = f"{count:,} records for {topic}"
        found.sent[topic] = count
        if not count:
            return
        if self.is_continued:
            found.leave_out(None, what, "with --state only the stream's own topics are compared")
            return
        if self.reader.is_compacted(topic):
            found.leave_out(None, what, "the topic is compacted, so that older records of a key are missing")
            return
        is_whole = True
        try:
            for partition, (begin, end) in enumerate(self.sent_ranges[topic]):
                is_whole = is_whole and begin == 0
                for offset, record in self.reader.records(topic, partition, end, begin):
                    there = SentRecord(partition, cut(record.key), cut(record.value), offset=offset)
                    sent.add(topic, content(record, with_timestamp=not found.without_time), there)
        except PositionLost as error:
            found.leave_out(None, what, str(error))
            return
        found.of_others[topic] = sent.compare(topic, self.report, is_whole=is_whole)

    def _compare_unordered(self) -> None:
        """Compare the records of the stream's output in any order."""
        if self.is_continued:
            reason = "several agents yield, so that it is unknown which of them --state has seen"
            self.found.leave_out(None, f"topic {self.stream.output}", reason)
            return
        is_whole = not any(self.ranges.output_begins.values())
        # Records after the end of the replay would be unexpected.
        is_own = all(each.partition is None for each in self.found.not_compared)
        self.sent.compare(self.stream.output, self.report, is_whole=is_whole, is_own=is_own)
        self.found.notes.append("several agents yield: their outputs were compared without their order")

    def leave_out(self, partition: int | None, what: str, reason: str) -> None:
        """Report a part as not compared, and save no state for the next run.

        partition: number of the partition; None: all; what: name of the part
        """
        self.found.leave_out(partition, what, reason)
        self.progress.leave_out(partition)

    def _compare(
        self,
        number: int,
        letters: Letters,
        owner: Owner | None,
        intervals: list[PolicyInterval],
        edits: list[Edit],
    ) -> None:
        with TemporaryDirectory(prefix="ratchet-replay-") as folder:
            kept = ReplayTables(Path(folder) / "store", self.tables, self.settings.state_memory_mb << 20)
            try:
                baseline = self.progress.begin(number, kept.put)
                if self.progress.is_of_other_topics(number, owner):
                    letters.leave_out(number)
                    return
                self._read_changelog(number, kept)
                try:
                    legs = self._legs(number, owner, baseline, kept)
                except UnknownOrder as reason:
                    self.leave_out(number, "outputs, dead letters and tables", str(reason))
                    letters.leave_out(number)
                    return
                unjudged = self.progress.check_intervals(number, intervals, baseline.input_from, owner)
                begin = baseline.saved_from or 0
                edits = self.progress.edited(number, edits, begin)
                if any(each.kind != FORGET and each.position >= begin for each in edits):
                    why = "last sequences were imported, and their values are not recorded"
                    self.leave_out(number, "outputs, dead letters and tables", why)
                    letters.leave_out(number)
                    return
                _Partition(self, number, kept, baseline, owner, unjudged, edits).compare(legs, letters)
            finally:
                kept.close()

    def _read_changelog(self, number: int, kept: ReplayTables) -> None:
        reader, name = self.reader, self.changelog
        begin, end = self.spans.get(number, (0, 0))

        def later() -> Records:
            _, newest = reader.spans(name).get(number, (0, 0))  # read after the entries, as these may be cleaned
            yield from reader.records(name, number, newest, end)

        kept.read_changelog(reader.records(name, number, end, begin), later())
        self.found.evicted += kept.evicted
        for table, offset in kept.begins.items():
            self.found.begun.setdefault(table, {})[number] = offset

    def _legs(self, number: int, owner: Owner | None, baseline: Baseline, kept: ReplayTables) -> list[Leg]:
        decisions = owner.decisions if owner is not None else ()
        end = max(self.ranges.committed_to[number], kept.position or 0)
        return legs_of(decisions, baseline.saved_from or 0, end, self.ranges.input_begins[number], baseline.decided)


class _Partition:
    """Replay and comparison of one partition."""

    def __init__(
        self,
        replay: _Replay,
        number: int,
        kept: ReplayTables,
        baseline: Baseline,
        owner: Owner | None,
        unjudged: list[PolicyInterval],
        edits: list[Edit],
    ) -> None:
        self._replay, self._number, self._kept, self._baseline, self._owner = replay, number, kept, baseline, owner
        stream = replay.stream
        topics = stream.input, stream.output, stream.dead_letters
        self._replayed = ReplayedPartition(
            spec_of(
                topics,
                number,
                stream.identity,
                replay.sends,
                letters_in(*replay.dead_letters),
                plain_id(replay.reader.topic_id(stream.input)),
                stream.event_header,
            ),
            replay.rules.of(None if owner is None else owner.rule),
            replay.agents,
            replay.tables,
            kept,
            {identity: known.sequence for identity, known in baseline.last.items()},
            unjudged,
            replay.report,
            self._take_sent,
            edits,
            begin=baseline.saved_from or 0,
            rule_of=replay.rules.of,
        )
        self._comparison = OutputComparison(
            stream.output, number, replay.report, lambda: self._replayed.failure is not None
        )
        self._known: dict[bytes, int] = {}
        """Last sequences at the input offset where the next run with `--state` continues."""

    def compare(self, legs: list[Leg], letters: Letters) -> None:
        """Replay the partition, and compare outputs, tables and dead letters."""
        replay, number, replayed, baseline = self._replay, self._number, self._replayed, self._baseline
        reader, stream, ranges = replay.reader, replay.stream, replay.ranges

        def read(start: int, end: int) -> Records:
            return reader.records(stream.input, number, end, start)

        judged, cut = ranges.judged[number], self._kept.position
        expected = replayed.outputs(read, legs, judged, cut, self._at_cut)
        output = reader.records(stream.output, number, ranges.output_ends[number], baseline.output_from)
        first = next(expected, None)  # which tells how agents read
        expected = chain(() if first is None else (first,), expected)
        there = (Output.of(record, offset, has_time=not replayed.reads_batches) for offset, record in output)
        if replay.is_unordered:
            self._take_unordered(expected, there)
        elif not self._comparison.compare(expected, there, is_whole=baseline.output_whole):
            reason = "its beginning is deleted, and its present beginning is not in the replay"
            replay.leave_out(number, f"topic {stream.output}", reason)
        replay.found.outputs += replayed.given
        replay.found.without_time |= replayed.reads_batches
        self._note_end()
        wanted = dict(sorted(replayed.letters.items()))
        if replayed.failure is not None:
            letters.leave_out(number, replayed.failed_at)
            wanted = {offset: letter for offset, letter in wanted.items() if offset < replayed.failed_at}
        _, lettered = letters.compare(number, wanted, judged, baseline, times=replayed.times)
        replay.progress.end_replay(number, self._end_state(lettered), self._kept.state())

    def _take_unordered(self, expected: Iterator[Output], there: Iterator[Output]) -> None:
        sent, topic, number = self._replay.sent, self._replay.stream.output, self._number
        for each in expected:
            sent.add(
                topic, each.digest, SentRecord(number, each.key, each.value, number, each.offset, is_due=each.is_due)
            )
        for each in there:
            self._replay.report.delivered += 1
            sent.add(topic, each.digest, SentRecord(number, each.key, each.value, offset=each.offset))

    def _take_sent(self, topic: str, partition: int, record: RecordView, offset: int | None, is_due: bool) -> None:
        key, value = cut(record.key), cut(record.value)
        sent = SentRecord(partition, key, value, self._number, offset, is_due=is_due)
        digest = content(record, with_timestamp=not self._replayed.reads_batches)
        self._replay.sent.add(topic, digest, sent)

    def _at_cut(self) -> None:
        """Compare the tables at the input offset that the changelog's entries belong to."""
        replay = self._replay
        entries, unknown = self._kept.compare(replay.changelog, self._number, replay.report)
        replay.found.entries += entries
        for table, count in sorted(unknown.items()):
            what = f"table {table}, {count:,} entries"
            replay.leave_out(self._number, what, "the changelog has it, and the program does not")
        if replay.progress.writes_state:
            self._known = dict(self._replayed.last)
            self._kept.keep_state()

    def _note_end(self) -> None:
        """Report the parts that were not compared, with the reason."""
        replay, number, failure = self._replay, self._number, self._replayed.failure
        if failure is not None and failure in replay.unknown:
            reason = f"{failure}: its former contents are unknown"
            replay.leave_out(number, f"input from offset {self._replayed.failed_at:,} on, and tables", reason)
        elif failure is not None and self._replayed.failed_early:
            detail = f"the program fails at input that workers have processed: {failure}"
            replay.report.add(Finding("contradicted", replay.stream.input, number, detail=detail))
            what = f"input from offset {self._replayed.failed_at:,} on, and tables"
            replay.leave_out(number, what, "the program failed there")
        elif self._kept.position is None and replay.ranges.committed_to[number] > 0:
            why = (
                "the changelog lacks the input offset of its entries: Kafka has compacted it during the run. "
                "Run verify again"
            )
            replay.leave_out(number, "tables", why)
        elif self._kept.position is not None and not self._kept.is_compared:
            replay.leave_out(number, "tables", "an operator has moved the partition during the run. Run verify again")

    def _end_state(self, lettered: list[int]) -> Baseline:
        """Return the state at which the next run with `--state` begins."""
        position, baseline = self._kept.position, self._baseline
        if position is None:
            return baseline
        return Baseline(
            position,
            max(baseline.output_from, self._comparison.saved_to or 0),
            {identity: KnownSequence(sequence, exact=True) for identity, sequence in self._known.items()},
            lettered=frozenset(offset for offset in lettered if offset >= position),
            decided=max((each.at for each in self._owner.decisions), default="") if self._owner else "",
        )
