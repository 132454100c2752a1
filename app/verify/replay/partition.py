"""Replay of one partition: the program processes the records that verify's own rule finds fresh.

The program runs as in a worker (`kafka_ratchet.agents.run`). Verify's rule, which chooses the records, shares no code
with the worker.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import numpy as np
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from kafka_ratchet.agents.program import Agent
from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.app.verify.legs import Leg
from kafka_ratchet.app.verify.letters import own_headers
from kafka_ratchet.app.verify.replay.outputs import Output
from kafka_ratchet.app.verify.replay.tables import ANY_SIZE, ReplayTables
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rows import content
from kafka_ratchet.app.verify.rule import RecordView, Rule, only_header, was_replayed
from kafka_ratchet.errors import RatchetError
from kafka_ratchet.rule.form_look import FormFinder
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.edits import Edit
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.policy import Policy
from kafka_ratchet.transport.sent_topics import SentTopics

RECORDS_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 1 << 20
"""Maximum number of bytes of a batch for the program. Workers use other batches, so outputs must not depend on them."""
Rows = list[tuple[int, RecordView]]
Given = list[tuple[int, RecordView, int]]
"""Records for the program: offset, record, and its sequence or UNJUDGED."""
Produced = list[tuple[str, int, RecordView]]
"""Records from the program: topic, partition, record."""
Send = Callable[[str, int, RecordView, int | None, bool], None]
"""Function called with each record that agents send to another topic.

