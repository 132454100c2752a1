"""Attempts of a commit on a table whose library reports conflicts, without Spark."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.stores.optimistic import COMMIT_ATTEMPTS, REFUSALS, OptimisticStore


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
