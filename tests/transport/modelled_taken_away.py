"""The model of the commit path, until something is taken away from under it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.transport.client.cluster import CommittedPosition
from kafka_ratchet.transport.lane_spec import LaneState
from tests.transport.batch.known_batches import Source, encode
from tests.transport.memory_log import Record
from tests.transport.modelled_commit_path import EVICTED_IN_ALL, CommitPath
from tests.transport.modelled_input import sent
from tests.transport.modelled_worker import (
    CHANGELOG,
    DEAD,
    GROUP,
    INPUT,
    OUTPUT,
    SPEC,
    WITH_AGENTS,
    Worker,
    run,
    with_agents,
)

INPUTS_END, EVIDENCE, UNREAD = "the input's end", "the input's end, and then what shows it", "unread input"
FILLED, CHANGELOGS_END = "the changelog, and others fill the new one", "the changelog's end, and others fill it again"
RULE, APP, PROGRAM = "the rule", "the application", "the program, or that there was none"
FOREIGN = "the group's offset, by another client"
TAKEN_AWAY = (
    INPUT,
    OUTPUT,
    CHANGELOG,
    FILLED,
    CHANGELOGS_END,
    INPUTS_END,
    EVIDENCE,
    UNREAD,
    RULE,
    APP,
    PROGRAM,
    FOREIGN,
)
"""A topic: it is deleted and created again."""


class TakenAway(CommitPath):
    """Model in which something is taken away from a lane; from then on no output comes, in any event."""

    kinds: st.SearchStrategy[str] = st.sampled_from(TAKEN_AWAY)

    def __init__(self) -> None:
        super().__init__()
        self.stands: tuple[list[Record], list[Record]] | None = None
        """Output and dead letters when it was."""
        self.what = ""

    @property
    def committed_offset(self) -> int:
        """Return the group's offset of any client."""
        if self.what == FOREIGN:
            found = self.kafka.offsets.get((GROUP, INPUT, 0))
            return 0 if found is None else found.offset
        return super().committed_offset

    @precondition(lambda self: self.stands is None and (GROUP, INPUT, 0) in self.kafka.offsets)
    @precondition(lambda self: not (self._left_open or self.kafka.without_leader))
    @rule(data=st.data())
    def take_away(self, data: st.DataObject) -> None:
        """While nobody works: what a worker has read before may still come out after."""
        what = data.draw(self.kinds)
        if what in (RULE, PROGRAM, CHANGELOG, FILLED, CHANGELOGS_END) and not self._has_judged():
            what = APP  # another rule or an empty changelog is no loss as long as no record was judged
        self.what = what
        for slot in self._running():
            if data.draw(st.booleans()):
                self._stop(slot)
            else:
                self._running_worker(slot).power_off()
                self._bury()
        self.kafka.without_leader.clear()  # a worker that gave up a transaction just now may have ended leaders
        self.kafka.late.clear()
        self.kafka.late_markers.clear()
        self.was_ahead = True
        log, committed = self.kafka.logs[INPUT, 0], self.committed_offset
        if what in (INPUTS_END, EVIDENCE) and log.start < committed:
            log.truncate(data.draw(st.integers(log.start, committed - 1)))
            self._append([data.draw(sent(self.kind, self._above)) for _ in range(log.end, committed)], "none")
            self._arrive(data)
        elif what in (INPUTS_END, EVIDENCE, UNREAD):  # of what is read there is nothing left
            self._arrive(data)
            log.delete_before(log.end)
        elif what in (RULE, APP):
            self._arrive(data)
            changed = {"app": "another"} if what == APP else {"rule": {**self.spec.rule, "sequence": "another"}}
            self.spec = replace(self.spec, **changed)
        elif what == PROGRAM:
            self._arrive(data)
            self.spec = SPEC if with_agents(self.spec) else WITH_AGENTS
        elif what == FOREIGN:
            self._commit_as_another_client(data)
        elif what == CHANGELOGS_END:
            self._cut_the_changelog(data)
        elif what == FILLED:
            end = self.kafka.logs[CHANGELOG, 0].end
            self.kafka.recreate(CHANGELOG)
            self._fill_the_changelog(end)
        else:
            self.kafka.recreate(what)
            for _ in range(data.draw(st.integers(0, 9))):
                self._arrive(data)
            while data.draw(st.booleans()) and self.kafka.logs[INPUT, 0].end <= committed:  # beyond where it was read
                self._append([data.draw(sent(self.kind, self._above)) for _ in range(committed)], "none")
        self.stands = self._came_out()
        EVICTED_IN_ALL[what] += 1
        self.start(slot=0)
        self._stands_still(0)
        if what == EVIDENCE:
            self._stop(0)
            log.delete_before(committed)
            self.start(slot=0)
            self._stands_still(0)

    def _has_judged(self) -> bool:
        entries = self.kafka.logs[CHANGELOG, 0].committed()
        return any(each.key == PROGRESS and each.value and Progress.unpack(each.value).judged for each in entries)

    def _commit_as_another_client(self, data: st.DataObject) -> None:
        """A copy of our metadata is only told from our own where the changelog knows less."""
        place = GROUP, INPUT, 0
        ours = self.kafka.offsets[place]
        self._arrive(data)
        offset = data.draw(st.integers(self.kafka.logs[INPUT, 0].start, self.kafka.logs[INPUT, 0].end))
        copies = [ours.metadata] if offset > ours.offset else []
        self.kafka.offsets[place] = CommittedPosition(
            offset, data.draw(st.sampled_from(["", f"{ours.metadata}\0", *copies]))
        )

    def _cut_the_changelog(self, data: st.DataObject) -> None:
        """Cut the changelog after a worker has read it and ended well: its store has the position.

        The group's offset shows it to workers without that store, so a commit that moved the offset is cut. Commits
        at the same offset (an operator's forget, an eviction) are made again by whoever does not find them.
        """
        self.start(slot=0)
        self.go_on(5)
        self._stop(0)
        self.stands = self._came_out()  # whatever came of that
        log = self.kafka.logs[CHANGELOG, 0]
        end = log.end
        last = min(
            batch.offset
            for batch in log.batches
            for record in batch.records
            if record.key == PROGRESS and Progress.unpack(record.value or b"").next >= self.committed_offset
        )
        # A share, not an offset: how many commits there are may differ by one when Hypothesis repeats a run.
        log.truncate(log.start + (last - log.start) * data.draw(st.integers(0, 100)) // 100)
        self._fill_the_changelog(end)

    def _fill_the_changelog(self, end: int) -> None:
        """Beyond what it had."""
        log = self.kafka.logs[CHANGELOG, 0]
        entries = [Source(b"i%d" % number, number.to_bytes(8, "big")) for number in range(end - log.end + 1)]
        clock = self.kafka.stamped.get(CHANGELOG)
        log.append(encode(entries), at_ms=clock() if clock else -1)

    @precondition(lambda self: None in self.workers and not (self.stands and self.what == CHANGELOGS_END))
    @rule(what=st.sampled_from(["lose", "keep a copy", "put back a copy", "put back another's copy"]))
    def meddle_with_the_store(self, what: str) -> None:
        """An older copy of the store may have ended where its log had not been looked at yet."""
        self._meddle_with_the_store(what)

    def _running_worker(self, slot: int) -> Worker:
        worker = self.workers[slot]
        assert worker is not None
        return worker

    def _came_out(self) -> tuple[list[Record], list[Record]]:
        return self.kafka.logs[OUTPUT, 0].committed(), self.kafka.logs[DEAD, 0].committed()

    def _stands_still(self, slot: int) -> None:
        """It halts with a sentence, and goes on halting."""
        run(self.loop, asyncio.sleep(100))
        status = self._running_worker(slot).lane.status
        assert status.state is LaneState.HALTED, status
        assert status.error is not None

    @invariant()
    def nobody_halts(self) -> None:
        if self.stands is None:
            super().nobody_halts()

    @invariant()
    def committed_is_what_the_oracle_says(self) -> None:
        if self.stands is not None:
            assert self._came_out() == self.stands
        elif not self._left_open:
            super().committed_is_what_the_oracle_says()

    def teardown(self) -> None:
        if self.stands is None:
            return super().teardown()
        try:
            self._end_failures()
            for slot in self._running():
                self._stop(slot)
            self.workers = [self._new_worker("last"), None]
            run(self.loop, self._running_worker(0).start())
            self._stands_still(0)
            assert self._came_out() == self.stands
            self._stop(0)
        finally:
            self.close()
        return None
