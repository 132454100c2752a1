import asyncio
import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import typer
from aiohttp import web
from confluent_kafka import Producer
from typer.testing import CliRunner
from yarl import URL

import kafka_ratchet.app.web
from kafka_ratchet.app.cli.tables import tables as tables_command
from kafka_ratchet.app.settings import Settings, WebSettings
from kafka_ratchet.app.status.answers import IdentityStatus, WorkerStatus
from kafka_ratchet.app.status.cluster_view import ClusterView
from kafka_ratchet.app.status.group import Group
from kafka_ratchet.app.status.kafka_view import InputPartition
from kafka_ratchet.app.status.model import merge
from kafka_ratchet.app.status.own_tables import AskedPartition, TableEntry, TablePage, TableQuery, TableValue
from kafka_ratchet.app.status.server import StatusServer
from kafka_ratchet.app.web.server import WebServer
from kafka_ratchet.errors import SettingsError, SetupError
from kafka_ratchet.tables.invalid_share import InvalidShare
from tests.app.worker.known_worker import KnownWorker, member, partition, settings_for, table

VENDOR = Path(kafka_ratchet.app.web.__file__).parent / "static" / "vendor"


class TableReader(HTMLParser):
    """The text of each cell, row by row, without what only screen readers are told."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in {"th", "td"}:
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in {"th", "td"}:
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data.strip()


@asynccontextmanager
async def page(settings: Settings, **options: Any) -> AsyncIterator[str]:
    server = WebServer(str(settings.bootstrap), settings, **options)
    url = await server.start()
    try:
        yield url
    finally:
        await server.stop()


@pytest.fixture
def nowhere(unused_tcp_port: int) -> Settings:
    """Settings whose Kafka does not answer: pages that need none of it are served all the same."""
    return settings_for(f"127.0.0.1:{unused_tcp_port}")


async def read(http: aiohttp.ClientSession, url: str, **parameters: str) -> str:
    async with http.get(url, params=parameters) as response:
        assert response.content_type == "text/html"
        return await response.text()


async def read_json(http: aiohttp.ClientSession, url: str, **parameters: str) -> Any:
    async with http.get(url, params=parameters, headers={"Accept": "application/json"}) as response:
        return await response.json()


@asynccontextmanager
async def one_worker(settings: Settings, topic: str, worker: KnownWorker) -> AsyncIterator[None]:
    async with AsyncExitStack() as running:
        status = StatusServer(worker, worker="worker-a")
        url = await status.start()
        running.push_async_callback(status.stop)
        await running.enter_async_context(member(settings, topic, url))
        yield


async def test_the_page_shows_what_the_worker_told_and_the_json_is_the_same(
    broker: str, new_topic: Callable[..., str], http: aiohttp.ClientSession
) -> None:
    topic = new_topic(partitions=3)
    settings = settings_for(broker, topic)
    known = KnownWorker(
        [
            table(
                partition(0, evicted_inactive=30, evicted_displaced=4),
                partition(
                    1,
                    state="halted",
                    error="<b>offset 7</b>: corrupt",
                    invalid=2,
                    too_late=5,
                    conflict=1_001,
                    missing=3,
                ),
                topic=topic,
            )
        ]
    )
    async with one_worker(settings, topic, known), page(settings) as url:
        html = await read(http, url)
        body = await read_json(http, url)
        async with http.get(f"{url}/index.json") as response:
            assert response.content_type == "application/json"
            by_path = await response.json()
        fragment = await read(http, f"{url}/tables")

    assert {**by_path, "taken_at": ""} == {**body, "taken_at": ""}
    assert body["group"] == "Stable"
    assert [worker["name"] for worker in body["workers"]] == ["worker-a"]
    (stream,) = body["streams"]
    assert [row["state"] for row in stream["partitions"]] == ["running", "halted", "unserved"]
    assert stream["partitions"][0]["lag"] == 600
    assert stream["partitions"][2]["lag"] == 0
    assert stream["totals"] == {
        "keys": 2001,
        "lag": 1199,
        "fresh": 18_000_000,
        "duplicate": 4_000_000,
        "invalid": 2,
        "evicted": 34,
        "unknown": 1,
        "unjudged": 0,
        "late": 5,
        "conflict": 1001,
        "missing": 3,
        "blocked": 0,
    }
    assert "unjudged" not in html
    for said in ("<dt>Too late</dt><dd>5<", "<dt>Conflicts</dt><dd>1,001<", "<dt>Missing</dt><dd>3<"):
        assert said in html
    for shown in (html, fragment):
        rows = TableReader(shown).rows
        for row in stream["partitions"]:
            cells = next(cells for cells in rows if cells[0] == str(row["partition"]))
            assert cells[1].endswith(row["state"])
            for column, name in {
                2: "fresh",
                3: "duplicate",
                4: "invalid",
                5: "keys",
                6: "evicted",
                7: "input_position",
                8: "input_end",
                9: "lag",
            }.items():
                assert cells[column] == ("–not known" if row[name] is None else f"{row[name]:,}"), name
            assert cells[11] == (row["worker"] or "–")
        assert "<b>offset" not in shown
        assert "&lt;b&gt;offset 7&lt;/b&gt;: corrupt" in shown


async def test_a_policy_that_is_off_is_on_the_page(
    broker: str, new_topic: Callable[..., str], http: aiohttp.ClientSession
) -> None:
    topic = new_topic(partitions=1)
    settings = settings_for(broker, topic)
    off = table(partition(0, unjudged=4_321, deduplicate=False, since=7), topic=topic)
    known = KnownWorker([replace(off, deduplicate=False, origin="global policy")])
    async with one_worker(settings, topic, known), page(settings) as url:
        html, body = await read(http, url), await read_json(http, url)
        found = await read(http, f"{url}/lookup", identity="a", sequence="1")
    (stream,) = body["streams"]
    assert (stream["deduplicate"], stream["origin"], stream["totals"]["unjudged"]) == (False, "global policy", 4_321)
    assert (stream["partitions"][0]["deduplicate"], stream["partitions"][0]["since"]) == (False, 7)
    assert "Deduplication is off (global policy)" in html
    assert "and 4,321 unjudged" in html
    assert "unseen" in found
    assert "leave no sequence here" in found


async def test_a_jump_in_the_share_of_invalid_records_is_a_problem(
    broker: str, new_topic: Callable[..., str], http: aiohttp.ClientSession
) -> None:
    topic = new_topic(partitions=2)
    settings = settings_for(broker, topic)
    usual, jumped = InvalidShare(1_000, 10, 100_000, 900), InvalidShare(1_000, 412, 100_000, 300)
    told = table(partition(0, recent=usual), partition(1, recent=jumped), topic=topic)
    async with one_worker(settings, topic, KnownWorker([told])), page(settings) as url:
        html = await read(http, url)
        (problem,) = (await read_json(http, url))["problems"]
    assert "partition 1: 412 of 1,000 records within the last minute were invalid (41.2%; before: 0.3%)" in problem
    assert f"the header ratchet-reason of each in {told.dead_letters}" in problem
    assert "412 of 1,000 records" in html


async def test_without_a_worker_kafka_itself_is_asked(
    broker: str, new_topic: Callable[..., str], http: aiohttp.ClientSession
) -> None:
    topic = new_topic(partitions=2)
    producer = Producer({"bootstrap.servers": broker})
    for number in range(5):
        producer.produce(topic, str(number).encode(), partition=1)
    producer.flush()
    settings = settings_for(broker, topic)
    async with page(settings) as url:
        html = await read(http, url)
        body = await read_json(http, url)
    assert "no worker is alive" in html
    assert "ratchet worker" in body["problems"][0]
    rows = body["streams"][0]["partitions"]
    assert [(row["state"], row["input_end"], row["lag"], row["fresh"]) for row in rows] == [
        ("unserved", 0, 0, None),
        ("unserved", 5, 5, None),
    ]


async def test_a_topic_that_does_not_exist_is_said(broker: str, http: aiohttp.ClientSession) -> None:
    async with page(settings_for(broker, "no-such-topic")) as url:
        assert "does not exist yet" in await read(http, url)
        assert (await read_json(http, url))["streams"][0]["partitions"] == []


async def test_a_worker_that_does_not_answer_is_named(
    broker: str, new_topic: Callable[..., str], http: aiohttp.ClientSession, unused_tcp_port: int
) -> None:
    topic = new_topic(partitions=1)
    settings = settings_for(broker, topic)
    address = f"http://127.0.0.1:{unused_tcp_port}"
    async with member(settings, topic, address), page(settings) as url:
        body = await read_json(http, url)
        found = await read_json(http, f"{url}/lookup", identity="a")
    (worker,) = body["workers"]
    assert (worker["url"], worker["name"]) == (address, None)
    assert worker["error"]
    assert body["streams"][0]["partitions"][0]["state"] == "unserved"
    assert found["not_asked"] == [0]
    assert address in found["problems"][0]


async def test_what_a_worker_may_not_answer(
    broker: str, new_topic: Callable[..., str], http: aiohttp.ClientSession
) -> None:
    """A redirect is not followed; what is no status is not shown."""
    followed = []

    async def elsewhere(request: web.Request) -> web.Response:
        followed.append(request.path)
        return web.json_response({})

    async def away(request: web.Request) -> web.Response:
        raise web.HTTPFound("/elsewhere")

    async def other(request: web.Request) -> web.Response:
        return web.json_response({"worker": 7, "tables": "none"})

    for handler, reason in ((away, "status 302"), (other, "not come from a worker of this version")):
        topic = new_topic(partitions=1)
        settings = settings_for(broker, topic)
        stranger = web.Application()
        stranger.router.add_get("/status", handler)
        stranger.router.add_get("/elsewhere", elsewhere)
        runner = web.AppRunner(stranger)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with member(settings, topic, address), page(settings) as url:
            body = await read_json(http, url)
        await runner.cleanup()
        assert reason in body["workers"][0]["error"]
    assert followed == []


async def test_a_look_up_on_the_page_and_as_json(
    broker: str, new_topic: Callable[..., str], http: aiohttp.ClientSession
) -> None:
    topic = new_topic(partitions=2)
    settings = settings_for(broker, topic)
    known = KnownWorker([table(partition(0), partition(1), topic=topic)])
    hostile = ["sensor", "<script>alert(1)</script>", "a\0b", "../../etc/passwd", '" onfocus="x', "{{ 7 * 7 }}", "☂"]
    for identity in hostile:
        known.sequences["events", identity.encode()] = [IdentityStatus(1, 1000, 2000)]
    known.sequences["events", b"\xff"] = [IdentityStatus(0, 3, 3)]
    async with one_worker(settings, topic, known), page(settings) as url:
        for identity in hostile:
            body = await read_json(http, f"{url}/lookup", identity=identity, sequence="1500")
            html = await read(http, f"{url}/lookup", identity=identity, sequence="1500")
            assert body == {
                "stream": "events",
                "identity_hex": identity.encode().hex(),
                "sequence": 1500,
                "partitions": [
                    {"partition": 1, "worker": "worker-a", "persisted": 1000, "pushed": 2000, "verdict": "unknown"}
                ],
                "asked": [0, 1],
                "not_asked": [],
                "problems": [],
                "partition": None,
                "answer": "depends",  # partition 0 does not know it
                "deduplicate": True,
                "origin": "default",
                "unjudged": 0,
                "recognised_for_s": None,
            }
            assert TableReader(html).rows[1] == ["1", "1,000", "2,000", "◑unknown", "worker-a"]
            assert not re.search(r"<script>alert|\"\s*onfocus=\"", html)
        there = await read_json(http, f"{url}/lookup.json", identity="sensor", sequence="1500", partition="1")
        assert (there["partition"], there["answer"]) == (1, "in flight")
        listed = await read_json(http, f"{url}/producers.json", limit="2")
        following = await read_json(http, f"{url}/producers.json", limit="500", after=listed["next"])
        names = [each["name_hex"] for body in (listed, following) for each in body["producers"]]
        assert names == sorted(name.hex() for _, name in known.sequences)
        assert (len(listed["producers"]), following["next"]) == (2, None)
        by_hex = await read_json(http, f"{url}/lookup.json", hex="ff")
        assert by_hex["partitions"][0]["persisted"] == 3
        assert "None of the 2 partitions that answered" in await read(http, f"{url}/lookup", identity="nobody")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("", "give the identity"),
        ("identity=a&hex=61", "both as text and as hex"),
        ("hex=6", "pairs of the digits"),
        ("identity=%FF", "not UTF-8"),
        ("identity=a&sequence=x", "whole number"),
        ("identity=a&stream=%3Cb%3E", "no stream"),
        ("identity=a&identity=b", "given twice"),
        ("identity=" + "x" * 2000, "2,000 bytes"),
    ],
)
async def test_a_look_up_that_cannot_be_read_is_shown_again_with_a_sentence(
    nowhere: Settings, http: aiohttp.ClientSession, query: str, sentence: str
) -> None:
    async with page(nowhere) as url:
        async with http.get(URL(f"{url}/lookup?{query}", encoded=True)) as response:
            html = await response.text()
            assert response.status == 400
        async with http.get(URL(f"{url}/lookup.json?{query}", encoded=True)) as response:
            assert response.status == 400
            assert sentence in (await response.json())["error"]
    assert sentence in html
    assert "<b>" not in html.partition('role="alert"')[2]


@pytest.mark.parametrize("path", ["/lookup", "/nothing", "/static/ratchet.css", "/static/../_pages.py", "/tables.json"])
async def test_every_answer_has_strict_headers(nowhere: Settings, http: aiohttp.ClientSession, path: str) -> None:
    async with page(nowhere) as url, http.get(URL(url + path, encoded=True)) as response:
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["X-Frame-Options"] == "DENY"
        assert response.headers["Referrer-Policy"] == "no-referrer"
        assert "Access-Control-Allow-Origin" not in response.headers
        assert response.status == (200 if path == "/static/ratchet.css" else 400 if path == "/lookup" else 404)


async def test_only_known_hosts_and_only_reading(nowhere: Settings, http: aiohttp.ClientSession) -> None:
    async with page(nowhere, allow_hosts=["Ratchet.example"]) as url:
        port = url.rpartition(":")[2]
        for host, status in {
            "evil.example": 421,
            f"evil.example:{port}": 421,
            "127.0.0.1.evil.example": 421,
            "": 421,
            f"localhost:{port}": 200,
            f"127.0.0.1:{port}": 200,
            f"[::1]:{port}": 200,
            "ratchet.example": 200,
        }.items():
            async with http.get(f"{url}/static/ratchet.css", headers={"Host": host}) as response:
                assert response.status == status, host
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            async with http.request(method, f"{url}/") as response:
                assert response.status == 405


async def test_pages_have_nothing_inline_and_nothing_from_elsewhere(
    nowhere: Settings, http: aiohttp.ClientSession
) -> None:
    """Also show an unavailable Kafka on the page, which is served all the same."""
    async with page(nowhere) as url:
        first, body = await asyncio.gather(read(http, url), read_json(http, url))
        html = first + await read(http, f"{url}/lookup")
        for source in re.findall(r'(?:src|href)="([^"]*)"', html):
            assert source.startswith(("/", "#")), source
            if source.startswith("/static/"):
                async with http.get(url + source) as response:
                    assert response.status == 200, source
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", html)
    assert body["group"] is None
    assert body["workers"] == []
    assert len(body["problems"]) == 1
    assert f"Kafka at {nowhere.bootstrap} does not answer" in body["problems"][0]
    assert f"Kafka at {nowhere.bootstrap} does not answer" in first


async def test_a_port_in_use_is_a_sentence(nowhere: Settings) -> None:
    async with page(nowhere) as url:
        taken = WebSettings(port=int(url.rpartition(":")[2]))
        with pytest.raises(SetupError, match=f"port {taken.port}.*web.port"):
            await WebServer("127.0.0.1:1", nowhere.model_copy(update={"web": taken})).start()


async def test_options_that_a_client_refuses_are_a_sentence(nowhere: Settings) -> None:
    settings = nowhere.model_copy(update={"kafka": {"security.nonsense": "x"}})
    with pytest.raises(SettingsError, match=r"security\.nonsense"):
        await WebServer("127.0.0.1:1", settings).start()


async def test_while_the_group_rebalances_the_workers_known_before_are_asked(nowhere: Settings) -> None:
    async with ClusterView(str(nowhere.bootstrap), nowhere) as cluster_view:
        assert cluster_view._urls(Group("Stable", ["http://a:1", "http://b:1"])) == ["http://a:1", "http://b:1"]
        assert cluster_view._urls(Group("PreparingRebalance")) == ["http://a:1", "http://b:1"]
        assert cluster_view._urls(None) == ["http://a:1", "http://b:1"]
        assert cluster_view._urls(Group("Stable", ["http://b:1"])) == ["http://b:1"]
        assert cluster_view._urls(Group("Empty")) == []


def test_while_a_partition_moves_the_worker_that_is_further_is_shown() -> None:
    settings = settings_for("127.0.0.1:1")
    answers = {
        "http://a:1": WorkerStatus("a", [table(partition(0, fresh=10, input_position=100, input_end=120))]),
        "http://b:1": WorkerStatus("b", [table(partition(0, fresh=4, state="restoring", input_position=50))]),
    }
    group = Group("Stable", committed={("events", 0): 110, ("other", 0): 999})
    (stream,) = merge(settings, answers, group, {"events": [InputPartition(0, 0, 115, 80)]}, {"events": "c"})
    (row,) = stream.partitions
    assert (row.worker, row.also_reported_by, row.state) == ("a", ["b"], "running")
    assert (row.input_position, row.input_end, row.lag) == (110, 120, 10)
    assert stream.totals.fresh == 10


def test_lag_without_a_commit_counts_from_the_start_of_the_topic() -> None:
    positions = {"events": [InputPartition(0, 40, 100, None)]}
    (stream,) = merge(settings_for("127.0.0.1:1"), {}, None, positions, {"events": "c"})
    assert (stream.partitions[0].input_position, stream.totals.lag) == (None, 60)


def test_vendored_files_are_the_ones_that_were_published() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    listed = {name: checksum for checksum, name in (line.split("  ") for line in lines)}
    present = {path.relative_to(VENDOR).as_posix(): path for path in VENDOR.rglob("*") if path.is_file()}
    del present["SHA256SUMS"]
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in present.items()} == listed
    for folder in (folder for folder in VENDOR.iterdir() if folder.is_dir()):
        assert list(folder.glob("LICENSE*")), folder


def run_tables(settings: Settings, tmp_path: Path, *arguments: str, width: int = 200) -> Any:
    stream = settings.streams["events"]
    file = tmp_path / "ratchet.toml"
    file.write_text(
        f'app = "{settings.app}"\nbootstrap = "{settings.bootstrap}"\n[streams.events]\ninput = "{stream.input}"\n'
        f'output = "{stream.output}"\ndead_letters = "{stream.dead_letters}"\n'
    )
    cli = typer.Typer()
    cli.command()(tables_command)
    return CliRunner().invoke(cli, ["--config", str(file), *arguments], env={"COLUMNS": str(width)})


async def test_the_terminal_shows_the_same(broker: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(partitions=2)
    settings = settings_for(broker, topic)
    known = KnownWorker([table(partition(0), partition(1, state="halted", error="[red]offset 7[/red]"), topic=topic)])
    known.sequences["events", b"[bold]sensor"] = [IdentityStatus(1, 1000, 2000)]
    async with one_worker(settings, topic, known):
        shown = await asyncio.to_thread(run_tables, settings, tmp_path)
        narrow = await asyncio.to_thread(run_tables, settings, tmp_path, width=80)
        as_json = await asyncio.to_thread(run_tables, settings, tmp_path, "--stream", "events", "--json")
        looked_up = await asyncio.to_thread(
            run_tables, settings, tmp_path, "--identity", "[bold]sensor", "--sequence", "1000"
        )
        looked_up_json = await asyncio.to_thread(
            run_tables, settings, tmp_path, "--identity-hex", b"[bold]sensor".hex(), "--json"
        )
    assert shown.exit_code == 0, shown.output
    assert "halted" in shown.output
    assert "[red]offset 7[/red]" in shown.output
    assert "18,000,000" in shown.output
    assert json.loads(as_json.output)["streams"][0]["totals"]["fresh"] == 18_000_000
    for fact in ("worker-a", "Changelog", "77,000"):
        assert fact in shown.output
        assert fact not in narrow.output
    assert "18,000,000" in narrow.output
    assert max(map(len, narrow.output.splitlines())) <= 80
    assert "duplicate" in looked_up.output
    assert json.loads(looked_up_json.output)["partitions"][0]["pushed"] == 2000


def test_the_terminal_needs_to_know_which_kafka(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RATCHET_BOOTSTRAP", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="RATCHET_BOOTSTRAP"):
        tables_command()


async def test_the_command_prints_the_address_and_ends_when_it_is_told(
    nowhere: Settings, http: aiohttp.ClientSession
) -> None:
    command = [sys.executable, "-c", "import typer; from app.cli.web import web; typer.run(web)"]
    environment = {**os.environ, "RATCHET_BOOTSTRAP": str(nowhere.bootstrap)}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found, line
    assert "Identity look-up" in await read(http, f"{found[0]}/lookup")
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


async def test_a_table_of_ones_own_is_shown_escaped_and_paged(
    nowhere: Settings, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def own_table(self: ClusterView, name: str, stream: str | None, query: TableQuery) -> TablePage:
        asked.append((name, stream, query))
        values = [TableValue(1, {"a": "<script>"}, 17), TableValue(2, None, 9_000, '"<img src=x')]
        entry = TableEntry("<b>\u202e", "3c62", values)
        return TablePage(name, "events", [entry], [AskedPartition(1, 40)], [3], "3c62&x", ["<i>"])

    monkeypatch.setattr(ClusterView, "own_table", own_table)
    async with page(nowhere) as url:
        html = await read(http, f"{url}/table", table="<t>", limit="1")
        body = await read_json(http, f"{url}/table.json", table="t", key="a")
        async with http.get(f"{url}/table", params={"table": "t", "hex": "0"}) as response:
            refused = response.status, await response.text()
    assert TableReader(html).rows[1:] == [
        ['"<b>\\u202e"', "1", '{"a":"<script>"}'],
        ['"<b>\\u202e"', "2", '"<img src=x… 9,000 bytes'],
    ]
    for part in ("<script>", "<img src=x", "<i>", "<t>", "<b>\\u"):
        assert part not in html
    assert "after=3c62%26x" in html
    assert (body["entries"][0]["values"][0]["value"], body["not_asked"]) == ({"a": "<script>"}, [3])
    assert [name for name, _, _ in asked] == ["<t>", "t"]
    assert refused[0] == 400
    assert "hex must be pairs" in refused[1]


async def test_a_page_of_very_many_partitions_has_some_rows_the_sums_and_ways_to_the_others(
    broker: str, new_topic: Callable[..., str], http: aiohttp.ClientSession
) -> None:
    """1,000 partitions that a worker tells of, each with a sentence about what is wrong."""
    topic = new_topic(partitions=2)
    settings = settings_for(broker, topic)
    jumped = InvalidShare(judged=100, invalid=50)
    rows = [partition(number, fresh=10, recent=jumped) for number in range(1_000)]
    known = KnownWorker([table(*rows, topic=topic)])
    async with one_worker(settings, topic, known), page(settings) as url:
        body = await read_json(http, url)
        first = await read(http, url)
        every = await read(http, f"{url}/streams/events")
        last = await read(http, f"{url}/streams/events", page="20")
        async with http.get(f"{url}/streams/events", params={"page": "21"}) as response:
            assert response.status == 400

    assert len(body["streams"][0]["partitions"]) == len(body["findings"]) == len(body["problems"]) == 1_000
    (partitions,) = [each for each in first.split("<table>") if "Partitions of" in each]
    assert partitions.partition("<tfoot>")[0].count('<th scope="row">') == 20
    assert "10,000" in partitions.partition("<tfoot>")[2]  # the sum is of all
    assert '<a href="/streams/events">all partitions of events</a>' in first
    assert first.partition('aria-labelledby="wrong"')[2].partition("</section>")[0].count('<p class="notice">') == 20
    assert "And 980 more; <a" in first
    (summary,) = re.findall(r'data-summary="([^"]*)"', first)
    assert summary.count("were invalid") == 3
    assert summary.endswith("And 997 more")
    assert every.count('<th scope="row">') == last.count('<th scope="row">') == 50
    assert "page 1 of 20" in every
    assert re.search(r'rel="next" href="/streams/events\?[^"]*page=2"', every)
    assert '<th scope="row">999</th>' in last
