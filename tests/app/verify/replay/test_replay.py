"""`verify --replay` over what a real worker has left on a real Kafka, and over what others have written among it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_ratchet import App
from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.verify import ExitCode, Report, verify
from kafka_ratchet.app.verify.replay.run import ReplayedAgents
from kafka_ratchet.app.verify.replay.tables import ReplayTables
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.tables.totals import PROGRESS
from tests.app.worker_process import Site, WorkerProcess, read_all

STREAM = """
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
    user: str
    amount: int


app = App()
orders = app.stream("orders", value_type=Order)
totals = app.Table("totals", default=int)


@app.agent(orders)
async def add_up(orders):
    async for event in orders.events():
        order = event.value
        totals[order.user] += order.amount
        yield {"user": order.user, "total": totals[order.user], "id": event.id}
"""
EVENTS = 400


@pytest.fixture
def worker(broker: str, tmp_path: Path) -> Iterator[WorkerProcess]:
    name = f"shop-{uuid.uuid4().hex[:8]}"
    (tmp_path / "shop.py").write_text(SHOP)
    worker = WorkerProcess(Site(tmp_path, broker, name, STREAM.format(name=name)))
    yield worker
    worker.end()


def program(text: str = SHOP) -> App:
    names: dict[str, App] = {}
    exec(text, names)  # noqa: S102 - the program above
    return names["app"]


def replay(site: Site, text: str = SHOP, state: Path | None = None, stream: str = "orders") -> Report:
    return ReplayedAgents(program(text), "shop:app", site.settings, stream).verify(site.broker, state)


def write(site: Site, topic: str, *records: tuple[bytes, bytes], partition: int = 0) -> None:
    client = Producer({"bootstrap.servers": site.broker})
    for key, value in records:
        client.produce(topic, value, key, partition)
    assert client.flush(30) == 0


def send(site: Site, first: int, count: int) -> None:
    """Each order twice, and one that nobody can read."""
    client = Producer({"bootstrap.servers": site.broker})
    for number in range(first, first + count):
        user = f"user-{number % 11}"
        value = json.dumps({"user": user, "amount": number}) if number % 100 else "?"
        headers = [("ratchet-producer", b"shop"), ("ratchet-sequence", b"%d" % number)]
        for _ in range(2):
            client.produce(f"{site.app}.in", value, user, headers=headers)
    assert client.flush(30) == 0


def test_tables_without_a_position_in_the_changelog_are_not_proven(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = worker.site
    worker.start(arguments=("--app", "shop:app"))
    worker.wait_for(lambda: "worker runs" in worker.text(), "the start")
    send(site, 1, 1)
    worker.wait_for(lambda: site.position(f"{site.app}.in") == 2, "the end")
    worker.stop()
    assert replay(site).exit_code() == ExitCode.PROVEN
    seen = ReplayTables._seen

    def cleaned(self: ReplayTables, entries: Iterable[tuple[int, RecordView]]) -> Any:
        return seen(self, (each for each in entries if each[1].key != PROGRESS))

    monkeypatch.setattr(ReplayTables, "_seen", cleaned)
    report = replay(site, state=site.folder / "state")
    assert (report.exit_code(), report.findings, report.state_written) == (ExitCode.NOT_ALL_PROVEN, [], False)
    assert report.replay is not None
    [left_out] = report.replay.not_compared
    assert left_out.reason.startswith("the changelog lacks the input offset of its entries")


def test_records_before_1970_and_without_a_timestamp(worker: WorkerProcess) -> None:
    site = worker.site
    worker.start(arguments=("--app", "shop:app"))
    worker.wait_for(lambda: "worker runs" in worker.text(), "the start")
    client = Producer({"bootstrap.servers": site.broker})
    stamps = [-1, -5_000, -60_000, -62_135_596_800_000, -1, 1_700_000_000_000]
    for number, stamp in enumerate(stamps):
        headers: list[Any] = [("ratchet-producer", b"shop"), ("ratchet-sequence", b"%d" % number)]
        value = json.dumps({"user": "ann", "amount": 1})
        client.produce(f"{site.app}.in", value, "ann", 0, timestamp=stamp, headers=headers)
    assert client.flush(30) == 0
    worker.wait_for(lambda: site.position(f"{site.app}.in") == len(stamps), "the end")
    worker.stop()
    (rows,) = [rows for rows in read_all(site.broker, f"{site.app}.out").values() if rows]
    assert [each.timestamp()[1] for each in rows] == stamps
    report = replay(site)
    assert (report.exit_code(), report.findings, report.delivered) == (ExitCode.PROVEN, [], len(stamps))


@pytest.mark.matrix
def test_a_replay_is_like_what_was_left_and_finds_what_others_have_written(worker: WorkerProcess) -> None:
    site = worker.site
    state = site.folder / "shop.verify"
    worker.start("produced:2", arguments=("--app", "shop:app"))
    worker.wait_for(lambda: "worker runs" in worker.text(), "the start")
    send(site, 0, EVENTS)
    assert worker.process.wait(60) == -9
    worker.start(arguments=("--app", "shop:app"))
    worker.wait_for(lambda: site.position(f"{site.app}.in") == 2 * EVENTS, "the end")
    first = replay(site, state=state)
    assert (first.exit_code(), first.findings, first.state_written) == (ExitCode.PROVEN, [], True)
    assert first.replay is not None
    assert (first.fresh, first.duplicate, first.invalid) == (EVENTS, EVENTS, 0)
    assert (first.delivered, first.dead_letters, first.pending) == (EVENTS - 4, 4, 0)
    assert (first.replay.outputs, first.replay.entries) == (EVENTS - 4, 11)

    # A second run goes on from the first, with the tables as they were.
    send(site, EVENTS, 200)
    worker.wait_for(lambda: site.position(f"{site.app}.in") == 2 * EVENTS + 400, "the end")
    worker.stop()
    second = replay(site, state=state)
    assert (second.exit_code(), second.findings, second.state_written) == (ExitCode.PROVEN, [], True)
    assert (second.fresh, second.delivered, second.dead_letters) == (200, 198, 2)
    with pytest.raises(SettingsError, match="ratchet verify --replay --app MODULE:NAME --stream orders"):
        verify(site.settings)

    # The program was edited.
    edited = replay(site, SHOP.replace("+= order.amount", "+= order.amount + 10**6"))
    assert edited.exit_code() == ExitCode.WRONG
    assert edited.counts == {"altered": EVENTS + 200 - 6 + 11}
    assert edited.replay is not None
    assert "may come from an edit of the program" in edited.replay.notes[0]
    fails = replay(site, SHOP.replace("totals[order.user] +=", "totals[order.nobody] +="))
    assert [finding.kind for finding in fails.findings] == ["contradicted"] * 2
    assert "the program fails at input that workers have processed" in fails.findings[0].detail

    # Others have written.
    changelog = changelog_name(site.app, "orders")
    here = {
        each.key(): (number, each) for number, rows in read_all(site.broker, f"{site.app}.out").items() for each in rows
    }
    partition, newest = here[b"user-3"]
    forged = json.dumps({"user": "user-3", "total": 10**6}).encode()
    write(site, f"{site.app}.out", (b"user-3", forged), partition=partition)
    write(site, changelog, (b't\x06totals"user-3"', b"1000000"), partition=partition)
    report = replay(site, state=state)
    assert (report.exit_code(), report.state_written) == (ExitCode.WRONG, False)
    said = sorted(map(str, report.findings))
    total = json.loads(newest.value())["total"]
    assert len(said) == 2, said
    assert said[0].startswith(f"altered: topic {changelog}, partition {partition} offset ")
    assert said[0].endswith(f"table totals key 'user-3': '{total}' in the replay, '1000000' in the changelog")
    assert said[1].startswith(f"unexpected: topic {site.app}.out, partition {partition} offset ")
    assert 'key \'user-3\', value \'{"user": "user-3", "total": 1000000}\' in the topic' in said[1]
    done = site.command("verify", "--replay", "--app", "shop:app", "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert (told["altered"], told["unexpected"], told["replay"]["agents"]) == (1, 1, ["add_up"])


BATCHES = """
from kafka_ratchet import App

