"""Faust's own parts next to the lanes: none that reads a topic or keeps a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faust
import pytest
import venusian
from faust.transport.drivers.aiokafka import Transport

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker.faust_app import WorkerApp, faust_app
from kafka_ratchet.app.worker.program import load_program
from kafka_ratchet.errors import RatchetError, SettingsError
from kafka_ratchet.transport.assignment import LaneChannel


@pytest.fixture
def app(tmp_path: Path) -> WorkerApp:
    return faust_app(Settings(app="shop", state_folder=tmp_path), "127.0.0.1:1", {}, {})


async def nothing(stream: Any) -> None:
    async for _ in stream:
        pass


@pytest.mark.parametrize(
    "use",
    [
        lambda app: app.agent(app.topic("orders"))(nothing),
        lambda app: app.agent("orders")(nothing),
        lambda app: app.agent()(nothing),
        lambda app: app.actor("orders")(nothing),
        lambda app: app.stream(app.topic("orders")),
        lambda app: app.topic("orders").stream(),
        lambda app: aiter(app.topic("orders")),
        lambda app: aiter(app.topic(pattern="orders.*")),
        lambda app: app.Table("totals", default=int),
        lambda app: app.Table("totals", default=int).tumbling(60),
        lambda app: app.GlobalTable("totals"),
        lambda app: app.SetTable("totals"),
        lambda app: app.SetGlobalTable("totals"),
        lambda app: app.tables.add(faust.Table(app, name="totals")),
    ],
)
async def test_what_would_go_around_the_transactions_is_refused(app: WorkerApp, use: Callable[[Any], Any]) -> None:
    with pytest.raises(RatchetError, match=r"@app.agent\(app.stream\(...\)\).*app.Table\(...\).*--app.*from-faust"):
        use(app)
    assert not app.agents
    assert not app.tables
    assert not app.topics


async def test_what_stays(app: WorkerApp) -> None:
    app.agent(LaneChannel(app), name="lanes")(nothing)
    app.agent(app.channel())(nothing)
    app.timer(1.0)(nothing)
    app.task(nothing)
    assert len(app.agents) == 2


async def test_a_start_reads_no_metadata_of_packages_and_no_paths_of_modules(app: WorkerApp) -> None:
    made = app.agent(LaneChannel(app), name="lanes")(nothing)
    assert app.agents["lanes"] is made
    assert not hasattr(made, venusian.ATTACH_ATTR)
    assert isinstance(app.transport, Transport)
    assert not app.fixups
    as_faust = faust.App.agent(app, LaneChannel(app), name="as-faust")(nothing)
    assert {*vars(made), venusian.ATTACH_ATTR} == {*vars(as_faust)}
    assert made._on_error == as_faust._on_error
    for name in ("app", "concurrency", "isolated_partitions", "help", "supervisor_strategy", "use_reply_headers"):
        assert getattr(made, name) == getattr(as_faust, name)


def test_a_faust_app_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "written_for_faust.py").write_text("import faust\napp = faust.App('shop')\n")
    with pytest.raises(SettingsError, match=r"app is an object of Faust.*worker --faust \w+:app.*guide/faust.md"):
        load_program("written_for_faust:app")
