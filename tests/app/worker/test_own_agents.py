"""Agents of one's own in a real worker on a real Kafka: killed, rolled back, restored, and counted by somebody else."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafka_ratchet.app.worker.program import load_program
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.testing import CRASH_POINTS, Worker, assert_once, check_once
from kafka_ratchet.testing.once import AT_THE_START, EVERY_POINT
from tests.app.worker_process import Site

SHOP = "tests.app.worker.shop:app"
MakeWorker = Callable[..., Worker]
THIRD_TIME = [f"{point}:3" for point in CRASH_POINTS if point not in (*AT_THE_START, "saved")]
"""A worker with two partitions comes to the others twice; it may have saved both, and has nothing more to save."""


def orders(count: int) -> list[tuple[str, dict[str, Any]]]:
    choose = Random(count)
    users = [f"user-{choose.randrange(7)}" for _ in range(count)]
    return [(user, {"user": user, "amount": choose.choice([0, 1, 5, 70])}) for user in users]


def order(user: str, amount: int) -> tuple[str, dict[str, Any]]:
    return user, {"user": user, "amount": amount}


@pytest.mark.parametrize(
    "points",
    [
        ("committed", "agent:2", "judged:2", "offered:2"),
        pytest.param((*EVERY_POINT, *THIRD_TIME), marks=pytest.mark.long),
    ],
)
def test_totals_are_right_whatever_it_dies_of(ratchet_broker: str, points: tuple[str, ...]) -> None:
    assert_once(SHOP, {"orders": orders(1000)}, bootstrap=ratchet_broker, points=points, partitions=2)


def test_what_raises_halts_or_is_a_dead_letter(ratchet_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = ratchet_worker(SHOP, partitions=2)
    rows = [order("a", 5), order("a", -1), order("a", 7), order("b", 1)]
    worker.publish("orders", rows, times=2)
    worker.start()
    worker.wait_for("agent add_up raised ValueError: negative")
    assert "shop.py:32" in worker.text()
    worker.stop()
    monkeypatch.setenv("ON_ERROR", "dead-letter")
    worker.start()
    worker.wait_until_read()
    worker.stop()
    (letter,) = [each for outputs in worker.outputs() for each in outputs if each.topic == "orders-dead-letters"]
    assert letter.value == {"user": "a", "amount": -1}
    assert (dict(letter.headers)["ratchet-reason"] or b"").startswith(b"agent add_up: raised ValueError: negative")
    outputs, tables = worker.outputs(), worker.tables()
    assert sorted(each.value["total"] for part in outputs for each in part if each != letter) == [1, 5, 12]
    assert [part["totals"] for part in tables if part["totals"]] in ([{"a": 12, "b": 1}], [{"a": 12}, {"b": 1}])


def test_a_worker_without_the_program_neither_joins_nor_goes_on(ratchet_worker: MakeWorker) -> None:
    worker = ratchet_worker(SHOP)
    worker.publish("orders", orders(10), times=2)
    worker.start()
    worker.wait_until_read()
    check_once(worker)
    other = ratchet_worker(None, name="other", beside=worker)
    other.start()
    other.wait_for("agents of orders is 'add_up' there and not set here")
    worker.stop()
    other.wait_for("its output topic contains what agents yield, but this worker would write records as they came")
    other.stop()


PROGRAMS = {
    "shop_broken": "1 / 0",
    "shop_idle": "from kafka_ratchet import App\napp = App()\napp.stream('orders')",
    "shop_other": "from kafka_ratchet import App\napp = App()\napp.stream('payments')",
    "shop_plain": "totals = {}",
    "shop_wants": "import no_such_package",
}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere:app", "there is no module nowhere in"),
        ("shop_plain:nobody", "module shop_plain has no nobody"),
        ("shop_plain:totals", "totals is a dict, not an App of kafka_ratchet"),
        ("shop_plain.py", "there is no module shop_plain.py"),
        ("../shop:app", "write MODULE:NAME, as shop:app"),
        ("shop_broken:app", "shop_broken cannot be imported: ZeroDivisionError"),
        ("shop_wants:app", "shop_wants imports no_such_package, which is not installed"),
        ("shop_other:app", "streams.payments: the program declares it, but the settings have only orders"),
        ("shop_idle:app", "the program has no agent"),
    ],
)
def test_a_program_that_is_not_there_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    for module, text in PROGRAMS.items():
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SettingsError, match=re.escape(says)):
        load_program(name).check(["orders"])


def test_the_command_says_such_a_sentence(tmp_path: Path) -> None:
    site = Site(tmp_path, "127.0.0.1:1", "shop", '[streams.orders]\ninput = "i"\noutput = "o"\ndead_letters = "d"\n')
    done = site.command("worker", "--app", "nowhere:app")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no module nowhere in" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