app = App()
orders = app.stream("orders")
alerts = app.topic("NAME.alerts")


@app.agent(orders)
async def tell(orders):
    async for batch in orders.batches(["key", "value"]):
        for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist()):
            await alerts.send(key=key, value=value)
"""


def test_timestamps_of_sends_over_batches_are_not_compared(worker: WorkerProcess) -> None:
    pytest.importorskip("pyarrow")
    site = worker.site

    def has_read(end: int) -> bool:
        return site.position(f"{site.app}.in") == end

    text = BATCHES.replace("NAME", site.app)
    (site.folder / "shop.py").write_text(text)
    worker.start(arguments=("--app", "shop:app"))
    worker.wait_for(lambda: "worker runs" in worker.text(), "the start")
    client = Producer({"bootstrap.servers": site.broker})
    for number in range(3):
        headers: list[Any] = [("ratchet-producer", b"shop"), ("ratchet-sequence", b"%d" % number)]
        client.produce(
            f"{site.app}.in", b"%d" % number, "ann", 0, timestamp=1_700_000_000_000 + number, headers=headers
        )
        assert client.flush(30) == 0
        worker.wait_for(partial(has_read, number + 1), "the end")
    worker.stop()
    report = replay(site, text)
    assert (report.exit_code(), report.findings) == (ExitCode.PROVEN, [])
    assert report.replay is not None
    assert report.replay.sent == {f"{site.app}.alerts": 3}
    assert report.replay.notes == [
        "agents take batches: timestamps of their outputs and sent records were not compared"
    ]


ALERTS = """
import msgspec
from kafka_ratchet import App


