"""Dead letters sent to the input again: each once, whatever replaying dies of, and counted once."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.dead_letters import replay
from kafka_ratchet.app.dead_letters.letters import Letter, LetterOrigin
from kafka_ratchet.app.dead_letters.reading import LetterFilter, LetterTopic, connected, count_letters
from kafka_ratchet.app.dead_letters.replay import Options, Replay, ReplayResult
from kafka_ratchet.app.dead_letters.replayed import ReplayedLetters
from kafka_ratchet.app.names import replayed_topic
from kafka_ratchet.app.repartition import repartitioned
from kafka_ratchet.app.settings_sections import StreamSettings
from kafka_ratchet.app.status.group import Group
from kafka_ratchet.app.status.model import Lookup
from kafka_ratchet.app.verify import RecordView
from kafka_ratchet.app.worker.claims import WriterClaim
from kafka_ratchet.errors import BrokerUnavailable, Fenced, SettingsError, TopicTaken
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.testing import Worker
from kafka_ratchet.topic_log.clients import consumer
from kafka_ratchet.topic_log.reading import records
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.transactions.crash_points import VARIABLE
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from tests.app.written_stream import DEAD, NOW_MS, NewTopic, Stage, record

MakeWorker = Callable[..., Worker]
LETTERS = 2
ALL, PLAIN = LetterFilter(), Options()
FRAGILE = "tests.app.dead_letters.fragile:app"


class Died(BaseException):
    """The process is gone."""


def letter(
    stage: Stage, number: int, reason: bytes, *, partition: int = 0, topic: str = "", **fields: Any
) -> RecordView:
    item = replace(record(number, value=b"%d" % number), timestamp_ms=NOW_MS + number, **fields)
    where = (topic or stage.topics[0]).encode(), b"%d" % partition, b"%d" % number
    return replace(item, headers=[*item.headers, *zip(DEAD, (reason, *where), strict=True)])


def replayed(stage: Stage, wanted: LetterFilter = ALL, options: Options = PLAIN, *, plan: bool = False) -> ReplayResult:
    async def work() -> ReplayResult:
        async with connected(stage.settings, stage.broker, "events") as letters:
            one = Replay(letters, wanted, options, stage.broker)
            return await (one.plan() if plan else one.execute())

    return asyncio.run(work())


def arrived(stage: Stage) -> list[list[RecordView]]:
    found = []
    with consumer({"bootstrap.servers": stage.broker}, "test") as asked:
        for number in (0, 1):
            messages = records(asked, stage.topics[0], number, 0, timeout_s=60)
            found.append([RecordView(m.key(), m.value(), m.headers() or [], m.timestamp()[1]) for m in messages])
    return found


def numbers(stage: Stage) -> list[list[int]]:
    return [[int(each.value or b"") for each in part] for part in arrived(stage)]


def test_each_letter_goes_once_whatever_it_dies_of(
    broker: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(broker, new_topic, 2)
    monkeypatch.setattr(replay, "LETTERS_AT_ONCE", 3)
    reasons = [b"agent a: raised X", b"sequence-missing", b"value does not decode: y"]
    sent = [letter(stage, n, reasons[n % 3], partition=n % 2) for n in range(30)]
    stage.write(LETTERS, 0, sent)
    stage.write(LETTERS, 0, [letter(stage, 99, b"why", topic="other"), record(98)])
    plan = replayed(stage, plan=True)
    assert (plan.counts.to_replay, plan.counts.others, plan.replayed) == (30, 2, 0)
    assert numbers(stage) == [[], []]

    # A filter first, from the middle: what comes later neither doubles nor skips.
    assert replayed(stage, LetterFilter(reason="sequence", limit=4)).replayed == 4
    assert numbers(stage) == [[4, 10], [1, 7]]
    assert replayed(stage, LetterFilter(partition=0, offset=20)).replayed == 1
    assert replayed(stage, LetterFilter(partition=0, offset=20)).counts.done == 1

    die_at = {"fenced": 1, "produced": 2, "logged": 2, "offered": 2, "committed": 1}
    left = [name for name in die_at]
    passed: list[str] = []

    def point(name: str) -> None:
        passed.append(name)
        if left and name == left[0] and passed.count(name) >= die_at[name]:
            left.pop(0)
            raise Died

    async def nothing(producer: TransactionalProducer) -> None:
        """Abort nothing, as a dead process does."""

    with monkeypatch.context() as dying:
        dying.setattr(TransactionalProducer, "abort", nothing)
        dying.setattr(replay, "crash_point", point)
        dying.setattr("kafka_ratchet.transport.transactions.producer.crash_point", point)
        while left:
            passed.clear()
            with pytest.raises(Died):
                replayed(stage)
    rest = replayed(stage)
    assert 0 < rest.replayed < 25
    assert rest.counts.done + rest.counts.to_replay == 30
    found = arrived(stage)
    for part, each in enumerate(found):
        got = [int(item.value or b"") for item in each]
        assert sorted(got) == list(range(part, 30, 2))
        for item in each:
            number = int(item.value or b"")
            original = sent[number]
            assert (item.key, item.timestamp_ms) == (original.key, original.timestamp_ms)
            own, marks = item.headers[: len(original.headers) - 4], dict(item.headers[len(original.headers) - 4 :])
            assert own == original.headers[:-4]
            assert marks["ratchet-replays"] == b"1"
            name = marks.get("ratchet-replayed-from", b"") or b""
            assert name.endswith(b"/0/%d" % number) == (number % 3 != 1)
    assert replayed(stage).replayed == 0

    async def count() -> Any:
        async with connected(stage.settings, broker, "events") as letters:
            return await count_letters(letters, LetterFilter())

    counts = asyncio.run(count())
    assert (counts.letters, counts.replayed, counts.others) == (30, 30, 2)
    assert {each.reason: each.letters for each in counts.reasons} == {reason.decode(): 10 for reason in reasons}
    assert counts.reasons[0].partitions == {0: 10}


@pytest.mark.parametrize("request_name", ["offset", "fetch"])
def test_letters_that_kafka_does_not_hand_out_end_the_command(
    broker: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    stage = Stage(broker, new_topic, 1)
    stage.write(LETTERS, 0, [letter(stage, 1, b"agent a: x")])

    async def silent(*_: Any, **__: Any) -> None:
        await asyncio.sleep(60)

    async def count() -> None:
        async with connected(stage.settings, broker, "events") as letters, asyncio.timeout(30):
            monkeypatch.setattr(Cluster, request_name, silent)
            letters.settings = stage.settings.model_copy(update={"kafka_timeout_s": 1.0})
            await count_letters(letters, LetterFilter())

    with pytest.raises(BrokerUnavailable, match=r"partition 0.*Kafka has sent nothing within 1 s"):
        asyncio.run(count())


@pytest.mark.matrix
def test_a_process_that_is_killed_and_one_that_is_fenced_send_nothing_twice(
    broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(broker, partial(new_topic, retention_ms=30 * 24 * 3600 * 1000), 2)
    old = letter(stage, 5, b"agent a: old")
    stage.write(LETTERS, 0, [letter(stage, n, b"agent a: x") for n in range(5)])
    given, output, dead = stage.topics
    config = tmp_path / "ratchet.toml"
    config.write_text(
        f'app = "{stage.settings.app}"\nbootstrap = "{broker}"\n'
        f'[streams.events]\ninput = "{given}"\noutput = "{output}"\ndead_letters = "{dead}"\n'
    )
    command = [sys.executable, "-m", "kafka_ratchet", "dead-letters", "replay", "--config", str(config), "--json"]
    killed = subprocess.run(command, env={**_environment(), VARIABLE: "offered:1"}, capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert numbers(stage) == [[], []]
    assert replayed(stage).replayed == 5
    assert numbers(stage) == [[0, 1, 2, 3, 4], []]

    # Guards: a letter that comes from a replay, one replayed too often, and one older than what the input keeps.
    again = replace(letter(stage, 6, b"agent a: x"), headers=[("ratchet-replays", b"1"), *old.headers])
    often = replace(again, headers=[("ratchet-replays", b"10"), *old.headers])
    stage.write(LETTERS, 0, [again, often])
    held = replayed(stage)
    assert (held.replayed, held.counts.held_back, held.counts.too_often) == (0, 1, 1)
    assert replayed(stage, options=Options(again=True)).replayed == 1
    assert dict(arrived(stage)[0][-1].headers)["ratchet-replays"] == b"2"
    stage.write(LETTERS, 0, [replace(old, timestamp_ms=NOW_MS - 40 * 24 * 3600 * 1000)])
    with pytest.raises(SettingsError, match=r"1 of the selected dead letters are older than retention.ms"):
        replayed(stage)
    assert replayed(stage, options=Options(now=True)).replayed == 1
    assert arrived(stage)[0][-1].timestamp_ms >= NOW_MS

    # One that begins while another is in its transaction stops that one.
    stage.write(LETTERS, 0, [letter(stage, n, b"agent a: x") for n in (7, 8)])
    inner: list[int] = []

    def point(name: str) -> None:
        if name == "logged" and not inner:
            inner.append(0)
            with monkeypatch.context() as alone:
                alone.setattr(replay, "crash_point", lambda name: None)
                found = subprocess.run(command, env=_environment(), capture_output=True, timeout=120, check=True)
            inner.append(json.loads(found.stdout)["replayed"])

    monkeypatch.setattr(replay, "crash_point", point)
    with pytest.raises(Fenced, match=r"Another `ratchet dead-letters replay`"):
        replayed(stage)
    assert inner == [0, 2]
    assert numbers(stage)[0] == [0, 1, 2, 3, 4, 6, 5, 7, 8]


def _environment() -> dict[str, str]:
    import os

    kept = {name: text for name, text in os.environ.items() if not name.startswith("RATCHET_")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.mark.parametrize("writer", ["stream", "application", "dead letters"])
def test_letters_are_never_sent_to_what_another_stream_writes(
    broker: str, new_topic: NewTopic, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(broker, new_topic, 2, deduplicate=False)
    stage.write(LETTERS, 0, [letter(stage, 1, b"agent a: x"), letter(stage, 2, b"sequence-missing")])
    given, words = stage.topics[0], "stream 'orders' of these settings"
    if writer == "application":
        claim = WriterClaim("shop", "orders", "output", "id")
        monkeypatch.setattr(replay, "read_claims", lambda *_: {given: claim})
        words = "application 'shop', stream 'orders', as its output"
    else:
        output, dead = (given, "dead") if writer == "stream" else ("once", given)
        other = StreamSettings(input="raw", output=output, dead_letters=dead)
        stage.settings.streams["orders"] = other
    for plan in (True, False):
        with pytest.raises(TopicTaken, match=re.escape(f"its input {given} is written by {words}")):
            replayed(stage, options=Options(unjudged=True), plan=plan)
    assert numbers(stage) == [[], []]


ASKED_NOBODY = Lookup("events", "", None, [], [], [], ["Kafka did not answer."])
OF_AN_EARLIER_WORKER = replace(ASKED_NOBODY, deduplicate=True, cannot_replay=["w"])


@pytest.mark.parametrize(("members", "looked"), [(2, ASKED_NOBODY), (1, OF_AN_EARLIER_WORKER), (1, ASKED_NOBODY)])
async def test_workers_that_would_drop_the_records_or_do_not_say_are_refused(
    monkeypatch: pytest.MonkeyPatch, members: int, looked: Lookup
) -> None:
    there = Group("Stable", ["http://w:1"], members, {})

    async def described(*_: Any) -> Group:
        return there

    async def answered(*_: Any) -> Lookup:
        return looked

    monkeypatch.setattr(replay, "describe_group", described)
    monkeypatch.setattr(replay, "lookup", answered)
    monkeypatch.setattr(replay, "TRIES_TO_ASK", 1)
    stream = SimpleNamespace(identity=Identity.KEY)
    one: Any = SimpleNamespace(
        _bootstrap="", _letters=SimpleNamespace(settings=SimpleNamespace(app="shop"), name="events", stream=stream)
    )
    with pytest.raises(SettingsError, match=r"earlier Ratchet"):
        await Replay._refuse_earlier_workers(one)


def test_letters_of_a_repartitioned_stream_go_to_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replay, "_kept_since", lambda self: None)
    stream = StreamSettings(input="in", output="out", dead_letters="dead", repartition_by="identity")
    settings = SimpleNamespace(app="a", kafka={}, streams=repartitioned("a", {"events": stream}))
    judged = settings.streams["events"]
    state: Any = SimpleNamespace(partitions=4)
    topics = {"in": state, judged.input: state}
    found = LetterTopic(None, settings, "events", judged, topics)  # type: ignore[arg-type]
    one = Replay(found, ALL, PLAIN, "127.0.0.1:1")
    of_it = Letter(0, 7, 0, LetterOrigin("agent a: x", judged.input, 9, 3), 0, [])
    counts = replay.Counts()
    assert one._may_go(of_it, ReplayedLetters("id"), counts)
    assert (one._input, one._target(of_it, b"k")) == ("in", 1)
    assert not one._may_go(of_it._replace(origin=LetterOrigin("agent a: x", "in", 1, 3)), ReplayedLetters("id"), counts)
    # Another application reads the same topic, and writes its dead letters to the same one: we have had the record.
    assert one._may_go(of_it._replace(app="a"), ReplayedLetters("id"), counts)
    assert not one._may_go(of_it._replace(app="b"), ReplayedLetters("id"), counts)
    assert counts.others == 2


def test_what_agents_reject_is_counted_once_when_they_are_mended(
    ratchet_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    worker = ratchet_worker(FRAGILE)
    (config,) = tmp_path.glob("worker.toml")

    def called(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        assert run(["dead-letters", *arguments, "--config", str(config), "--json"]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return answer

    rows = [("a", {"user": "a", "amount": 5}), ("a", {"user": "a", "amount": -1}), ("a", {"user": "a"})]
    worker.publish("orders", [*rows, ("a", {"user": "a", "amount": 7})], times=2)
    worker.start()
    worker.wait_until_read()
    listed = called("list")
    assert [(each["reason"][:24], each["letters"]) for each in listed["reasons"]] == [
        ("agent add_up: raised Val", 1),
        ("value does not decode: O", 1),
    ]
    # It fails again, and goes round no more.
    assert called("replay", "--reason", "agent")["replayed"] == 1
    worker.wait_until_read()
    assert called("replay", "--reason", "agent")["counts"] | {"to_replay": 0} == {
        "to_replay": 0,
        "done": 1,
        "held_back": 1,
        "too_often": 0,
        "others": 0,
        "too_old": 0,
    }
    worker.stop()
    monkeypatch.setenv("MENDED", "1")
    worker.start()
    assert called("replay", "--again")["replayed"] == 2
    worker.wait_until_read()
    worker.stop()
    (part,) = worker.outputs()
    assert [each.value["total"] for each in part if each.topic == "orders"] == [5, 12, 1012, 1011]
    assert worker.tables() == [{"totals": {"a": 1011}}]
    found = called("show", "--limit", "1")["letters"][0]
    assert (found["value"], found["replayed"]) == ({"bytes": 24}, True)
    assert (
        replayed_topic(worker.app, "orders")
        in AdminClient({"bootstrap.servers": worker.bootstrap}).list_topics().topics
    )
