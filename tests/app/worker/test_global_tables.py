"""Global tables and look-ups from outside on a real Kafka."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer as Client
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kafka_ratchet.app.cli.own_tables import ask
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.lookup import QueryError
from kafka_ratchet.app.status.own_tables import TablePage, parse_table_query
from kafka_ratchet.app.worker import global_tables
from kafka_ratchet.app.worker.global_tables import GlobalTables, prepare_global_tables
from kafka_ratchet.errors import SettingsError, StateError, TopicError, TopicMissing
from kafka_ratchet.producers import made_topic
from kafka_ratchet.tables.values.global_table import GlobalTable
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from tests.app.worker_process import Site, WorkerProcess, read_all
from tests.transport.kafka_side import until

COMPACT = {"cleanup.policy": "compact"}
STREAM = """
commit_interval_ms = 20

[streams.orders]
input = "{name}.in"
output = "{name}.out"
dead_letters = "{name}.dead"
deduplicate = false
partitions = 2

[streams.clicks]
input = "{name}.clicks"
output = "{name}.clicked"
dead_letters = "{name}.clicks-dead"
deduplicate = false
partitions = 2
"""
SHOP = """
import asyncio
from kafka_ratchet import App

app = App()
orders = app.stream("orders")
clicks = app.stream("clicks")
totals = app.Table("totals", default=int, stream=orders)
seen = totals.view()
taxes = app.GlobalTable("taxes", topic="{name}.taxes")

@app.agent(orders)
async def add_up(orders):
    async for order in orders:
        totals[order["user"]] += order["amount"] * taxes[order["country"]]
        if order["amount"] < 0:
            await asyncio.sleep(3600)
        yield totals[order["user"]]

@app.agent(clicks)
async def click(clicks):
    async for user in clicks:
        yield seen[user]