class Order(msgspec.Struct):
    user: str
    amount: int


app = App()
orders = app.stream("orders", value_type=Order)
alerts = app.topic("NAME.alerts")
by_amount = orders.group_by("by-amount", key=lambda order: str(order.amount % 5))
counts = app.Table("counts", default=int, stream=by_amount)


@app.agent(orders)
async def tell(orders):
    async for order in orders:
        await alerts.send(key=order.user, value=order.amount)
        yield {"told": order.user}


@app.agent(orders)
async def note(orders):
    async for order in orders:
        yield {"noted": order.amount}


@app.agent(by_amount)
async def count(orders):
    async for order in orders:
        counts[order.amount % 5] += 1
        yield counts[order.amount % 5]
"""


def test_what_is_in_no_order_is_compared_as_often_as_it_is_there(worker: WorkerProcess) -> None:
    site = worker.site
    text = ALERTS.replace("NAME", site.app)
    (site.folder / "shop.py").write_text(text)
    worker.start(arguments=("--app", "shop:app"))
    worker.wait_for(lambda: "worker runs" in worker.text(), "the start")
    send(site, 0, 100)
    steps = f"{site.app}-repartition.by-amount"
    worker.wait_for(lambda: site.position(f"{site.app}.in") == 200, "the end of the input")
    counted = f"{site.app}-by-amount"
    worker.wait_for(lambda: sum(map(len, read_all(site.broker, counted).values())) == 99, "the end of the step")
    worker.stop()
    alerts = f"{site.app}.alerts"
    write(site, alerts, (b"user-1", b"of others"))
    report = replay(site, text)
    assert (report.exit_code(), report.findings) == (ExitCode.PROVEN, [])
    assert report.replay is not None
    assert (report.replay.sent, report.replay.of_others) == ({alerts: 99, steps: 99}, {alerts: 1, steps: 0})
    # Three agents: what they yield has no order between them; what none of them can read is one dead letter.
    assert (report.replay.outputs, report.delivered, report.dead_letters) == (198, 198, 1)
    assert report.replay.notes == ["several agents yield: their outputs were compared without their order"]

    step = replay(site, text, stream="by-amount")
    assert (step.findings, step.unjudged, step.delivered) == ([], 99, 99)
    assert step.replay is not None
    assert (step.exit_code(pending_ok=True), step.replay.entries) == (ExitCode.PROVEN, 5)

    number, copied = next((number, rows[0]) for number, rows in read_all(site.broker, alerts).items() if len(rows) > 1)
    client = Producer({"bootstrap.servers": site.broker})
    client.produce(alerts, copied.value(), copied.key(), number, timestamp=copied.timestamp()[1])
    assert client.flush(30) == 0
    write(site, f"{site.app}.out", (b"user-1", b"forged"), partition=number)
    assert dict(replay(site, text).counts) == {"doubled": 1, "unexpected": 1}
    edited = replay(site, text.replace("value=order.amount", "value=None").replace("noted", "written"))
    assert dict(edited.counts) == {"lost": 99 + 99, "unexpected": 99 + 1}


SETTINGS = Settings(
    app="shop",
    bootstrap="127.0.0.1:1",
    streams={
        name: StreamSettings(input=f"{name}.in", output=f"{name}.out", dead_letters=f"{name}.dead")
        for name in ("orders", "payments")
    },
)


@pytest.mark.parametrize(
    ("text", "stream", "says"),
    [
        (SHOP.replace("agent(orders)", "agent(orders, deterministic=False)"), None, "agent add_up is declared as not"),
        (
            SHOP + "\n@app.timer(1, stream=orders)\nasync def tick(): ...",
            None,
            "timer tick runs by the clocks of workers",
        ),
        (
            SHOP,
            "payments",
            r"streams.payments: program shop:app has no agent for this stream. .* \(orders\) with --stream",
        ),
        (SHOP.replace('"orders"', '"nowhere"'), None, "streams.nowhere: the program declares it"),
    ],
)
def test_what_cannot_be_run_again_is_said_before_kafka_is_asked(text: str, stream: str | None, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        ReplayedAgents(program(text), "shop:app", SETTINGS, stream)
