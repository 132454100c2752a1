"""The page's section about the result table: the sink's figures, and a store that is slow, away or wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pydantic import SecretStr

from kafka_ratchet.app.settings import Settings, SinkSettings, StreamSettings
from kafka_ratchet.app.status import result_view
from kafka_ratchet.app.web.server import WebServer
from kafka_ratchet.spark_sink.errors import SinkError


@pytest.fixture
def settings(broker: str, new_topic: Callable[..., str], tmp_path: Path) -> Settings:
    """A sink over a topic of two partitions, in one of which three records wait behind an aborted one."""
    given, output = new_topic(partitions=2), new_topic(partitions=2)
    writer = Producer({"bootstrap.servers": broker, "transactional.id": output})
    writer.init_transactions(30)
    hour_ago_ms = int(time.time() * 1000) - 3_600_000
    for values, finish in (([b"never"], writer.abort_transaction), ([b"a", b"b", b"c"], writer.commit_transaction)):
        writer.begin_transaction()
        for value in values:
            writer.produce(output, value, partition=1, timestamp=hour_ago_ms - (7_200_000 if value == b"never" else 0))
        writer.flush(30)
        finish(30)
    reader = Consumer({"bootstrap.servers": broker, "group.id": "reader"})
    deadline = time.monotonic() + 60
    # Kafka answers before the marker is there.
    while reader.get_watermark_offsets(TopicPartition(output, 1), timeout=60)[1] < 6:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    reader.close()
    stream = StreamSettings(input=given, output=output, dead_letters=f"{given}-dead")
    sink = SinkSettings(path=str(tmp_path / "<b>results</b>"), name="job")
    return Settings(app=f"group-of-{given}", bootstrap=broker, streams={"events": stream}, sink=sink)


async def shown(settings: Settings, http: aiohttp.ClientSession) -> tuple[str, Any]:
    server = WebServer(str(settings.bootstrap), settings)
    url = await server.start()
    try:
        async with http.get(url) as html, http.get(f"{url}/index.json") as body:
            return await html.text(), (await body.json())["results"]
    finally:
        await server.stop()


async def test_the_sink_is_on_the_page_as_in_the_terminal(
    settings: Settings, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_view, "PATIENCE_S", 60.0)
    html, results = await shown(settings, http)
    first, second = results["partitions"]
    assert first == {"partition": 0, "offset": None, "end": 0, "lag": 0, "lag_s": 0.0}
    assert 3600 <= second.pop("lag_s") == results["lag_s"] < 4200  # the aborted record is older, and waits for nobody
    assert second == {"partition": 1, "offset": None, "end": 6, "lag": 6}
    assert (results["job"], results["store"], results["generation"], results["lag"]) == ("job", "delta", 0, 6)
    assert "Results: job" in html
    assert "&lt;b&gt;results&lt;/b&gt;" in html
    assert "<b>results</b>" not in html
    assert results["taken_at"]
    assert "No job has opened this table yet" in html

    without = Settings(app=settings.app, bootstrap=settings.bootstrap, streams=settings.streams)
    html, results = await shown(without, http)
    assert (results, "Results:" in html) == (None, False)


async def test_several_sinks_are_on_the_page_each_with_its_own_figures(
    settings: Settings, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(result_view, "PATIENCE_S", 60.0)
    away = SinkSettings(store="duckdb", path=str(tmp_path), name="old-name", stream="none")
    settings = settings.model_copy(update={"sinks": {"second": away}})
    server = WebServer(str(settings.bootstrap), settings)
    url = await server.start()
    try:
        async with http.get(url) as html, http.get(f"{url}/index.json") as body:
            text, overview = await html.text(), await body.json()
        assert [(sink["name"], sink["job"], sink["lag"]) for sink in overview["sinks"]] == [
            ("job", "job", 6),
            ("second", "old-name", None),
        ]
        assert overview["results"] == overview["sinks"][0]
        assert "Results: second" in text
        assert "Start one with: ratchet sink job" in text
        wrong = "sink second: no stream 'none' in the settings"
        assert [each["page"] for each in overview["findings"] if each["text"].startswith(wrong)] == ["/sinks/second"]
        async with http.get(f"{url}/sinks.json") as body:
            assert [sink["name"] for sink in (await body.json())["sinks"]] == ["job", "second"]
        for name in ("second", "old-name"):
            async with http.get(f"{url}/sinks/{name}.json") as body:
                assert (await body.json())["sink"]["store"] == "duckdb"
        async with http.get(f"{url}/sinks/third.json") as body:
            assert "no sink is called 'third': there is 'job', 'second'" in await body.text()
    finally:
        await server.stop()


async def test_a_store_that_is_away_is_a_sentence_without_secrets(
    settings: Settings, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setattr(result_view, "PATIENCE_S", 60.0)
    url = f"postgresql://someone:s3cret@127.0.0.1:{unused_tcp_port}/x"
    for sink in (
        SinkSettings(store="postgres", url=SecretStr(url), password=SecretStr("s3cret2"), table="t"),
        SinkSettings(store="postgres", url=SecretStr(url.replace("//", "//[", 1)), table="t"),
    ):
        html, results = await shown(settings.model_copy(update={"sink": sink}), http)
        assert results["error"].startswith(("t in 127.0.0.1/x: ", "the url of the database cannot be read"))
        assert results["partitions"] == []
        assert "s3cret" not in html + str(results)

    def with_secrets(*_: object) -> None:
        raise RuntimeError("s3cret, said by a library")

    monkeypatch.setattr(result_view, "sink_status", with_secrets)
    html, results = await shown(settings, http)
    assert "does not answer" in results["error"]
    assert "s3cret" not in html + str(results)


async def test_a_slow_store_does_not_hold_up_the_page(
    settings: Settings, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    def slow(*_: object) -> None:
        assert answer.wait(60)
        raise SinkError("the store has come back, and refuses")

    monkeypatch.setattr(result_view, "sink_status", slow)
    monkeypatch.setattr(result_view, "PATIENCE_S", 0.05)
    monkeypatch.setattr(result_view, "FRESH_FOR_S", 0.05)
    server = WebServer(str(settings.bootstrap), settings)
    url = await server.start()

    async def error() -> str | None:
        async with http.get(f"{url}/index.json") as body:
            found: str | None = (await body.json())["results"]["error"]
            return found

    try:
        while (said := await error()) is None:
            pass
        assert "store delta has not answered for" in said
        answer.set()
        while "has come back" not in (await error() or ""):
            pass
    finally:
        answer.set()
        await server.stop()


async def test_an_answer_that_is_not_old_is_shown_while_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(result_view, "PATIENCE_S", 60.0)
    monkeypatch.setattr(result_view, "FRESH_FOR_S", 0.0)
    settings = Settings(sink=SinkSettings(path=str(tmp_path)))
    view, goes_on, asked = result_view.ResultsView("127.0.0.1:1", settings), threading.Event(), [0]
    last = await view.latest()  # Kafka is away, and nothing is known
    assert last is not None
    assert last.error

    def ask() -> result_view.Results:
        asked[0] += 1
        assert asked[0] == 1 or goes_on.wait(60)
        return replace(last, error=None, taken_at=str(asked[0]))

    async def taken_at() -> str | None:
        found = await view.latest()
        return found.taken_at if found is not None else None

    monkeypatch.setattr(view, "_ask", ask)
    await asyncio.sleep(0.01)
    assert await taken_at() == "1"  # an error is no answer that would be shown instead
    await asyncio.sleep(0.01)
    assert [await taken_at() for _ in range(3)] == ["1"] * 3
    assert asked[0] == 2
    monkeypatch.setattr(result_view, "STALE_MOST_S", -1.0)
    waits = asyncio.create_task(taken_at())
    await asyncio.sleep(0.05)
    assert not waits.done()
    goes_on.set()
    assert await waits == "2"