"""


def write(broker: str, topic: str, *records: tuple[str | None, Any], commit: bool = True, partition: int = 0) -> None:
    client = Client({"bootstrap.servers": broker, "transactional.id": f"{topic}-writer"})
    client.init_transactions(30)
    client.begin_transaction()
    for key, value in records:
        client.produce(topic, None if value is None else json.dumps(value), key, partition)
    if commit:
        client.commit_transaction(30)
    else:
        client.flush(30)
        client.abort_transaction(30)


async def test_a_global_table_is_what_its_topic_is_whatever_becomes_of_that(
    broker: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.transport.client.cluster.GONE_AFTER_S", 0.5)
    monkeypatch.setattr(global_tables, "PAUSE_S", 0.1)
    topic, admin = new_topic(1, cleanup_policy="compact"), AdminClient({"bootstrap.servers": broker})
    write(broker, topic, ("a", 1), ("b", 2), ("a", 3), ("b", None), ("c", 4))
    write(broker, topic, ("a", "aborted"), ("d", "aborted"), commit=False)
    table = GlobalTable("t", topic, memory_mb=1)
    cluster = Cluster(client_options(broker, {}))
    await cluster.start(30)
    tables = GlobalTables(cluster, [table], 1 << 20)
    try:
        await tables.start()
        assert dict(table) == {"a": 3, "c": 4}
        await asyncio.to_thread(write, broker, topic, ("c", None), ("e", 5))
        await until(lambda: dict(table) == {"a": 3, "e": 5})

        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        await until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == 2)
        await asyncio.to_thread(write, broker, topic, ("f", 6), partition=1)
        tables.look_at(await cluster.topics([topic]))
        await until(lambda: dict(table) == {"a": 3, "e": 5, "f": 6})

        seen: list[dict[str, int]] = []
        admin.delete_topics([topic])[topic].result(30)
        while not made_topic(admin, NewTopic(topic, 1, 1, config=COMPACT), 30):
            pass  # the deletion is still under way
        await asyncio.to_thread(write, broker, topic, ("a", 10), ("z", 11))

        def is_the_new_one() -> bool:
            seen.append(dict(table))
            return seen[-1] == {"a": 10, "z": 11}

        await until(is_the_new_one)
        assert all(each in ({"a": 3, "e": 5, "f": 6}, {}, {"a": 10, "z": 11}) for each in seen)

        await asyncio.to_thread(write, broker, topic, *((f"{number}", "x" * 1000) for number in range(1000)))
        await until(lambda: table.contents is None)
        with pytest.raises(StateError, match="takes more than memory_mb = 1"):
            table.get("a")
    finally:
        await tables.stop()
        await cluster.close()


def test_topics_of_global_tables_are_made_or_refused(broker: str, new_topic: Callable[..., str]) -> None:
    expires, settings = new_topic(1, cleanup_policy="delete", retention_ms=3_600_000), Settings()
    with pytest.raises(TopicError, match=rf"table t: cleanup.policy of topic {expires} is delete"):
        prepare_global_tables(broker, settings, [GlobalTable("t", expires)])
    hasty = new_topic(1, cleanup_policy="compact", delete_retention_ms=60_000)
    with pytest.raises(TopicError, match=rf"table t: delete.retention.ms of topic {hasty} is 60000.*=7200000"):
        prepare_global_tables(broker, settings, [GlobalTable("t", hasty)])
    forever = new_topic(1, cleanup_policy="delete", retention_ms=-1)
    missing = f"{forever}-2"
    refusing = Settings(create_topics=False)
    with pytest.raises(TopicMissing, match=rf"there is no topic '{missing}' \(did you mean '{forever}'\?\)"):
        prepare_global_tables(broker, refusing, [GlobalTable("t", missing)])
    prepare_global_tables(broker, settings, [GlobalTable("t", forever), GlobalTable("u", missing)])
    prepare_global_tables(broker, refusing, [GlobalTable("u", missing)])
    for name in ("a b", ".."):
        with pytest.raises(SettingsError, match="is not a Kafka topic name"):
            prepare_global_tables(broker, settings, [GlobalTable("t", name)])


@pytest.fixture
def worker(broker: str, tmp_path: Path) -> Iterator[WorkerProcess]:
    name = f"taxed-{uuid.uuid4().hex[:8]}"
    (tmp_path / "taxed.py").write_text(SHOP.format(name=name))
    worker = WorkerProcess(Site(tmp_path, broker, name, STREAM.format(name=name)))
    yield worker
    worker.end()


@pytest.mark.matrix
def test_tables_are_read_from_outside_as_they_were_committed(worker: WorkerProcess) -> None:
    site, name = worker.site, worker.site.app
    made_topic(AdminClient({"bootstrap.servers": site.broker}), NewTopic(f"{name}.taxes", 1, 1, config=COMPACT), 30)
    write(site.broker, f"{name}.taxes", ("de", 19), ("ch", 8))
    worker.start(arguments=("--app", "taxed:app"))
    worker.wait_for(lambda: "worker runs" in worker.text(), "the start")

    def order(user: str, amount: int, partition: int) -> None:
        record = {"user": user, "amount": amount, "country": "de" if partition else "ch"}
        write(site.broker, f"{name}.in", (None, record), partition=partition)

    for partition in range(2):
        order("ann", 1, partition)
    order("<b>", 1, 0)
    worker.wait_for(lambda: site.position(f"{name}.in") >= 4, "the commit")
    order("ann", -1, 0)  # it is written to the table, and then never ends

    def answer(table: str, **query: str) -> TablePage:
        return asyncio.run(ask(site.broker, site.settings, table, None, parse_table_query(query)))

    def rows(page: TablePage) -> list[tuple[Any, int, Any]]:
        return [(entry.key, row.partition, row.value) for entry in page.entries for row in entry.values]

    typed = site.command("tables", "totals", "ann", "--json")
    assert rows(msgspec.json.decode(typed.stdout, type=TablePage)) == [("ann", 0, 8), ("ann", 1, 19)], typed.stderr
    assert rows(answer("totals", limit="1")) == [("<b>", 0, 8)]
    assert rows(answer("totals", after=b'"<b>"'.hex())) == [("ann", 0, 8), ("ann", 1, 19)]
    assert rows(answer("taxes", key="de")) == [("de", 0, 19)]
    for partition in range(2):
        write(site.broker, f"{name}.clicks", (None, "ann"), partition=partition)
    worker.wait_for(lambda: site.position(f"{name}.clicks") >= 2, "the commit")
    clicked = {
        number: [each.value() for each in found] for number, found in read_all(site.broker, f"{name}.clicked").items()
    }
    assert clicked == {0: [b"8"], 1: [b"19"]}
    with pytest.raises(QueryError, match="has no table 'orders'; its tables are taxes, totals"):
        answer("orders")
    worker.kill()
    gone = asyncio.run(ask(site.broker, site.settings, "totals", "orders", parse_table_query({"key": "ann"})))
    assert (gone.entries, gone.not_asked) == ([], [0, 1])
    assert "did not answer" in gone.problems[-1]
