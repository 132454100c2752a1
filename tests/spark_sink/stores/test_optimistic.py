"""Attempts of a commit on a table whose library reports conflicts, without Spark."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import pytest
from pyspark.sql import DataFrame

from kafka_ratchet.spark_sink.errors import Fenced, StoreError
from kafka_ratchet.spark_sink.stores.decision import RepairNote, Replacement
from kafka_ratchet.spark_sink.stores.optimistic import COMMIT_ATTEMPTS, REFUSALS, OptimisticStore, Staged


class Conflict(Exception):
    pass


class Attempts(OptimisticStore[Any]):
    """Store whose every write meets a conflict; with other writers each one brings a newer version."""

    def __init__(self, others: int) -> None:
        self._generation, self.others, self.writes, self.version = 1, others, 0, 0

    def write(self) -> NoReturn:
        self.writes += 1
        self.version += self.writes <= self.others
        raise Conflict

    def columns(self) -> Any:
        pass

    def _require_staged(self, table: Any, staged: Any) -> None:
        pass

    def _refresh(self, table: Any) -> None:
        pass

    def _require_holder(self, table: Any, start: Any) -> None:
        pass

    def _version_of(self, table: Any) -> object:
        return self.version

    def _is_failure(self, error: Exception) -> bool:
        return isinstance(error, Conflict)

    _is_conflict = _is_failure

    def _refuse(self, failure: Exception, where: str = "") -> NoReturn:
        raise StoreError(f"refused: {where}")

    def _others_were_faster(self) -> StoreError:
        return StoreError("others were faster")


class Checked(Attempts):
    """Store with a check within its commit; every error counts as a failure of the table."""

    def write(self) -> NoReturn:
        self.writes += 1
        raise StoreError("several rows of one key. Make one row of them")

    def _is_failure(self, error: Exception) -> bool:
        return True

    def _is_conflict(self, error: Exception) -> bool:
        return False


class OtherPartitions(StoreError):
    def __init__(self) -> None:
        super().__init__("rewrite the file")


class Replacing(Attempts):
    """Store of which a repair meets these failures, one at each try."""

    def __init__(self, *failures: type[Exception]) -> None:
        super().__init__(0)
        self._table, self.failures = object(), iter(failures)

    def _stage_replacement(self, table: Any, dataframe: Any, generation: int) -> Staged:
        return Staged(7)

    def _write_replacement(self, *_: object) -> None:
        self.writes += 1
        if (failure := next(self.failures, None)) is not None:
            raise failure

    def _is_failure(self, error: Exception) -> bool:
        return isinstance(error, Conflict | OSError | StoreError)

    def _is_conflict(self, error: Exception) -> bool:
        return isinstance(error, Conflict)


class Overtaken(Replacing):
    """Store that another run takes over during the first try; a conflict shows it."""

    def __init__(self) -> None:
        super().__init__(*[Conflict] * COMMIT_ATTEMPTS)
        self.holder = self.seen = 1

    def _write_replacement(self, *arguments: object) -> None:
        self.holder = 2
        super()._write_replacement(*arguments)

    def _refresh(self, table: Any) -> None:
        self.seen = self.holder

    def _require_holder(self, table: Any, start: Any) -> None:
        if self.seen != 1:
            raise Fenced("another run has taken over")


class Repairing(Replacing):
    """Store of a table with rows to repair."""

    _where = "the table"

    def _require_repairable(self, table: Any) -> None:
        pass

    def _after_commit(self) -> None:
        pass

    def _stage_repair(self, *_: object) -> Staged:
        return Staged(7)

    def _write_repair(self, *arguments: object) -> None:
        self._write_replacement(*arguments)


STAGED: Any = None
REPAIRED = Replacement(("id",), cast("Any", None), cast("DataFrame", None), 7)
NOTE = RepairNote("someone", "2026-11-29T00:00:00+00:00", "a fault", {})


@pytest.mark.parametrize("others", [0, 5])
def test_conflicts_without_another_writer_are_a_refusal(others: int) -> None:
    store = Attempts(others)
    with pytest.raises(StoreError, match="refused: the rules and writer features"):
        store._attempt_until_written(None, STAGED, store.write, {})
    assert store.writes == others + REFUSALS


def test_the_error_of_a_check_within_a_commit_keeps_its_remedy() -> None:
    store = Checked(0)
    with pytest.raises(StoreError, match=r"^several rows of one key\. Make one row of them$"):
        store._attempt_until_written(None, STAGED, store.write, {})
    assert store.writes == 1


def test_other_writers_may_be_faster_for_long() -> None:
    store = Attempts(COMMIT_ATTEMPTS)
    with pytest.raises(StoreError, match="others were faster"):
        store._attempt_until_written(None, STAGED, store.write, {})
    assert store.writes == COMMIT_ATTEMPTS


def test_a_repair_is_tried_again_after_a_conflict_alone() -> None:
    store, rows = Replacing(Conflict, Conflict), cast("DataFrame", None)
    assert store.replace(rows, {}, {}) == 7
    assert store.writes == 3
    store = Replacing(Conflict, OSError)
    with pytest.raises(StoreError, match="refused: "):
        store.replace(rows, {}, {})
    assert store.writes == 2
    store = Replacing(*[Conflict] * COMMIT_ATTEMPTS)
    with pytest.raises(StoreError, match="others were faster"):
        store.replace(rows, {}, {})


def test_the_error_of_a_check_within_a_replacement_keeps_its_remedy() -> None:
    store = Replacing(OtherPartitions)
    with pytest.raises(OtherPartitions, match=r"^rewrite the file$"):
        store.replace(cast("DataFrame", None), {}, {})
    assert store.writes == 1


def test_a_run_that_is_taken_over_amid_a_replacement_ends_at_once() -> None:
    store = Overtaken()
    with pytest.raises(Fenced):
        store.replace(cast("DataFrame", None), {}, {})
    assert store.writes == 1


def test_rows_of_one_table_are_repaired() -> None:
    store = Repairing(Conflict)
    store.repair(REPAIRED, None, {}, NOTE)
    assert store.writes == 2
    for rows, rejects in ((None, None), (None, REPAIRED), (REPAIRED, REPAIRED)):
        with pytest.raises(RuntimeError, match="one open table"):
            store.repair(rows, rejects, {}, NOTE)
    assert store.writes == 2