Arguments: topic, partition, record, input offset of its event (None: unknown), True if workers must already have sent
the record.
"""
UNJUDGED: Final = -1
Read = Callable[[int, int], Iterator[tuple[int, RecordView]]]
"""Function that returns the committed input records from one offset to before another."""


def spec_of(
    topics: tuple[str, str, str],
    partition: int,
    identity: Identity,
    sends: SentTopics,
    letters: bytes = b"",
    input_id: str = "",
    event_header: str = "",
) -> LaneSpec:
    """Return the settings of a lane for a replay, which sends nothing to Kafka.

    topics: names of the input, the output and the topic of dead letters
    """
    return LaneSpec(
        *(topics[0], partition, topics[1], topics[2]),
        group="replay",
        transactional_id="replay",
        identity_header=(identity.header or "").encode(),
        compression="none",
        output_limit=ANY_SIZE,
        dead_letters_limit=ANY_SIZE,
        sends=sends,
        letters=letters,
        input_id=input_id,
        event_header=event_header,
    )


class ReplayedPartition:
    """Replay of one input partition, with the program's outputs and tables.

    It replays the partition in legs: parts of the input between operators' decisions (`kafka_ratchet.app.verify.legs`).
    """

    def __init__(
        self,
        spec: LaneSpec,
        rule: Rule,
        agents: Sequence[Agent],
        tables: Sequence[Table],
        kept: ReplayTables,
        last: dict[bytes, int],
        unjudged: Sequence[PolicyInterval],
        report: Report,
        send: Send,
        edits: Sequence[Edit] = (),
        *,
        begin: int = 0,
        rule_of: Callable[[Mapping[str, str]], Rule] | None = None,
    ) -> None:
        """Prepare the partition.

        Args:
            spec: see `spec_of`.
            rule: rule of the stream, for legs without a rule of their own.
            agents: agents of the stream.
            tables: tables of the stream.
            kept: state of the tables.
            last: last sequence by identity.
            unjudged: intervals of the input with deduplication off.
            report: receives the counts.
            send: function called with each record that agents send to other topics.
            edits: all operators' edits of the partition, in order.
            begin: input offset of the first record; earlier edits of the first leg are applied already.
            rule_of: function that returns the rule for a leg's settings; None: all legs have `rule`.
        """
        self._all_edits, self._begin = edits, begin
        self._edits = deque[Edit]()
        self._default_rule, self._rule_of = rule, rule_of
        self._send = send
        self._spec, self._rule, self._kept, self._report = spec, rule, kept, report
        self._forms = None if rule.guessed_header is None else FormFinder(rule.guessed_header)
        self.last = last
        self._intervals = unjudged
        self._unjudged: list[range] = []
        self._program = PartitionProgram(agents, tables, kept.partition)
        self.letters: dict[int, bytes] = {}
        """Digest of the dead letter's content, by input offset of each record that must become one."""
        self.times: defaultdict[int, int] = defaultdict(int)
        """Number of dead letters by input offset: two agents may each write one."""
        self.given = 0
        """Number of outputs so far that the topic must have."""
        self.reads_batches = False
        """True if an agent reads batches of events; set before the first output.

        Its outputs may have the timestamp of a whole batch. The replay has other batches, so timestamps are not
        compared.
        """
        self.failure: str | None = None
        """Error that ended the program in the replay; None: the program has not failed."""
        self.failed_early = False
        """True if workers have committed the batch that makes the program fail in the replay."""
        self.failed_at = 0
        """Input offset of the batch that failed; outputs from there on are unknown."""

    def outputs(
        self, read: Read, legs: Sequence[Leg], judged: int, cut: int | None, at_cut: Callable[[], None]
    ) -> Iterator[Output]:
        """Run the program over the input, and yield its outputs.

        Args:
            read: function that reads this input partition.
            legs: legs of the input.
            judged: input offset before which outputs must be in the output topic.
            cut: input offset in the last leg at which to call `at_cut`; None: never.
            at_cut: function called between the records before and after `cut`.
        """
        with asyncio.Runner() as runner:
            try:
                for number, leg in enumerate(legs, 1):
                    self._take_leg(leg, self._begin if number == 1 else 0)
                    stops = (cut, judged) if number == len(legs) else ()
                    begins = self._begins_in(legs[number - 1 :])
                    start = leg.start
                    for stop in sorted({each for each in (*stops, *begins) if _is_in(each, leg)} | {leg.end}):
                        is_due, is_saved = not stops or stop <= judged, not stops or cut is None or stop <= cut
                        for rows in _at_once(read(start, stop)):
                            yield from self._through(runner, rows, is_due, is_saved)
                            if self.failure is not None:
                                return
                        self._follow_edits(stop if stop == leg.end and leg.until is not None else stop - 1)
                        if stop in begins:
                            self._kept.begin_tables(stop)
                        if stops and stop == cut:
                            at_cut()
                        start = stop
            finally:
                self._program.abandon()
                if self._forms is not None:
                    self._forms.finish()
                    if self._forms.found is not None:
                        self._report.doubtful[self._spec.partition] = self._forms.found

    def _begins_in(self, legs: Sequence[Leg]) -> set[int]:
        """Return the offsets at which workers began tables in the first of `legs`.

        An offset that a later leg contains as well is left out; it counts for the later leg.
        """
        leg, *later = legs
        begins = {each for each in self._kept.begins.values() if _is_in(each, leg)}
        return {each for each in begins if not any(_is_in(each, other) for other in later)}

    def _take_leg(self, leg: Leg, begin: int) -> None:
        """Start a leg: set its rule, its policy intervals, and its edits from input offset `begin` on."""
        if leg.forgets:
            self.last.clear()
        self._rule = self._default_rule
        if leg.rule is not None and self._rule_of is not None:
            self._rule = self._rule_of(leg.rule)
        self._unjudged = [range(each.start, each.end) for each in leg.intervals(self._intervals)]
        edits = leg.edits(self._all_edits)
        self._edits = deque(each for each in edits if each.has_changed and each.position >= begin)

    def _through(self, runner: asyncio.Runner, rows: Rows, is_due: bool, is_saved: bool) -> Iterator[Output]:
        fresh = [(*row, sequence) for row in rows if (sequence := self._judge(*row)) is not None]
        # A worker's batch is judged as a whole, or not at all.
        for is_judged, some in groupby(fresh, lambda each: each[2] != UNJUDGED):
            given = list(some)
            try:
                produced = runner.run(self._run(given, is_judged))
                self._kept.commit(len(given))
            except RatchetError as error:
                self.failure, self.failed_early, self.failed_at = str(error), is_due, given[0][0]
                return
            yield from self._take(given, produced, is_due, is_saved)

    def _take(self, given: Given, produced: Produced, is_due: bool, is_saved: bool) -> Iterator[Output]:
        origins = _Origins(given)
        for topic, partition, record in produced:
            if topic == self._spec.output:
                self.given += is_due
                has_time = not self.reads_batches
                yield Output.of(record, origins.of(record), is_due=is_due, is_saved=is_saved, has_time=has_time)
            elif topic == self._spec.dead_letters:
                own = own_headers(record.headers)
                offset = int(dict(record.headers)["ratchet-offset"] or b"")
                self._expect_letter(offset, RecordView(record.key, record.value, own, 0))
            else:
                self._send(topic, partition, record, origins.of(record), is_due)

    async def _run(self, given: Given, is_judged: bool) -> Produced:
        batch = batch_of(self._spec, [(offset, record) for offset, record, _ in given])
        delivery = Delivery(self._spec, Policy(deduplicate=is_judged), batch)
        if is_judged:
            delivery.sequences = np.array([sequence for _, _, sequence in given], np.int64)
        await self._program.take(delivery, np.ones(batch.count, np.bool_))
        self.reads_batches |= any(run.reads_batches for run in self._program.runs)
        return [
            (topic, partition, record)
            for topic, partition, encoded in delivery.outputs
            for record in views(read_chunk(topic, partition, 0, bytes(encoded.seal(1, 0, 0)), [], most=ANY_SIZE))
        ]

    def _follow_edits(self, offset: int) -> None:
        """Apply the edits of `ratchet forget` that workers applied at or before this input offset."""
        while self._edits and self._edits[0].position <= offset:
            edit = self._edits.popleft()
            if edit.above is None:
                self.last.pop(edit.name, None)
            elif edit.name in self.last:
                self.last[edit.name] = min(self.last[edit.name], edit.above)

    def _judge(self, offset: int, record: RecordView) -> int | None:
        """Return the sequence of a record for the program; None for any other record.

        Returns:
            sequence, or UNJUDGED while deduplication was off; None if the program does not get the record
        """
        if any(offset in interval for interval in self._unjudged):
            self._report.unjudged += 1
            return UNJUDGED
        self._follow_edits(offset)
        found = self._rule.identify(record)
        if self._forms is not None and not was_replayed(record):
            last = -1 if found is None else self.last.get(found[0], -1)
            self._forms.add(offset, only_header(record.headers, self._rule.guessed_header or ""), last)
        if found is None:
            self._report.invalid += 1
            self._expect_letter(offset, record)
            return None
        identity, sequence = found
        if sequence <= self.last.get(identity, -1):
            if self._rule.is_kept(record):
                self._report.invalid += 1
                self._expect_letter(offset, record)
            else:
                self._report.duplicate += 1
            return None
        self.last[identity] = sequence
        self._report.fresh += 1
        return sequence

    def _expect_letter(self, offset: int, record: RecordView) -> None:
        self.letters[offset] = content(record, with_timestamp=False)
        self.times[offset] += 1


