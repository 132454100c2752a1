"""Agents of one's own in a real worker on a real Kafka: killed, rolled back, restored, and counted by somebody else."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer as Client

from tests.app.worker_process import Site, WorkerProcess, read_all

STREAM = """
session_timeout_ms = 6000
commit_interval_ms = 20

[streams.orders]
input = "{name}.in"
output = "{name}.out"
dead_letters = "{name}.dead"
partitions = 2
"""
SHOP = """
import os

import msgspec
from kafka_ratchet import App

class Order(msgspec.Struct):
    user: str
    amount: int

app = App()
orders = app.stream("orders", value_type=Order)
totals = app.Table("totals", default=int)
seen = app.Table("seen", default=list)

@app.agent(orders, on_error=os.environ.get("ON_ERROR", "halt"))
async def add_up(orders):
    async for order in orders:
        totals[order.user] += order.amount
        seen[order.user] = [*seen[order.user], order.amount][-3:]
        yield {"user": order.user, "total": totals[order.user], "last": seen[order.user]}
        if order.amount < 0:
            raise ValueError("negative")
        if order.amount == 0:
            del totals[order.user]
"""
Orders = list[tuple[str, int]]


@pytest.fixture
def shop(broker: str, tmp_path: Path) -> Site:
    name = f"shop-{uuid.uuid4().hex[:8]}"
    (tmp_path / "shop.py").write_text(SHOP)
    return Site(tmp_path, broker, name, STREAM.format(name=name))


@pytest.fixture
def worker(shop: Site) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(shop)
    yield worker
    worker.end()


def start(worker: WorkerProcess, crash_at: str | None = None) -> None:
    before = worker.text().count("worker runs")
    worker.start(crash_at, arguments=("--app", "shop:app"))
    worker.wait_for(lambda: worker.text().count("worker runs") > before, "the start")


def wait_for_end(worker: WorkerProcess, orders: Orders) -> None:
    site = worker.site
    worker.wait_for(lambda: site.position(f"{site.app}.in") == 2 * len(orders), "the end of the input")


def send(site: Site, orders: Orders, first: int) -> None:
    """Each order twice, as by a client that did not hear the answer and sends again."""
    client = Client({"bootstrap.servers": site.broker})
    for number, (user, amount) in enumerate(orders, first):
        headers = [("ratchet-producer", b"shop"), ("ratchet-sequence", str(number).encode())]
        for _ in range(2):
            client.produce(f"{site.app}.in", json.dumps({"user": user, "amount": amount}), user, headers=headers)
    assert client.flush(30) == 0


def expected(orders: Orders) -> dict[str, list[Any]]:
    """What each user's outputs are, by a plain reading of the program."""
    totals, seen, found = dict[str, int](), dict[str, list[int]](), dict[str, list[Any]]()
    for user, amount in orders:
        totals[user] = totals.get(user, 0) + amount
        seen[user] = [*seen.get(user, []), amount][-3:]
        found.setdefault(user, []).append({"user": user, "total": totals[user], "last": seen[user]})
        if amount == 0:
            del totals[user]
    return found


def outputs(site: Site) -> dict[str, list[Any]]:
    found = dict[str, list[Any]]()
    for messages in read_all(site.broker, f"{site.app}.out").values():
        for message in messages:
            found.setdefault(message.key().decode(), []).append(json.loads(message.value()))
    return found


def made_up(count: int, seed: int) -> Orders:
    choose = Random(seed)
    return [(f"user-{choose.randrange(7)}", choose.choice([0, 1, 5, 70])) for _ in range(count)]


@pytest.mark.parametrize("loses_its_store", [False, True])
def test_totals_are_right_whatever_it_dies_of(shop: Site, worker: WorkerProcess, loses_its_store: bool) -> None:
    sent: Orders = []
    start(worker)
    points = ("agent:1", "agent:2", "judged:2", "produced:2", "logged:2", "offered:2", "committed:2", "saved:1", "")
    for number, point in enumerate(points):
        orders = made_up(200, number)
        if point:
            worker.stop()
            if loses_its_store:
                shutil.rmtree(worker.state, ignore_errors=True)
            start(worker, point)
        send(shop, orders, len(sent))
        sent += orders
        if point:
            assert worker.process.wait(60) == -9, worker.text()[-3000:]
            start(worker)
        wait_for_end(worker, sent)
    worker.stop()
    assert outputs(shop) == expected(sent)


def test_what_raises_halts_or_is_a_dead_letter(
    shop: Site, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(worker)
    orders = [("a", 5), ("a", -1), ("a", 7), ("b", 1)]
    send(shop, orders, 0)
    worker.wait_for(lambda: "agent add_up raised ValueError: negative" in worker.text(), "the halt")
    assert "shop.py:23" in worker.text()
    worker.stop()
    monkeypatch.setenv("ON_ERROR", "dead-letter")
    start(worker)
    wait_for_end(worker, orders)
    worker.stop()
    assert outputs(shop) == expected([order for order in orders if order[1] >= 0])
    (letter,) = [each for messages in read_all(shop.broker, f"{shop.app}.dead").values() for each in messages]
    assert json.loads(letter.value()) == {"user": "a", "amount": -1}
    assert dict(letter.headers())["ratchet-reason"].startswith(b"agent add_up: raised ValueError: negative")


def test_a_worker_without_the_program_neither_joins_nor_goes_on(shop: Site, worker: WorkerProcess) -> None:
    start(worker)
    send(shop, orders := made_up(10, 0), 0)
    wait_for_end(worker, orders)
    other = WorkerProcess(shop, "other")
    try:
        other.start()
        other.wait_for(lambda: "agents of orders is 'add_up' there and not there here" in other.text(), "the refusal")
        worker.stop()
        other.wait_for(
            lambda: "its output was what agents yield, and is records as they came here" in other.text(), "the halt"
        )
        other.stop()
    finally:
        other.end()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere:app", "there is no module nowhere in"),
        ("shop:nothing", "module shop has no nothing"),
        ("shop:totals", "totals is a Table, not an App of kafka_ratchet"),
        ("shop.py", "there is no module shop.py"),
        ("../shop:app", "write MODULE:NAME, as shop:app"),
        ("broken:app", "broken cannot be imported: ZeroDivisionError"),
        ("wants:app", "wants imports no_such_package, which is not installed"),
        ("other:app", "streams.payments: the program names it, and the settings do not; they have orders"),
        ("idle:app", "the program has no agent"),
    ],
)
def test_a_program_that_is_not_there_is_a_sentence(shop: Site, name: str, says: str) -> None:
    (shop.folder / "broken.py").write_text("1 / 0")
    (shop.folder / "wants.py").write_text("import no_such_package")
    (shop.folder / "other.py").write_text("from kafka_ratchet import App\napp = App()\napp.stream('payments')")
    (shop.folder / "idle.py").write_text("from kafka_ratchet import App\napp = App()\napp.stream('orders')")
    done = shop.command("worker", "--app", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
