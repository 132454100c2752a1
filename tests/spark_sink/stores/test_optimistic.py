"""Attempts of a commit on a table whose library reports conflicts, without Spark."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import pytest
from pyspark.sql import DataFrame

from kafka_ratchet.spark_sink.errors import StoreError
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
        return isinstance(error, Conflict | OSError)

    def _is_conflict(self, error: Exception) -> bool:
        return isinstance(error, Conflict)


STAGED: Any = None


@pytest.mark.parametrize("others", [0, 5])
def test_conflicts_without_another_writer_are_a_refusal(others: int) -> None:
    store = Attempts(others)
    with pytest.raises(StoreError, match="refused: the rules and writer features"):
        store._attempt_until_written(None, STAGED, store.write, {})
    assert store.writes == others + REFUSALS


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
