"""The first page's strip and chart, the pages of streams and workers, and the events, over a real status address."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.history import EVERY_S, Event, EventsAnswer, HistoryAnswer, HistoryQuery, Interval
from kafka_ratchet.app.status.server import StatusServer
from kafka_ratchet.app.web import live
from kafka_ratchet.app.web.routes import NAVIGATION, PAGES, links
from kafka_ratchet.app.worker.journal.history import WorkerHistory
from tests.app.web.test_pages import TableReader, page, read, read_json
from tests.app.worker.known_worker import KnownWorker, member, partition, settings_for, table
from tests.app.worker.test_history import Stream, lane

HOSTILE = "<script>document.title='x'</script>"


class KnownPast:
    """Past of a worker: a real history, and events that the test knows."""

    def __init__(self, history: WorkerHistory) -> None:
        self._history = history

    async def history(self, query: HistoryQuery) -> HistoryAnswer | None:
        return await self._history.answer(query)

    async def events(self, begin: float) -> EventsAnswer:
        events = [Event(time.time() - 5, "halted", HOSTILE, "events", [0, 1, 2, 7])]
        return EventsAnswer("1.2.3", time.time() - 60, [each for each in events if each.at >= begin])

    def intervals(self, stream: str) -> list[Interval]:
        return [Interval(1, 1, True, 500, None, 0), Interval(1, 0, False, 100, 500, 400)]


@asynccontextmanager
async def serving(settings: Settings, topic: str, folder: Path, partitions: int) -> AsyncIterator[str]:
    """A page and a worker with a history of some minutes."""
    stream = Stream(partitions, lanes={0: lane(5, 9, int(time.time())), 1: lane(4, 4)})
    history = WorkerHistory(folder, {"events": stream})
    history.open()
    now = int(time.time()) // EVERY_S
    for slot in range(now - 60, now):
        stream.counts += [90, 10, 0, 0, 0, 0]
        await history.write(slot)
    rows = [
        partition(
            number, lag_s=90.0 if number == 1 else 0.0, state="halted" if number == 1 else "running", error=HOSTILE
        )
        for number in range(partitions)
    ]
    known = KnownWorker([replace(table(*rows, topic=topic), standbys=[1])])
    async with AsyncExitStack() as running:
        status = StatusServer(known, worker="worker-a", history=KnownPast(history))
        url = await status.start()
        running.push_async_callback(status.stop)
        await running.enter_async_context(member(settings, topic, url))
        yield await running.enter_async_context(page(settings))
    history.close()


async def test_what_workers_keep_is_on_the_pages(
    broker: str, new_topic: Callable[..., str], http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    topic = new_topic(partitions=2)
    settings = settings_for(broker, topic)
    async with serving(settings, topic, tmp_path, 60) as url:
        first, told = await read(http, url), await read_json(http, url)
        history = await read_json(http, f"{url}/history")
        figures = await read(http, f"{url}/history", range="1h")
        stream, second = await read(http, f"{url}/streams/events"), await read(http, f"{url}/streams/events", page="2")
        halted = await read_json(http, f"{url}/streams/events", state="halted")
        what_to_do = await read(http, f"{url}/streams/events", state="halted")
        by_lag = await read_json(http, f"{url}/streams/events.json", sort="lag")
        streams, workers = await read(http, f"{url}/streams"), await read(http, f"{url}/workers")
        whose = await read_json(http, f"{url}/workers")
        refused = {}
        for path in ("streams/other", "streams/events?page=3", "streams/events?sort=x", "workers?range=x", "?range=9h"):
            async with http.get(f"{url}/{path}") as response:
                refused[path] = response.status, await response.text()

    [flow] = told["flows"]
    assert (flow["judged"], flow["forwarded"]) == (10.0, 9.0)
    assert (flow["duplicate_1h"], flow["lag_s"]) == (0.1, 90.0)
    assert flow["covered_1h"] == pytest.approx(2 / 60)
    assert told["findings"][0]["command"] == "ratchet resume --stream events --partition 1"
    assert {"ratchet resume --stream events --partition 1", "10.0%", "by 90 s"} <= {
        each for each in ("ratchet resume --stream events --partition 1", "10.0%", "by 90 s") if each in first
    }
    assert "Points are missing" in first
    assert "The first 20 of 60 partitions" in first
    assert set(history["points"]["counts"]["fresh"]) == {90}
    assert len(TableReader(figures).rows) == len(history["points"]["times"]) + 1
    assert [row[1:4] for row in TableReader(figures).rows[1:3]] == [["9", "1", "0"]] * 2

    rows = [row for row in TableReader(stream).rows if row and row[0].isdigit()]
    assert [row[0] for row in rows[:3]] == ["0", "1", "2"]
    assert rows[1][2:4] == ["599", "90.0"]
    assert (rows[1][5], rows[1][6], rows[0][6]) == ("worker-a", "worker-a", "none")
    assert "<polyline" in stream
    assert [row[:5] for row in TableReader(stream).rows[-2:]] == [
        ["1", "on", "500", "until now", "0"],
        ["1", "off", "100", "500", "400"],
    ]
    assert next(row[0] for row in TableReader(second).rows if row and row[0].isdigit()) == "50"
    assert [row["partition"] for row in halted["partitions"]] == [1]
    assert "Repair of a halted partition" in what_to_do
    assert "<code>ratchet resume --stream events --partition 1</code></p>" in what_to_do
    assert by_lag["partitions"][0]["partition"] == 1
    assert "59 running" in streams
    assert "1 halted" in streams
    assert "1.2.3" in workers
    assert "0-2, 7" in workers
    assert whose["workers"][0]["partitions"]["events"] == list(range(60))
    for html in (first, stream, workers):
        assert HOSTILE not in html
        assert "&lt;script&gt;" in html
    assert {status for status, _ in refused.values()} == {400}
    assert "there is no stream" in refused["streams/other"][1]


async def test_events_are_bounded_and_end_with_the_server(
    unused_tcp_port: int, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LISTENERS_MOST", 1)
    async with page(settings_for(f"127.0.0.1:{unused_tcp_port}")) as url:
        async with http.get(f"{url}/events") as response:
            assert response.content_type == "text/event-stream"
            assert response.headers["Content-Security-Policy"]
            assert b"retry" in await response.content.readline()
            async with asyncio.timeout(30):
                while b"changed" not in await response.content.readline():
                    pass
            async with http.get(f"{url}/events") as second:
                assert second.status == 503
        listener = await http.get(f"{url}/streams")
        assert listener.status == 200
        open_still: Any = None
        async with asyncio.timeout(30):
            while open_still is None:  # until the first one is noticed to be gone
                answer = await http.get(f"{url}/events")
                if answer.status == 200:
                    open_still = answer
                else:
                    answer.release()
                    await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        await open_still.content.read()  # it ends, and does not hang


def test_the_navigation_leads_to_what_is_there() -> None:
    there = {each.path for each in PAGES}
    assert {path for path, _ in links()} == {path for path, _ in NAVIGATION} & there
    assert {"/", "/streams", "/workers"} <= there
