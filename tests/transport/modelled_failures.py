"""The model of the commit path: what fails, and what happens to logs and stores."""

from __future__ import annotations

import asyncio
import shutil

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kafka_ratchet.tables.store import Store
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.transactions.crash_points import AGENT_POINTS, COMPLETION_POINTS
from tests.transport.memory_link import Fate
from tests.transport.modelled_runs import ALL_POINTS, NULLS_LAST_S, SLOTS, STEP_S, Runs
from tests.transport.modelled_worker import CHANGELOG, DEAD, INPUT, OUTPUT, run

POINTS_OF_A_TRANSACTION = (*AGENT_POINTS, "judged", "produced", "logged", "offered", "committed")
PLACES = [(OUTPUT, 0), (DEAD, 0), (CHANGELOG, 0)]


class Failures(Runs):
    """Failures of requests, coordinators, leaders, processes and stores."""

    @precondition(lambda self: self._running())
    @rule(data=st.data(), point=st.sampled_from(ALL_POINTS), times=st.integers(1, 3), seconds=STEP_S)
    def crash_at(self, data: st.DataObject, point: str, times: int, seconds: float) -> None:
        self._worker(data).crash_at = (point, times)
        self.append(data, seconds)
        self._start_again(data)

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def crash_now(self, data: st.DataObject) -> None:
        self._worker(data).power_off()
        self._bury()
        self._start_again(data)

    @precondition(lambda self: self._running())
    @rule(data=st.data(), requests=st.integers(0, 9), fate=st.sampled_from(list(Fate)), seconds=STEP_S)
    def lose_a_request(self, data: st.DataObject, requests: int, fate: Fate, seconds: float) -> None:
        self._worker(data).link.lose = (requests, fate)
        self.append(data, seconds)

    @precondition(lambda self: self._running())
    @rule(
        data=st.data(),
        fate=st.sampled_from([Fate.LATE, Fate.TWICE, Fate.HANDED_OVER]),
        lost_at=st.sampled_from(["judged", "produced", "logged", "offered"]),
        late_at=st.sampled_from(POINTS_OF_A_TRANSACTION),
        seconds=STEP_S,
    )
    def be_late(self, data: st.DataObject, fate: Fate, lost_at: str, late_at: str, seconds: float) -> None:
        """Make a request late, in the middle of the next transaction if that is an end or its markers."""
        worker = self._worker(data)
        worker.lose_at, worker.deliver_at = (lost_at, fate), (late_at, data.draw(st.integers(1, 2)))
        self.append(data, seconds)
        self.append(data, seconds)

    @precondition(lambda self: self.kafka.has_late)
    @rule(data=st.data(), seconds=STEP_S, longer=STEP_S)
    def arrive_late(self, data: st.DataObject, seconds: float, longer: float) -> None:
        self.append(data, seconds)
        self.kafka.deliver_late()
        self.go_on(longer)

    @rule(data=st.data(), unaware=st.booleans(), seconds=STEP_S, longer=STEP_S)
    def move_the_coordinator(self, data: st.DataObject, unaware: bool, seconds: float, longer: float) -> None:
        """Move the coordinator in a transaction, perhaps back to a node with requests still on their way."""
        self.append(data, seconds)
        self.kafka.move_coordinator(unaware=unaware)
        for worker in filter(None, self.workers):
            worker.link.misled = data.draw(st.integers(0, 3))
        self.append(data, longer)

    @precondition(lambda self: self._running())
    @rule(data=st.data(), fate=st.sampled_from([Fate.LOST, Fate.UNANSWERED]), seconds=STEP_S)
    def ask_the_replaced_one(self, data: st.DataObject, fate: Fate, seconds: float) -> None:
        """Ask the replaced coordinator about an end without an answer; the new one was found before this began."""
        worker = self._worker(data)
        self.kafka.move_coordinator(unaware=True)
        worker.link.coordinates, worker.link.misled = self.kafka.coordinator, 1
        worker.lose_at = ("offered", fate)
        self.append(data, seconds)

    @precondition(lambda self: self._running())
    @rule(
        data=st.data(),
        places=st.sets(st.sampled_from(PLACES), min_size=1),
        misled=st.integers(1, 3),
        what=st.sampled_from(["crash", "freeze", "nothing"]),
        seconds=STEP_S,
    )
    def give_up_beside_the_replaced_one(
        self, data: st.DataObject, places: set[tuple[str, int]], misled: int, what: str, seconds: float
    ) -> None:
        """Abort at a coordinator that the next owner does not find at first, while partitions have no leader."""
        worker = self._worker(data)
        self.append(data, seconds)
        self.kafka.move_coordinator(unaware=True)
        worker.link.coordinates = self.kafka.coordinator
        worker.gives_up_without = places
        for _ in range(5):
            self._arrive(data)
        self.go_on(0.3)
        self._start_again(data)
        for each in filter(None, self.workers):
            each.link.coordinates, each.link.misled = None, misled
            each.crash_at = ("noted", 1) if what == "crash" else each.crash_at
            each.freeze_at = "noted" if what == "freeze" else each.freeze_at
        self.leaders_return(seconds)

    @precondition(lambda self: self.kafka.replaced is not None)
    @rule(seconds=STEP_S)
    def hear_of_the_new_coordinator(self, seconds: float) -> None:
        self.kafka.replaced = None
        self.go_on(seconds)

    @rule(data=st.data(), places=st.sets(st.sampled_from(PLACES), min_size=1), seconds=STEP_S, longer=STEP_S)
    def lose_leaders(self, data: st.DataObject, places: set[tuple[str, int]], seconds: float, longer: float) -> None:
        """Lose leaders in the middle of a batch."""
        self.append(data, seconds)
        self.kafka.without_leader |= places
        self.go_on(longer)
        if data.draw(st.booleans()):
            self.leaders_return(seconds)

    @precondition(lambda self: self._running())
    @rule(
        data=st.data(),
        places=st.sets(st.sampled_from(PLACES), min_size=1),
        point=st.sampled_from(COMPLETION_POINTS),
        what=st.sampled_from(["crash", "freeze", "crash both", "nothing"]),
        seconds=STEP_S,
    )
    def lose_markers(
        self, data: st.DataObject, places: set[tuple[str, int]], point: str, what: str, seconds: float
    ) -> None:
        """Lose markers of an end, and perhaps the worker that is to complete it, or both of them."""
        worker = self._worker(data)
        worker.leaderless_at_the_end = places
        for each in filter(None, self.workers) if what == "crash both" else [worker]:
            each.crash_at = (point, 1) if what.startswith("crash") else each.crash_at
            each.freeze_at = point if what == "freeze" else each.freeze_at
        self.append(data, seconds)
        self.leaders_return(seconds)
        self._start_again(data)

    @precondition(lambda self: self.kafka.without_leader)
    @rule(seconds=STEP_S)
    def leaders_return(self, seconds: float) -> None:
        self.kafka.without_leader.clear()
        self.go_on(seconds)

    @rule(seconds=STEP_S)
    def compact_the_changelog(self, seconds: float) -> None:
        self.kafka.logs[CHANGELOG, 0].compact(self._now_ms(), NULLS_LAST_S * 1_000)
        self.go_on(seconds)

    @rule(data=st.data(), seconds=STEP_S)
    def delete_what_is_read(self, data: st.DataObject, seconds: float) -> None:
        """Retention that leaves what is still to be read."""
        self.kafka.logs[INPUT, 0].delete_before(data.draw(st.integers(0, self.committed_offset)))
        self.go_on(seconds)

    def _end_failures(self) -> None:
        """Leaders and coordinators are back, and nothing goes wrong from here on."""
        self.kafka.without_leader.clear()
        self.kafka.replaced = None
        self._bury()
        for worker in filter(None, self.workers):
            worker.forget_plans()

    # What happens to stores while their worker is away.

    @precondition(lambda self: None in self.workers)
    @rule(what=st.sampled_from(["lose", "keep a copy", "put back a copy", "put back another's copy"]))
    def meddle_with_the_store(self, what: str) -> None:
        self._meddle_with_the_store(what)

    def _meddle_with_the_store(self, what: str) -> None:
        slot = self.workers.index(None)
        store, copies = self.folder / str(slot), [self.folder / f"{number}.copy" for number in SLOTS]
        if what == "keep a copy" and store.exists():
            shutil.rmtree(copies[slot], ignore_errors=True)
            shutil.copytree(store, copies[slot])
        elif what == "lose":
            shutil.rmtree(store, ignore_errors=True)
        elif (copy := copies[slot if what == "put back a copy" else 1 - slot]).exists():
            shutil.rmtree(store, ignore_errors=True)
            shutil.copytree(copy, store)

    @precondition(lambda self: self.workers == [None, None] and not (self.was_ahead or self._left_open))
    @precondition(lambda self: not self.kafka.without_leader)
    @rule()
    def start_on_a_store_that_is_ahead(self) -> None:
        self.was_ahead = True
        path = self.folder / "0"
        store = Store(path / "0")
        end, timed = self.kafka.logs[CHANGELOG, 0].end, 0 if self.is_timed else None
        # A store without the times or counts that the next worker needs is rebuilt, and then no longer ahead.
        missing = (store.missing or 0) if "dense" in self.spec.judging else None
        store.write([], end + 5, store.stands_for[1], timed, timed=self.bounds is not None, missing=missing)
        store.close()
        self.start(slot=0)
        run(self.loop, asyncio.sleep(5))
        worker = self.workers[0]
        assert worker is not None
        assert worker.lane.status.state is LaneState.HALTED
        assert "but the changelog ends at" in (worker.lane.status.error or "")
        self._stop(0)
        shutil.rmtree(path)
