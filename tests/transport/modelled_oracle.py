"""Required output of the commit path's model: a plain reading of its input, transaction by transaction."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from kafka_ratchet.tables.edits import Edit
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.tables.totals import EvictedTotals, Progress
from kafka_ratchet.transport.owner import Decision, Owner
from kafka_ratchet.transport.policy import ForgetRequest
from tests.transport.memory_log import Record
from tests.transport.modelled_input import Sent
from tests.transport.modelled_program import Plain
from tests.transport.modelled_windows import Remembered


class Transaction(NamedTuple):
    """Committed transaction, as the changelog describes it. at_s: Kafka's time; gone: evicted identities."""

    progress: Progress
    at_s: int
    gone: list[bytes]
    evicted: EvictedTotals | None
    tables: dict[bytes, bytes | None]
    """Entries of tables of one's own."""
    edits: list[Edit]
    owner: Owner | None
    """Owner at that transaction."""
    intervals: tuple[PolicyInterval, ...] = ()
    decision: Decision | None = None
    """Decision of an operator who has moved the partition by it."""

    def judging(self, offset: int) -> dict[str, str]:
        """Return the rule of the records from an input offset on, by its owner entry."""
        said = [each.settings for each in self.owner.judging if each.start <= offset] if self.owner else []
        return said[-1] if said else {}


class Expected:
    """The oracle: one transaction after the other. Who goes is the worker's choice, within what the bounds allow."""

    def __init__(
        self, bounds: EvictionLimits, unjudged: list[range], program: Plain | None, requests: dict[str, ForgetRequest]
    ) -> None:
        """unjudged: input offsets that went by while deduplication was off; requests: to forget, by id."""
        self.bounds, self.program, self.requests = bounds, program, dict(requests)
        self.tables: dict[bytes, bytes | None] = {}
        self.off = unjudged
        self.known = Remembered()
        self.active_s: dict[bytes, int] = {}
        self.forwarded: list[Record] = []
        self.rejected: list[Record] = []
        self.judged = Counter[str]()
        self.unjudged = self.gone = 0

    @property
    def last(self) -> dict[bytes, int]:
        return {name: seen.last for name, seen in self.known.of.items()}

    def take(self, start: int, sent: list[Sent | None], transaction: Transaction, waiting: dict[bytes, int]) -> None:
        """Take the next transaction.

        Args:
            start: the input offset of the first of `sent`
            sent: what it has judged
            transaction: what it says of itself
            waiting: when the first record of each identity came to the input that is behind it, in seconds
        """
        active = set()
        self.known.under(transaction.judging(start))
        lowered = self._forget(start, sent, transaction)
        for offset, each in enumerate(sent, start):
            if each is None:  # an offset without a record that counts
                continue
            if any(offset in interval for interval in self.off):
                self.unjudged += 1
                self._forward(offset, each.record)
                continue
            if each.identity is None or each.sequence is None:
                self.judged["invalid"] += 1
                self.rejected.append(each.record)
                continue
            active.add(each.identity)
            verdict = self.known.judge(each.identity, each.sequence, each.record.value)
            self.judged[verdict] += 1
            if verdict == "fresh":
                self._forward(offset, each.record)
            elif verdict in self.known.lettered:
                self.rejected.append(each.record)
        self.active_s |= dict.fromkeys(active, transaction.at_s)
        self._evict(transaction, active | lowered, waiting)
        judged, progress = self.judged, transaction.progress
        assert progress[1:4] == (judged["fresh"], judged["duplicate"], judged["invalid"])
        assert (progress.late, progress.conflict) == (judged["late"], judged["conflict"])
        self.tables |= transaction.tables

    def _forget(self, start: int, sent: list[Sent | None], transaction: Transaction) -> set[bytes]:
        """Apply what people have asked for.

        Returns:
            who has a lower sequence now: written by this transaction, so that it does not evict them
        """
        lowered = set()
        assert not (sent and transaction.edits)
        for edit in transaction.edits:
            request = self.requests.pop(edit.id)  # each is applied once
            before = self.last.get(request.identity, -1)
            after = -1 if request.above is None else min(before, request.above)
            assert (edit.position, edit.name, edit.before, edit.after) == (start, request.identity, before, after)
            assert request.input == "another" or edit.position >= request.ends[0]
            if before == after:
                continue
            if after < 0:
                transaction.gone.remove(request.identity)
                del self.known.of[request.identity], self.active_s[request.identity]
            else:
                self.known.lower(request.identity, after)
                self.active_s[request.identity] = transaction.at_s
                lowered.add(request.identity)
        return lowered

    def _forward(self, offset: int, record: Record) -> None:
        self.forwarded += self.program.take(offset, record) if self.program else [record]

    def _evict(self, transaction: Transaction, active: set[bytes], waiting: dict[bytes, int]) -> None:
        gone, (most, inactive_s) = set(transaction.gone), self.bounds
        until_s = {name: min(transaction.at_s, waiting.get(name, transaction.at_s)) for name in gone}
        assert len(gone) == len(transaction.gone)
        assert gone <= self.last.keys() - active
        quiet = {name for name in gone if inactive_s and until_s[name] - self.active_s[name] > inactive_s}
        too_many = max(0, len(self.last) - most) if most else 0
        assert len(gone - quiet) <= too_many
        assert len(self.last) - len(gone) <= max(most, len(active)) if most else True
        for name in gone:
            del self.known.of[name], self.active_s[name]
        self.gone += len(gone)
        assert (sum(transaction.evicted) if transaction.evicted else 0) == (self.gone if gone else 0)
