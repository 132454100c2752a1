"""The model of the commit path: what must hold after each step, and at the end."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, Phase
from hypothesis.stateful import invariant, precondition

from kafka_ratchet.tables.edits import EDIT, Edit
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.policy_intervals import POLICY_INTERVAL, PolicyInterval
from kafka_ratchet.tables.totals import EVICTED, PROGRESS, EvictedTotals, Progress
from kafka_ratchet.tables.values.own_table import OWN
from kafka_ratchet.transport.delivery import LETTER_AGENTS, LETTER_APP, LETTER_EVENT
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.owner import KEY as OWNER
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.policy import ForgetRequest
from tests.transport.batch.known_batches import HEAD
from tests.transport.memory_log import Record
from tests.transport.modelled_failures import Failures
from tests.transport.modelled_input import all_names
from tests.transport.modelled_oracle import Expected, Transaction
from tests.transport.modelled_program import LATE_S, TABLES, Plain
from tests.transport.modelled_windows import check_entry
from tests.transport.modelled_worker import CHANGELOG, DEAD, INPUT, OUTPUT, run, with_agents

TABLE_ENTRY = b"t"
"""First byte of the keys of such entries."""
CHECKS: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "stateful_step_count": 40,
    "print_blob": True,
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
}
EVICTED_IN_ALL = Counter[str]()
"""Evictions of all workers that came to the end of a run."""


class CommitPath(Failures):
    """Two workers and one partition."""

    @invariant()
    def nobody_halts(self) -> None:
        for worker in filter(None, self.workers):
            assert worker.lane.status.state is not LaneState.HALTED, worker.lane.status.error

    def transactions(self) -> list[Transaction]:
        """Return the committed transactions of the changelog, in order; each begins with its progress."""
        log, found = self.kafka.logs[CHANGELOG, 0], list[Transaction]()
        owner: Owner | None = None
        for batch in log.history:
            if not batch.committed or batch.offset >= log.stable_end:
                continue
            for key, value, _ in batch.records:
                if key == PROGRESS:
                    at_s = HEAD.unpack_from(batch.data)[8] // 1000
                    found.append(Transaction(Progress.unpack(value or b""), at_s, [], None, {}, [], owner))
                elif key == OWNER:
                    before, owner = owner, Owner.unpack(value or b"")
                    if owner.decisions and (before is None or before.decisions != owner.decisions):
                        found[-1] = found[-1]._replace(decision=owner.decisions[-1])
                elif key is not None and key.startswith(POLICY_INTERVAL):
                    intervals = (*found[-1].intervals, PolicyInterval.unpack(key, value or b""))
                    found[-1] = found[-1]._replace(intervals=intervals)
                elif key == EVICTED:
                    found[-1] = found[-1]._replace(evicted=EvictedTotals.unpack(value or b""))
                elif key is not None and key.startswith(EDIT):
                    found[-1].edits.append(Edit.unpack(key, value or b"")[1])
                elif key is not None and key.startswith(TABLE_ENTRY):
                    if not key.startswith(OWN):  # how each table's entries are written
                        found[-1].tables[key] = value
                elif key is not None and value is None:
                    found[-1].gone.append(key[1:])
        return found

    def expected(self) -> Expected:
        """Return the oracle's expectation for the committed transactions."""
        unjudged = [range(each.start, each.end) for each in self.unjudged()]
        program = Plain() if with_agents(self.spec) else None
        requests = {each.id: each for each in self.policies if isinstance(each, ForgetRequest)}
        expected, begin = Expected(self.bounds or EvictionLimits(), unjudged, program, requests), 0
        transactions = self.transactions()
        for transaction in transactions:
            assert transaction.judging(begin) in self.judging
            if begin < transaction.progress.next:  # it stays known how these were judged
                assert transaction.judging(begin) == transactions[-1].judging(begin)
            end = transaction.progress.next
            expected.take(begin, self.sent[begin:end], transaction, self._waiting(end) if transaction.gone else {})
            begin = end
        assert begin == self.committed_offset
        there = {key: value for key, value in expected.tables.items() if value is not None}
        assert there == (program.entries if program else {})
        return expected

    def _waiting(self, start: int) -> dict[bytes, int]:
        """Return the append time of each identity's first record from an input offset on, in seconds."""
        came_s: dict[bytes, int] = {}
        for each, at_s in zip(self.sent[start:], self.came_s[start:], strict=True):
            if each is not None and each.identity is not None and each.sequence is not None:
                came_s.setdefault(each.identity, at_s)
        return came_s

    @precondition(lambda self: not self._left_open)
    @invariant()
    def committed_is_what_the_oracle_says(self) -> None:
        expected = self.expected()
        assert sum(each.unjudged for each in self.unjudged()) == expected.unjudged
        assert self.kafka.logs[OUTPUT, 0].committed() == expected.forwarded
        assert self.letters(of_agents=False) == expected.rejected
        assert self.letters(of_agents=True) == (expected.program.failed if expected.program else [])
        changelog = {key[1:]: value for key, value in self.changelog().items() if key.startswith(b"i") and value}
        assert changelog.keys() == expected.last.keys()
        for name, entry in changelog.items():
            check_entry(entry, expected.known.of[name])

    def letters(self, *, of_agents: bool) -> list[Record]:
        """The committed dead letters without what was added to them: those for which an agent raised, or the others."""
        letters = self.kafka.logs[DEAD, 0].committed()
        if any(self.judging):  # of one batch the invalid ones come first
            letters.sort(key=lambda record: int(record.headers[-1][1] or b""))
        return [
            Record(
                record.key,
                record.value,
                tuple(each for each in record.headers[:-4] if each[0] not in (LETTER_AGENTS, LETTER_APP, LETTER_EVENT)),
            )
            for record in letters
            if (record.headers[-4][1] or b"").startswith(b"agent ") == of_agents
        ]

    def changelog(self) -> dict[bytes, bytes | None]:
        """The committed one, compacted."""
        return {record.key or b"": record.value for record in self.kafka.logs[CHANGELOG, 0].committed()}

    def unjudged(self) -> list[PolicyInterval]:
        """The intervals that were not judged; all of them must be what the policy topic said at their place in it."""
        entries = [
            (key, value or b"") for key, value in sorted(self.changelog().items()) if key.startswith(POLICY_INTERVAL)
        ]
        intervals = [PolicyInterval.unpack(key, value) for key, value in entries]
        assert [interval.number for interval in intervals] == list(range(len(intervals)))
        for before, after in pairwise(intervals):
            assert (before.deduplicate, before.policy) != (after.deduplicate, after.policy)
            assert before.start <= before.end <= after.start
            assert before.policy <= after.policy
        for interval in intervals:
            assert self.policies[interval.policy - 1] == interval.deduplicate
        return [interval for interval in intervals if not interval.deduplicate]

    def teardown(self) -> None:
        try:
            self._end_failures()
            if len(self._running()) == 1 and not self.kafka.has_late:
                self._reach_the_end()
                assert self.committed_offset == self.kafka.logs[INPUT, 0].end
            for slot in self._running():
                self._stop(slot)
            self.workers = [last := self._new_worker("last"), None]
            run(self.loop, last.start())
            run(self.loop, asyncio.sleep(2))
            self.kafka.deliver_late()
            run(self.loop, asyncio.sleep(100))
            assert self.committed_offset == self.kafka.logs[INPUT, 0].end
            self.committed_is_what_the_oracle_says()
            expected, table = self.expected(), last.sequences.partition(0)
            assert not expected.requests
            known = {name: table.last(name).persisted for name in all_names}
            assert {name: number for name, number in known.items() if number >= 0} == expected.last
            assert (len(table), sum(table.evicted)) == (len(expected.last), expected.gone)
            missing = sum(seen.missing for seen in expected.known.of.values())
            assert table.missing == (missing if "dense" in self.spec.judging else None)
            EVICTED_IN_ALL.update(f"window {verdict}" for verdict in expected.judged if any(self.judging))
            if expected.program is not None:
                found = {each.name: table.tables.of(each.name) for each in TABLES}
                there = {name: {key: each.get(key) for key in each.keys()} for name, each in found.items()}
                assert there == expected.program.tables
            EVICTED_IN_ALL.update(table.evicted._asdict())
            run(self.loop, last.stop())
        finally:
            self.close()

    def _reach_the_end(self) -> None:
        """Let an undisturbed worker come to the input's end by itself, within 200 s, and rest there for 10 s."""
        for _ in range(20):
            self.thaw(10)
            if self.committed_offset == self.kafka.logs[INPUT, 0].end:
                self.thaw(10)
                return

    def close(self) -> None:
        for worker in filter(None, self.workers):
            if worker.is_at_work:  # something has failed
                worker.power_off()
        self._bury()
        self.patch.undo()
        self.loop.run_until_complete(asyncio.sleep(2 * LATE_S))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        self.loop.close()
        shutil.rmtree(self.folder)
