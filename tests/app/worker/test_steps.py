"""Several steps in a real worker on a real Kafka: what one stream sends, the next one counts, whoever is killed."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka import Producer as Client
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.app.worker_process import PATIENCE_S, Site, WorkerProcess, read_all

SETTINGS = """
session_timeout_ms = 6000
commit_interval_ms = 20

[streams.orders]
input = "{name}.in"
output = "{name}.out"
dead_letters = "{name}.dead"
partitions = 2
"""
SHOP = """
import msgspec
from kafka_ratchet import App

class Order(msgspec.Struct):
    number: int
    user: str
    amount: int

app = App()
orders = app.stream("orders", value_type=Order)
by_user = orders.group_by("by-user", key=lambda order: order.user)
totals = app.Table("totals", default=int, stream=by_user)
alerts = app.topic("NAME-alerts")

@app.agent(by_user)
async def add_up(orders):
    async for event in orders.events():
        assert event.key == event.value.user.encode()
        totals[event.value.user] += event.value.amount
        if event.value.amount == 70:
            await alerts.send(key=event.value.user, value=event.value.number, headers=event.headers[:1])
        yield {"amount": event.value.amount, "total": totals[event.value.user]}
"""
Orders = list[tuple[str, int]]


@pytest.fixture
def shop(broker: str, tmp_path: Path) -> Site:
    name = f"steps-{uuid.uuid4().hex[:8]}"
    (tmp_path / "shop.py").write_text(SHOP.replace("NAME", name))
    return Site(tmp_path, broker, name, SETTINGS.format(name=name))


@pytest.fixture
def worker(shop: Site) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(shop)
    yield worker
    worker.end()


def start(worker: WorkerProcess, crash_at: str | None = None) -> None:
    before = worker.text().count("worker runs")
    worker.start(crash_at, arguments=("--app", "shop:app"))
    worker.wait_for(lambda: worker.text().count("worker runs") > before, "the start")


def made_up(count: int, seed: int) -> Orders:
    choose = Random(seed)
    return [(f"user-{choose.randrange(7)}", choose.choice([0, 1, 5, 70])) for _ in range(count)]


def send(site: Site, orders: Orders, first: int) -> None:
    """Each order twice, under a key that says nothing of the user."""
    client = Client({"bootstrap.servers": site.broker})
    for number, (user, amount) in enumerate(orders, first):
        headers = [("ratchet-producer", b"shop"), ("ratchet-sequence", str(number).encode())]
        value = json.dumps({"number": number, "user": user, "amount": amount})
        for _ in range(2):
            client.produce(f"{site.app}.in", value, partition=number % 2, headers=headers)
    assert client.flush(30) == 0


def outputs(site: Site) -> dict[str, list[Any]]:
    found = dict[str, list[Any]]()
    for messages in read_all(site.broker, f"{site.app}-by-user").values():
        for message in messages:
            found.setdefault(message.key().decode(), []).append(json.loads(message.value()))
    return found


def kill_at(worker: WorkerProcess, points: tuple[str, ...], *, loses_its_store: bool) -> Orders:
    """Kill the worker at each of these points while orders come; returns the orders, when all of them are counted."""
    sent: Orders = []

    def send_more() -> bool:
        orders = made_up(50, len(sent))
        send(worker.site, orders, len(sent))
        sent.extend(orders)
        return worker.process.poll() is not None

    for point in points:
        start(worker, point)
        deadline = time.monotonic() + PATIENCE_S
        while not send_more():
            assert time.monotonic() < deadline, f"{point} is not reached:\n{worker.text()[-3000:]}"
            time.sleep(0.1)
        assert worker.process.returncode == -9, worker.text()[-3000:]
        if loses_its_store:
            shutil.rmtree(worker.state)
    start(worker)
    send_more()
    worker.wait_for(lambda: sum(map(len, outputs(worker.site).values())) >= len(sent), "the last output")
    return sent


def check(site: Site, sent: Orders) -> None:
    found = outputs(site)
    assert {user: Counter(row["amount"] for row in rows) for user, rows in found.items()} == {
        user: Counter(amount for name, amount in sent if name == user) for user, _ in sent
    }
    for rows in found.values():
        assert [row["total"] for row in rows] == [
            sum(row["amount"] for row in rows[: number + 1]) for number in range(len(rows))
        ]
    alerts = read_all(site.broker, f"{site.app}-alerts")
    assert Counter(
        (message.key(), json.loads(message.value())) for messages in alerts.values() for message in messages
    ) == Counter((user.encode(), number) for number, (user, amount) in enumerate(sent) if amount == 70)
    for partition, messages in alerts.items():
        assert all((murmur2(message.key()) & 0x7FFFFFFF) % len(alerts) == partition for message in messages)
        assert all(message.headers() == [("ratchet-producer", b"shop")] for message in messages)
    assert not any(read_all(site.broker, f"{site.app}-by-user-dead-letters").values())


def test_two_steps_count_each_event_once(shop: Site, worker: WorkerProcess) -> None:
    sent = kill_at(worker, ("committed:4",), loses_its_store=False)
    check(shop, sent)
    # Commands read settings that say nothing of the internal stream.
    (entry,) = json.loads(shop.command("tables", "totals", "user-1", "--json").stdout)["entries"]
    assert [each["value"] for each in entry["values"]] == [sum(amount for user, amount in sent if user == "user-1")]
    overview = json.loads(shop.command("tables", "--json").stdout)
    assert ([each["stream"] for each in overview["streams"]], overview["problems"]) == (["orders", "by-user"], [])
    trace = ("why", "--topic", f"{shop.app}.in", "--partition", "0", "--offset", "0", "--json")
    arrival, *again = json.loads(shop.command(*trace).stdout)["arrivals"]
    (sent_on,) = arrival["sent"]
    assert (sent_on["at"]["topic"], sent_on["read"]) == (f"{shop.app}-repartition.by-user", True)
    assert arrival["verdict"] == "fresh"
    assert {(each["verdict"], len(each["sent"])) for each in again} <= {("duplicate", 0)}
    worker.stop()
    topic = f"{shop.app}-repartition.by-user"
    admin, resource = AdminClient({"bootstrap.servers": shop.broker}), ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([resource])[resource].result(30)
    assert (config["cleanup.policy"].value, config["retention.ms"].value) == ("delete", "-1")
    assert len(read_all(shop.broker, topic)) == 2


@pytest.mark.long
@pytest.mark.parametrize("loses_its_store", [False, True])
def test_whatever_it_dies_of(shop: Site, worker: WorkerProcess, loses_its_store: bool) -> None:
    points = ("agent", "judged", "produced", "logged", "offered", "committed", "remembered")
    counted = tuple(f"{point}:{number}" for number in (2, 5) for point in points)
    check(shop, kill_at(worker, counted, loses_its_store=loses_its_store))