class _Origins:
    """Search for the event of an output, by key and timestamp.

    Call `of` for outputs in the order of their events.
    """

    def __init__(self, given: Given) -> None:
        self._offsets: dict[tuple[bytes | None, int], list[int]] = {}
        self._newest = -1
        for offset, record, _ in given:
            self._offsets.setdefault((record.key, record.timestamp_ms), []).append(offset)

    def of(self, record: RecordView) -> int | None:
        """Return the input offset of an output's event; None if no event has its key and timestamp."""
        found = self._offsets.get((record.key, record.timestamp_ms))
        if found is None:
            return None
        self._newest = next((offset for offset in found if offset >= self._newest), found[0])
        return self._newest


def _is_in(offset: int | None, leg: Leg) -> bool:
    return offset is not None and leg.start <= offset <= leg.end


def _at_once(records: Iterator[tuple[int, RecordView]]) -> Iterator[Rows]:
    rows, size = Rows(), 0
    for offset, record in records:
        rows.append((offset, record))
        size += len(record.key or b"") + len(record.value or b"")
        if len(rows) == RECORDS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield rows
            rows, size = Rows(), 0
    if rows:
        yield rows


def batch_of(spec: LaneSpec, rows: Rows) -> RecordBatch:
    """Return records as a batch, as a lane would have fetched it. rows: input offset and record of each."""
    first = rows[0][0]
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, ANY_SIZE)
    for offset, record in rows:
        builder.append(offset - first, 0, record.key, record.value, record.headers)
    data = builder.build()
    data[:8] = first.to_bytes(8, "big")
    name = spec.identity_header
    batch = read_chunk(spec.topic, spec.partition, first, bytes(data), [], identity_header=name, most=ANY_SIZE)
    # Timestamps are set here, because the builder takes the timestamp -1 (none) for a batch without records.
    batch.timestamps[:] = [record.timestamp_ms for _, record in rows]
    return batch


def views(batch: RecordBatch) -> Iterator[RecordView]:
    """Yield the records of a batch."""
    for index in range(batch.count):
        headers: list[tuple[str, bytes | None]] = [(name, value) for name, value in batch.headers(index)]
        yield RecordView(batch.key(index), batch.value(index), headers, int(batch.timestamps[index]))
