"""Partition of a view; without one, nothing commits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.worker.application import Application
from kafka_ratchet.app.worker.topics import StreamTopics
from kafka_ratchet.app.worker.views import TableViews
from kafka_ratchet.errors import Aborted, SettingsError
from kafka_ratchet.tables.values.committed import CommittedTable
from kafka_ratchet.tables.values.partition import AT_WORK, PartitionTables
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.tables.values.table_partition import nothing, nowhere
from kafka_ratchet.transport.lane_spec import LaneState

LIMIT = 1 << 20


@dataclass
class Stream:
    """Stream as `TableViews` sees it."""

    name: str
    partitions: int
    tables: list[Table] = field(default_factory=list)

    @property
    def topics(self) -> Any:
        return SimpleNamespace(changelog=f"{self.name}-changelog", partitions=self.partitions)

    @property
    def sequences(self) -> Any:
        return SimpleNamespace(tables=self.tables, partition=self.partition)

    def partition(self, number: int) -> Any:
        def committed_table(name: str) -> CommittedTable:
            tables = PartitionTables(nowhere, nothing)
            tables.add(self.tables[0].codec, None)
            tables.open()
            tables.of(name).set("a", number)
            tables.commit()
            return CommittedTable(tables.of(name), nowhere, lambda prefix, first: (_ for _ in ()), tables.unsaved)

        return SimpleNamespace(committed_table=committed_table)


@pytest.fixture(autouse=True)
def _nobody_at_work() -> Iterator[None]:
    yield
    AT_WORK.set(None)


def at_work(stream: str, number: int) -> PartitionTables:
    reader = PartitionTables(nowhere, nothing, (f"{stream}-changelog", number))
    AT_WORK.set(reader)
    return reader


def test_a_view_reads_the_partition_of_its_own_number_or_nothing_commits() -> None:
    totals = Table("totals", default=int)
    streams: dict[str, Any] = {
        f"{each.name}-changelog": each
        for each in (Stream("orders", 4, [totals]), Stream("clicks", 4), Stream("odd", 3))
    }
    lanes: dict[Any, Any] = {
        ("orders-changelog", number): SimpleNamespace(status=SimpleNamespace(state=state))
        for number, state in enumerate(["running", "halted", "restoring"])
    }
    TableViews(streams, lanes).open()
    view = totals.view()
    at_work("clicks", 0)
    assert (view["a"], view["b"]) == (0, 0)
    at_work("clicks", 1)
    assert view["a"] == 1
    for number in (2, 3):
        reader = at_work("clicks", number)
        with pytest.raises(Aborted, match=f"partition {number} of stream orders does not run"):
            view.get("a")
        with pytest.raises(Aborted):
            reader.encode(1 << 20)  # also where the program has caught it
        reader.rollback()
        assert reader.encode(1 << 20) == []
    for stream, said in (("odd", "stream orders has 4 partitions, and odd has 3"), ("orders", "read the table itself")):
        at_work(stream, 0)
        with pytest.raises(SettingsError, match=said):
            view.get("a")


async def test_a_worker_opens_the_tables_of_its_streams_to_views(tmp_path: Path) -> None:
    app, names = App(), ("orders", "clicks")
    streams = {name: app.stream(name) for name in names}
    totals = app.Table("totals", default=int, stream=streams["orders"])

    async def agent(events: Any) -> None:
        async for _ in events:
            pass

    for each in streams.values():
        app.agent(each)(agent)
    sections = {name: StreamSettings(input=name, output=f"{name}-out", dead_letters=f"{name}-dead") for name in names}
    settings = Settings(app="shop", state_folder=tmp_path, streams=sections)
    topics = {name: StreamTopics(f"{name}-changelog", 4, LIMIT, LIMIT, LIMIT) for name in names}
    application = Application(settings, "127.0.0.1:1", topics, app)
    view, source = totals.view(), application.streams["orders"].sequences.partition(2)
    AT_WORK.set(application.streams["clicks"].sequences.partition(2).tables)
    with pytest.raises(Aborted):
        view.get("ann")
    await asyncio.to_thread(source.open)
    lane: Any = SimpleNamespace(status=SimpleNamespace(state=LaneState.RUNNING))
    application.lanes.running["orders-changelog", 2] = lane
    source.tables.open()
    source.tables.of("totals").set("ann", 5)
    assert view["ann"] == 0
    source.tables.commit()
    assert view["ann"] == 5
    lane.status.state = LaneState.RESTORING
    with pytest.raises(Aborted):
        view.get("ann")
    source.close()
