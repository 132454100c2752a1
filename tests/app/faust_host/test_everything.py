"""Every kind of effect of a Faust program, on both sides of its steps, whatever its worker dies of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.faust_host.hosted import HostedProgram
from tests.app.worker_process import read_all

USERS = 5
ROWS = 600


def order(n: int) -> tuple[str, dict[str, Any]]:
    user = f"u{n % USERS}"
    return user, {"user": user, "amount": n % 17, "at": float(1000 + n // 4)}


def refund(n: int) -> tuple[str, dict[str, Any]]:
    user = f"u{n % USERS}"
    return user, {"user": user, "amount": 10 + n % 5, "at": 0.0}


@pytest.fixture
def program(broker: str, tmp_path: Path) -> Iterator[HostedProgram]:
    made = HostedProgram("everything", broker, tmp_path)
    made.create("orders", "refunds")
    yield made
    made.end()


def check(program: HostedProgram, sent: list[tuple[str, Any]], back: list[tuple[str, Any]]) -> None:
    """Compare topics and tables with what one reader of the events would compute."""
    expected: Counter[tuple[str, float]] = Counter()
    for user, value in sent:
        expected[user, value["at"] // 10 * 10] += value["amount"]
    balance: Counter[str] = Counter()
    for user, value in sent:
        balance[user] += value["amount"]
    for user, value in back:
        balance[user] -= 0 if value["amount"] == 13 else value["amount"]
    groups = Counter(str(value["amount"]) for _, value in sent)

    times = [at for _, some in program.read("taken") for at in some]
    assert sorted(times) == sorted(value["at"] for _, value in sent)
    counts: dict[str, list[int]] = {}
    for amount, count in program.read("by-amount"):
        counts.setdefault(str(amount), []).append(count)
    assert counts == {amount: list(range(1, count + 1)) for amount, count in groups.items()}

    tables = {name: program.table(name) for name in ("windows", "balance", "groups")}
    assert tables["balance"] == balance
    assert {str(amount): count for amount, count in tables["groups"].items()} == groups
    still_open = {(key[0], key[1][0]): value for key, value in tables["windows"].items()}
    found: Counter[tuple[str, float]] = Counter()
    for user, (start, value) in program.read("closed"):
        found[user, start] += value
    assert not found.keys() & still_open.keys()
    assert found | still_open == expected
    # The log has each write: its last record of a key is the table's value.
    assert dict(program.read("log")) == balance
    assert len(program.read("log")) == len(sent) + len(back) - sum(value["amount"] == 13 for _, value in back)


def check_traces(program: HostedProgram) -> None:
    """Follow records through steps: each bears the id of its event, and an undone one has its dead letter."""
    place = ("--topic", program.topic("orders"), "--partition", "0", "--offset", "2")
    (arrival,) = program.command("why", *place)["arrivals"]
    steps = {(each["at"]["topic"].rpartition(".")[2], each["read"]) for each in arrival["sent"]}
    assert steps == {("merged-amounts-balance", True), ("everything-regroup-order-amount", True)}
    letters = f"{program.id}-merged-amounts-balance-dead-letters"
    # A crash may have left records of an aborted transaction before it.
    letter = next(found[0] for found in read_all(program.broker, letters).values() if found)
    at = {"topic": letters, "partition": letter.partition(), "offset": letter.offset()}
    place = (*("--topic", letters), *("--partition", str(at["partition"])), *("--offset", str(at["offset"])))
    (arrival,) = program.command("why", *place)["arrivals"]
    assert arrival["dead_letter"] == at
    assert arrival["at"]["topic"] == f"{program.id}-repartition.merged-amounts-balance"
    assert "agent" in arrival["reason"]


@pytest.mark.matrix
@pytest.mark.parametrize(
    "points",
    [
        ["produced:3", "agent:9", "offered:5", "committed:6", "logged:4"],
        ["fetched:3", "judged:4", "remembered:5", "committed:9", "agent:14"],
    ],
)
def test_every_effect_is_there_once(program: HostedProgram, points: list[str]) -> None:
    run_through(program, points)


def run_through(program: HostedProgram, points: list[str]) -> None:
    sent, back = [order(n) for n in range(ROWS)], [refund(n) for n in range(ROWS // 3)]
    each = ROWS // (len(points) + 1)
    for number, point in enumerate(points):
        program.publish("orders", sent[number * each : (number + 1) * each])
        program.publish("refunds", back[number * each // 3 : (number + 1) * each // 3])
        program.start(point, state=f"state{number % 2}")
        program.wait_for_crash()
    program.publish("orders", sent[len(points) * each :])
    program.publish("refunds", back[len(points) * each // 3 :])
    program.start()
    program.wait_until_read()
    check(program, sent, back)
    check_traces(program)
    program.stop()
