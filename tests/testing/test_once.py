"""Faults that assert_once notices."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.testing import Output, Record, Worker, assert_once, check_once, run
from tests.testing.counting import app

COUNTING = "tests.testing.counting:app"
EVENTS = [(f"k{number % 3}", number) for number in range(20)]


class Committed:
    """A worker's results: those of a run, changed."""

    app, program, partitions = "counting", app, 1

    def __init__(self) -> None:
        self.published = {"numbers": [Record(value, key) for key, value in EVENTS]}
        ran = run(app, {"numbers": EVENTS})
        self.found_outputs, self.found_tables = [ran.outputs], [ran.tables]

    def outputs(self) -> list[list[Output]]:
        return self.found_outputs

    def sent(self) -> list[Output]:
        return []

    def tables(self) -> list[dict[str, dict[Any, Any]]]:
        return self.found_tables


def check(committed: Committed) -> None:
    check_once(cast(Worker, committed))


def test_what_is_right_passes() -> None:
    check(Committed())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda outputs: outputs.pop(), "19 instead of 20; number 19 is"),
        (lambda outputs: outputs.insert(5, outputs[5]), "21 instead of 20; number 6 is"),
        (lambda outputs: outputs.insert(0, outputs.pop()), "20 instead of 20; number 0 is"),
        (lambda outputs: outputs.append(outputs[0]._replace(topic="numbers-dead-letters")), "1 instead of 0"),
    ],
)
def test_an_output_that_is_lost_doubled_moved_or_a_dead_letter_is_noticed(change: Any, says: str) -> None:
    committed = Committed()
    change(committed.found_outputs[0])
    with pytest.raises(AssertionError, match=f"counting, partition 0, outputs of .*: {says}"):
        check(committed)


def test_a_table_that_differs_is_noticed() -> None:
    committed = Committed()
    committed.found_tables[0]["counts"]["k1"] += 1
    with pytest.raises(AssertionError, match="counting, partition 0: tables are"):
        check(committed)


def test_too_few_events_are_a_sentence() -> None:
    with pytest.raises(SettingsError, match="2 points need at least 5 events of one stream"):
        assert_once(COUNTING, {"numbers": [1, 2]}, points=("judged", "committed"))


@pytest.mark.long
def test_what_is_kept_outside_tables_is_noticed_in_a_worker_that_died(ratchet_broker: str) -> None:
    with pytest.raises(AssertionError, match="outputs of numbers: 20 instead of 20"):
        assert_once(
            "tests.testing.counting:forgetful", {"numbers": EVENTS}, bootstrap=ratchet_broker, points=("committed",)
        )


@pytest.mark.long
def test_two_inputs_that_meet_in_an_internal_stream(ratchet_broker: str) -> None:
    orders = [{"number": str(n), "amount": n} for n in range(20)]
    payments = [{"order": str(n), "paid": n} for n in range(0, 40, 2)]
    program = "kafka_ratchet.agents.examples.shared_table_join:app"
    events = {"orders": orders, "payments": payments}
    assert_once(program, events, bootstrap=ratchet_broker, points=("agent:2", "committed:2", "offered:3"))


def test_what_run_cannot_repeat_is_a_sentence() -> None:
    rows = {"orders": [{"number": "1", "amount": 1}]}
    with pytest.raises(SettingsError, match=r"stream halves gets events from all partitions, .* Give partitions=1"):
        assert_once("kafka_ratchet.agents.examples.shared_table_join:app", rows, points=(), partitions=2)
