"""The pages of a record, an identity, what was dropped, settings and proofs; and names that are out to harm."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import typer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as Topic
from pydantic import SecretStr
from typer.testing import CliRunner

from kafka_ratchet.app.cli.verify import verify
from kafka_ratchet.app.dead_letters.reading import connected
from kafka_ratchet.app.dead_letters.replayed import ReplayedLetters
from kafka_ratchet.app.names import changelog_name, policy_topic, replayed_topic
from kafka_ratchet.app.settings import Settings, SinkSettings, StreamSettings, load, origins
from kafka_ratchet.app.status.answers import ForgetEffect, IdentityStatus
from kafka_ratchet.app.status.lookup import QueryError
from kafka_ratchet.app.status.server import StatusServer
from kafka_ratchet.app.verify import ExitCode
from kafka_ratchet.app.web.pages.dropped import cell
from kafka_ratchet.app.web.pages.policy import _history
from kafka_ratchet.app.web.pages.settings import rows
from kafka_ratchet.app.web.readings import Readings, Unanswered
from kafka_ratchet.app.web.routes import PAGES
from kafka_ratchet.app.why.question import Question, question_of
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.rule.identity import Identity
from tests.app.web.test_pages import page
from tests.app.worker.known_worker import KnownWorker, member, partition, settings_for, table
from tests.app.written_stream import NOW_MS, Stage, record
from tests.topic_log.test_second_client import ODD_NAMES, produce

HOSTILE = [
    b"<script>alert(1)</script>",
    b'" onfocus="x',
    b"a\nb\r\t",
    "\u202etxt.exe".encode(),
    b"a\0b",
    b"\xff\xfe",
    b"=1+1",
    b"{{ 7 * 7 }}",
    b"x" * 1024,
]


async def both(http: aiohttp.ClientSession, url: str, path: str, status: int = 200, **asked: str) -> tuple[str, Any]:
    """The page, and the same as JSON, which stands at the same address."""
    async with http.get(url + path, params=asked) as response:
        assert (response.status, response.content_type) == (status, "text/html"), await response.text()
        html = await response.text()
    async with http.get(url + path, params=asked, headers={"Accept": "application/json"}) as response:
        assert (response.status, response.content_type) == (status, "application/json")
        body = await response.json()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=[\"']|\u202e|\0", html)
    return html, body


def verified(settings: Settings, folder: Path) -> Any:
    """Run `ratchet verify --record`."""
    file, stream = folder / "ratchet.toml", settings.streams["events"]
    file.write_text(
        f'app = "{settings.app}"\nbootstrap = "{settings.bootstrap}"\n[streams.events]\ninput = "{stream.input}"\n'
        f'output = "{stream.output}"\ndead_letters = "{stream.dead_letters}"\n'
    )
    cli = typer.Typer()
    cli.command()(verify)
    return CliRunner().invoke(cli, ["--config", str(file), "--record"])


async def test_a_record_is_followed_and_what_was_dropped_is_shown_masked(
    broker: str, new_topic: Callable[..., str], http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    dropped = new_topic(1)
    stage = Stage(broker, new_topic, 1, duplicates=dropped)
    given, output, letters = stage.topics
    sent = [*(record(1, name) for name in HOSTILE), record(None, b"<b>", b"=secret", b"@key"), record(1, HOSTILE[0])]
    stage.write(0, 0, [*sent, record(2, HOSTILE[0])])
    stage.write(1, 0, sent[: len(HOSTILE)])
    at = len(HOSTILE)
    stage.write(2, 0, [stage.letter(sent[at], 0, at)])
    said = {"verdict": b"duplicate", "last-sequence": b"1", "topic": given.encode(), "partition": b"0"}
    headers = [*sent[-1].headers, *((f"ratchet-{k}", v) for k, v in said.items()), ("ratchet-offset", b"%d" % (at + 1))]
    stage.producer.produce(dropped, b"v", b"k", 0, headers=headers, timestamp=NOW_MS)
    stage.producer.flush()
    changelog = changelog_name(stage.settings.app, "events")
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([Topic(changelog, 1, 1)])[changelog].result(30)
    stage.commit(at + 2)
    settings = stage.settings
    recorded = await asyncio.to_thread(verified, settings, tmp_path)
    assert recorded.exit_code == ExitCode.NOT_ALL_PROVEN, recorded.output
    async with page(settings) as url:
        for name in (HOSTILE[3], HOSTILE[5]):
            html, body = await both(http, url, "/event", hex=name.hex(), sequence="1")
            assert body["arrivals"][0]["verdict"] == "fresh", body
            assert body["arrivals"][0]["forwarded"] == {"topic": output, "partition": 0, "offset": HOSTILE.index(name)}
            assert body["command"].startswith("ratchet why --stream events --identity")
        html, body = await both(http, url, "/event", identity=HOSTILE[0].decode())
        assert [each["verdict"] for each in body["arrivals"]] == ["fresh", "duplicate", "waiting"]
        assert body["arrivals"][1]["kept"]["topic"] == dropped
        assert "Not judged yet: 0 offsets before it wait" in html
        html, body = await both(http, url, "/event", topic=letters, partition="0", offset="0")
        assert body["arrivals"][0]["reason"] == "sequence-missing"
        html, body = await both(http, url, "/event", 400, topic="elsewhere", partition="0", offset="0")
        assert "no topic" in body["error"]

        html, body = await both(http, url, "/dead-letters")
        (letter,) = body["records"]
        assert (letter["reason"], letter["key"], letter["value"]) == ("sequence-missing", {"bytes": 4}, {"bytes": 7})
        assert "secret" not in html + json.dumps(body)
        assert letter["replay"] == "ratchet dead-letters replay --stream events --partition 0 --offset 0"
        assert (letter["replayed"], "not replayed" in html) == (False, True)
        assert [(each["name"], each["records"]) for each in body["reasons"]] == [("sequence-missing", 1)]
        html, body = await both(http, url, "/dead-letters", values="1", reason="sequence", since="2020-01-01T00:00")
        assert (body["records"][0]["value"]["text"], body["records"][0]["headers"][0]["text"]) == ("=secret", "1")
        assert "<code>=secret</code>" in html
        assert (await both(http, url, "/dead-letters", reason="other"))[1]["records"] == []
        async with http.get(f"{url}/dead-letters.csv", params={"values": "1"}) as response:
            assert "attachment" in response.headers["Content-Disposition"]
            (line,) = csv.DictReader(io.StringIO(await response.text()))
        assert (line["key"], line["value"], line["identity"]) == ("'@key", "'=secret", "<b>")
        async with http.get(f"{url}/dead-letters.ndjson") as response:
            assert json.loads(await response.text())["reason"] == "sequence-missing"
        async with http.get(f"{url}/dead-letters.json") as response:
            assert (await response.json())["records"][0]["reason"] == "sequence-missing"
        await say_replayed(settings, broker, admin)
        html, body = await both(http, url, "/dead-letters")
        assert (body["records"][0]["replayed"], "not replayed" in html) == (True, False)
        html, body = await both(http, url, "/duplicates", hex=HOSTILE[0].hex())
        (duplicate,) = body["records"]
        assert (duplicate["reason"], duplicate["against"], duplicate["origin"]["offset"]) == ("duplicate", 1, at + 1)

        html, body = await both(http, url, "/proof")
        (stream,) = body["streams"]
        assert (stream["proof"]["verdict"], stream["since"]) == ("not all proven", 1)
        assert stream["partitions"][0]["input"] == at + 2
        html, body = await both(http, url, "/policy")
        assert body["streams"][0]["deduplicate"] is True
        assert (await both(http, url, "/producers"))[1]["topic"] == given
        assert (await both(http, url, "/sinks"))[1] == {"sinks": []}


def test_the_history_of_policies_shows_records_with_unreadable_header_names(
    broker: str, new_topic: Callable[..., str]
) -> None:
    settings = settings_for(broker, new_topic(partitions=1))
    topic = policy_topic(settings.app)
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([Topic(topic, 1, 1)])[topic].result(30)
    asyncio.run(produce(broker, topic, 0, [ODD_NAMES]))
    found, left_out = _history(settings, broker)
    assert (len(found), {each.by for each in found}, left_out) == (100, {None}, 0)


async def say_replayed(settings: Settings, broker: str, admin: AdminClient) -> None:
    """Write the record of `ratchet dead-letters replay` about the first dead letter."""
    topic = replayed_topic(settings.app, "events")
    admin.create_topics([Topic(topic, 1, 1)])[topic].result(30)
    async with connected(settings, broker, "events") as letters:
        replayed = ReplayedLetters(letters.id)
    producer = Producer({"bootstrap.servers": broker})
    for key, value in replayed.entries(replayed.with_([(0, 0)])):
        producer.produce(topic, value, key)
    producer.flush()


async def test_identities_are_browsed_by_what_they_begin_with(
    broker: str, new_topic: Callable[..., str], http: aiohttp.ClientSession
) -> None:
    topic = new_topic(partitions=2)
    settings = settings_for(broker, topic)
    known = KnownWorker([table(partition(0), partition(1), topic=topic)])
    for name in HOSTILE:
        known.sequences["events", name] = [IdentityStatus(0, 10, 12), IdentityStatus(1, 3, 3)]
    edit = ForgetEffect("2026-01-01T00:00:00+00:00", "<me>@here", "<i>began anew</i>", 7, None, 9, None)
    known.sequences["events", HOSTILE[0]] = [IdentityStatus(0, 10, 12, None, [edit])]
    status = StatusServer(known, worker="worker-a")
    async with member(settings, topic, await status.start()), page(settings) as url:
        listed, after = [], ""
        while True:
            html, body = await both(http, url, "/streams/events/identities", limit="2", after=after)
            listed += [each["identity_hex"] for each in body["identities"]]
            assert ("Next identities" in html) == (body["next"] is not None)
            if (after := body["next"] or "") == "":
                break
        assert listed == sorted(name.hex() for name in HOSTILE)
        html, body = await both(http, url, "/streams/events/identities", prefix="a", show="hex")
        assert {each["identity_hex"] for each in body["identities"]} == {b"a\nb\r\t".hex(), b"a\0b".hex()}
        assert b"a\0b".hex() in html
        assert body["identities"][0]["partitions"][0]["missing"] == 2
        html, body = await both(http, url, "/streams/events/identity", hex=HOSTILE[0].hex())
        assert body["partitions"][0]["forgotten"][0]["reason"] == "<i>began anew</i>"
        assert "&lt;i&gt;began anew" in html
        assert "&lt;me&gt;@here had all forgotten in partition 0" in html
        assert "no stream" in (await both(http, url, "/streams/<b>/identities", 400))[1]["error"]
        html, body = await both(http, url, "/duplicates")
        assert (body["topic"], body["counts"]["duplicate"]) == (None, 4_000_000)
        assert "duplicates = &#34;" in html or 'duplicates = "' in html
        html, body = await both(http, url, "/proof")
        assert "ratchet verify --stream events --record" in html
        html, body = await both(http, url, "/producers")
        assert {each["name_hex"] for each in body["producers"]} == {name.hex() for name in HOSTILE}
    await status.stop()


ASKED = {
    "/event": {"identity": "<b>a</b>", "sequence": "1"},
    "/streams/{stream}/identities": {"prefix": "<b>"},
    "/streams/{stream}/identity": {"identity": "<b>"},
    "/tables/{table}": {},
    "/sinks/{name}": {},
}


@pytest.mark.parametrize("path", [each.path for each in PAGES if each.has_json and each.path != "/"])
async def test_without_kafka_each_page_says_so(unused_tcp_port: int, http: aiohttp.ClientSession, path: str) -> None:
    settings = settings_for(f"127.0.0.1:{unused_tcp_port}", kafka_timeout_s=1.0)
    address = path.format(stream="events", table="<t>", name="<n>")
    async with page(settings) as url, http.get(url + address, params=ASKED.get(path, {})) as response:
        html = await response.text()
        assert response.content_type == "text/html"
        assert response.status in (200, 400, 503), html
    assert "<b>a" not in html
    assert "<t>" not in html
    assert "<n>" not in html


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"identity": "a", "hex": "61"}, "name the record in one way: by its producer"),
        ({"sequence": "1"}, "name the record in one way: by its producer"),
        ({"topic": "t"}, "go together"),
        ({"topic": "t", "partition": "0", "offset": "1", "identity": "a"}, "name one record"),
        ({"topic": "t", "partition": "0", "offset": "x"}, "offset must be"),
    ],
)
def test_a_question_that_names_no_record_is_refused(asked: dict[str, str], sentence: str) -> None:
    with pytest.raises(QueryError, match=sentence):
        question_of(settings_for("127.0.0.1:1"), asked)


def test_the_command_to_copy_is_quoted_for_a_shell() -> None:
    assert Question("events", b"a'; rm -rf /", 3).command == (
        """ratchet why --stream events --identity 'a'"'"'; rm -rf /' --sequence 3"""
    )
    assert Question("events", b"a\n").command == "ratchet why --stream events --identity-hex 610a"
    assert Question("events", b"").command == "ratchet why --stream events --identity ''"
    assert Question("events", topic="t", partition=0, offset=7).command.endswith("--topic t --partition 0 --offset 7")
    assert question_of(settings_for("127.0.0.1:1"), {"stream": "events"}) is None


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(text: str) -> None:
    assert cell(text) == f"'{text}"
    assert cell(-1) == "-1"


def test_secrets_are_masked_and_each_setting_says_where_it_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ratchet.toml"
    file.write_text(
        'app = "shop"\nbootstrap = "b:1"\n[kafka]\nsasl.password = "hunter2hunter2"\nsecurity.protocol = "PLAINTEXT"\n'
        '[streams.s]\ninput = "i"\noutput = "o"\ndead_letters = "d"\n'
        '[sink]\nurl = "postgresql://me:pa55word@db/x"\nstorage_options = {AWS_SECRET_ACCESS_KEY = "k3y"}\n'
    )
    monkeypatch.setenv("RATCHET_COMMIT_INTERVAL_MS", "50")
    found = {
        each["name"]: (each["value"], each["origin"])
        for each in rows(load(file, web={"port": 7}), origins(file, web={"port": 7}))
    }
    assert found["app"] == ("shop", f"file {file}")
    assert found["commit_interval_ms"] == ("50", "variable RATCHET_COMMIT_INTERVAL_MS")
    assert found["web.port"] == ("7", "command line")
    assert found["web.host"] == ("127.0.0.1", "default")
    assert found["streams.s.identity"][1] == "default"
    assert found["kafka.security.protocol"][0] == "PLAINTEXT"
    assert found["kafka.sasl.password"][0] == found["sink.url"][0] == "***"
    text = json.dumps(found)
    assert not [secret for secret in ("hunter2", "pa55word", "k3y") if secret in text]


def test_a_password_in_a_url_that_is_no_secret_is_masked_too() -> None:
    settings = settings_for("127.0.0.1:1", sink=SinkSettings(path="s3://me:hidden@bucket/x", password=SecretStr("p")))
    text = json.dumps(rows(settings, {}))
    assert "hidden" not in text
    assert "s3://***@bucket/x" in text


async def test_few_read_at_a_time_and_one_that_was_given_up_keeps_its_turn() -> None:
    readings, go_on = Readings(at_once=1), asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> str:
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(30)
        return "done"

    with pytest.raises(Unanswered, match=r"not read within.*ratchet why"):
        await readings.read(wait, 0.05, instead="ratchet why")
    waiting = asyncio.create_task(readings.read(lambda: "next"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    go_on.set()
    assert await waiting == "next"

    def fail() -> str:
        raise BrokerUnavailable("away")

    with pytest.raises(BrokerUnavailable, match="away"):
        await readings.read(fail)


def test_the_empty_key_is_asked_by_one_parameter_and_not_by_an_empty_form() -> None:
    settings = settings_for("127.0.0.1:1")
    stream = StreamSettings(input="i", output="o", dead_letters="d", identity=Identity.parse("key"))
    of_keys = settings.model_copy(update={"streams": {"events": stream}})
    assert question_of(of_keys, {"hex": ""}) == question_of(of_keys, {"identity": ""}) == Question("events", b"")
    assert question_of(of_keys, {"identity": "", "hex": "", "producer": "", "sequence": ""}) is None
    with pytest.raises(QueryError, match="name the record in one way: by its producer"):
        question_of(of_keys, {"identity": "", "hex": "", "sequence": "1"})


def test_a_stream_of_partitions_is_asked_by_partition() -> None:
    settings = settings_for("127.0.0.1:1")
    stream = StreamSettings(input="i", output="o", dead_letters="d", identity=Identity.parse("partition"))
    of_partitions = settings.model_copy(update={"streams": {"events": stream}})
    assert question_of(of_partitions, {"partition": "1", "sequence": "2"}) == Question("events", None, 2, 1)
