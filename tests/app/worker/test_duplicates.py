"""Real workers: dropped records are kept in the transaction that dropped them, and a trial forwards nothing."""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.verify import verify
from kafka_ratchet.app.why.explain import Explanation
from kafka_ratchet.app.worker.application import Application
from kafka_ratchet.app.worker.claims import DUPLICATES, WriterClaim
from kafka_ratchet.app.worker.ownership import StreamOwnership
from kafka_ratchet.errors import SettingsError, TopicTaken
from tests.app.worker_process import PATIENCE_S, Site, WorkerProcess, read_all

TOML = """
commit_interval_ms = 50
session_timeout_ms = 6000
[streams.events]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
duplicates = "{app}.dropped"
partitions = 2
[streams.trial]
input = "{app}.tried"
output = "{app}.nothing"
dead_letters = "{app}.unused"
duplicates = "{app}.would-drop"
duplicates_keep = "headers"
reorder_window = 64
conflicts = "count"
forward = false
partitions = 1
"""
SENT = [(name, sequence) for sequence in [1, 2, 2, 3, 1, 4, 4] for name in (b"a", b"b", b"c", b"d")]


LATE = [(b"z", 200, b"v"), (b"z", 5, b"v"), (b"z", 199, b"v"), (b"z", 199, b"v"), (b"z", 200, b"other")]
"""Fresh, too late, late but new, a duplicate, and another content."""


def publish(broker: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for name, sequence in SENT:
        headers = [("ratchet-producer", name), ("ratchet-sequence", b"%d" % sequence)]
        producer.produce(topic, b"%s %d" % (name, sequence), name, headers=headers)
    for name, sequence, value in LATE if topic.endswith(".tried") else []:
        headers = [("ratchet-producer", name), ("ratchet-sequence", b"%d" % sequence)]
        producer.produce(topic, value, name, headers=headers)
    assert producer.flush(30) == 0


def explained(site: Site) -> None:
    """`ratchet why` of one record, which was sent four times."""
    stream = site.settings.streams["events"]
    asked = site.command("why", "--stream", "events", "--producer", "b", "--sequence", "2", "--json")
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    first, *others = found["arrivals"]
    assert (first["verdict"], first["against"], first["forwarded"]["topic"]) == ("fresh", 1, stream.output)
    assert first["kept"] is None
    written = read_all(site.broker, stream.output)[first["forwarded"]["partition"]]
    (there,) = [each for each in written if each.offset() == first["forwarded"]["offset"]]
    assert there.value() == b"b 2"
    assert [(each["verdict"], each["against"]) for each in others] == [("duplicate", last) for last in (2, 4, 4)]
    for arrival in found["arrivals"]:
        assert arrival["transaction"]["producer_id"] >= 0
        assert arrival["result"] is None
    assert any(each["transaction"]["changelog"] for each in others)
    # Of one that was dropped the topic of duplicates says all: the input is not read.
    at, kept = others[-1]["at"], others[-1]["kept"]
    for place in (at, kept):
        named = ["--topic", place["topic"], "--partition", str(place["partition"]), "--offset", str(place["offset"])]
        asked = site.command("why", "--stream", "events", *named, "--json")
        (alone,) = json.loads(asked.stdout)["arrivals"]
        assert (alone["at"], alone["kept"], alone["against"]) == (at, kept, 4)
    said = site.command("why", "--stream", "events", "--producer", "b", "--sequence", "2").stdout
    assert f"forwarded to {stream.output} partition" in said
    assert "duplicate, dropped; the last sequence of its identity was 4" in said
    unknown = site.command("why", "--stream", "events", "--producer", "nobody", "--sequence", "2")
    assert (unknown.returncode, "not found" in unknown.stdout) == (1, True)


def test_a_stream_that_forwards_nothing_has_no_agents() -> None:
    program = App()

    @program.agent(program.stream("trial"))
    async def look(events: Any) -> None:
        pass

    stream = StreamSettings(input="a", output="b", dead_letters="c", forward=False)
    with pytest.raises(SettingsError, match="forward is false, so nothing goes to its output"):
        Application(Settings(streams={"trial": stream}), "127.0.0.1:1", {}, program)


@pytest.mark.parametrize("known", [None, "our duplicates"])
def test_a_live_topic_of_somebody_else_does_not_become_that_of_duplicates(
    monkeypatch: pytest.MonkeyPatch, known: str | None
) -> None:
    stream = StreamSettings(input="a", output="b", dead_letters="c", duplicates="payments")
    ownership = object.__new__(StreamOwnership)
    ownership._settings, ownership._name, ownership._stream = Settings(streams={"events": stream}), "events", stream
    monkeypatch.setattr(ownership, "_has_records", lambda topic: True)
    monkeypatch.setattr(ownership, "_has_committed", lambda: True)
    if known is None:
        with pytest.raises(TopicTaken, match=r"payments: has records, and stream 'events' .* has never claimed it"):
            ownership._is_to_be_claimed("payments", DUPLICATES, "id", None, "changelog")
    else:
        ours = WriterClaim(ownership._settings.app, "events", DUPLICATES, "id", "now", "", "")
        assert not ownership._is_to_be_claimed("payments", DUPLICATES, "id", ours, "changelog")


def test_a_topic_of_duplicates_that_is_made_anew_is_noticed_while_a_worker_runs() -> None:
    stream = StreamSettings(input="a", output="b", dead_letters="c", duplicates="dropped")
    worker = object.__new__(Application)
    worker.settings, worker.sends = Settings(streams={"events": stream}), {}
    topics = SimpleNamespace(settings=stream, topics=SimpleNamespace(changelog="changelog"))
    worker.streams, worker.followed = {"events": topics}, SimpleNamespace(followers=[])  # type: ignore[dict-item, assignment]
    assert {"b", "c", "dropped", "changelog"} <= set(worker._watched_topics())


@pytest.mark.matrix
def test_dropped_records_are_kept_once_whatever_crashes_and_a_trial_forwards_nothing(
    broker: str, tmp_path: Path
) -> None:
    app = f"dup-{uuid.uuid4().hex[:8]}"
    site = Site(tmp_path, broker, app, TOML.format(app=app))
    worker = WorkerProcess(site)
    inputs = [f"{app}.in", f"{app}.tried"]
    try:
        worker.start(crash_at="produced:2")
        worker.wait_for(lambda: f"{app}-changelog.trial" in worker.text(), "the topics")
        for topic in inputs:
            publish(broker, topic)
        assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
        worker.start()
        worker.wait_for(lambda: sum(map(site.position, inputs)) >= 2 * len(SENT) + len(LATE), "what was sent")
        for topic in inputs:
            publish(broker, topic)
        worker.wait_for(lambda: sum(map(site.position, inputs)) >= 4 * len(SENT) + 2 * len(LATE), "what was sent again")
    finally:
        worker.end()
    report = verify(site.settings, "events")
    assert report.is_proven, report.findings
    fresh = 4 * 4
    assert (report.fresh, report.duplicate) == (fresh, 2 * len(SENT) - fresh)
    assert report.duplicates_kept == report.duplicate
    said = {
        dict(kept.headers())["ratchet-verdict"] for each in read_all(broker, f"{app}.dropped").values() for kept in each
    }
    assert said == {b"duplicate"}
    explained(site)
    trial = verify(site.settings, "trial")
    assert trial.is_proven, trial.findings
    assert (trial.fresh, trial.duplicate, trial.late, trial.conflict) == (fresh + 2, 2 * len(SENT) - fresh + 4, 2, 2)
    assert (trial.delivered, trial.duplicates_kept) == (0, trial.duplicate + trial.late + trial.conflict)
    would_drop = [dict(kept.headers()) for kept in read_all(broker, f"{app}.would-drop")[0]]
    of_late = [said for said in would_drop if said["ratchet-sequence"] == b"5"]
    assert [(said["ratchet-verdict"], said["ratchet-last-sequence"]) for said in of_late] == [(b"too-late", b"200")] * 2
    why = Explanation(site.settings, "trial", broker, limit_s=60, watch=lambda done, total: None)
    verdicts = [(each.verdict, each.against, each.kept is not None) for each in why.of_identity(b"z", None).arrivals]
    assert verdicts[:5] == [
        *(("fresh", None, False), ("too-late", 200, True), ("fresh", 200, False)),
        *(("duplicate", 200, True), ("content-differs", 200, True)),
    ]
    # No other stream may write there.
    (tmp_path / "other").mkdir()
    other = TOML.format(app=f"{app}-other").replace(f"{app}-other.dropped", f"{app}.dropped")
    refused = Site(tmp_path / "other", broker, f"{app}-other", other).command("worker")
    assert refused.returncode == 2
    assert f"'{app}.dropped' is written by application '{app}', stream 'events', as its duplicates" in refused.stderr
    # Somebody else's record in the topic is found.
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(f"{app}.dropped", b"mine", partition=0)
    producer.flush(30)
    assert verify(site.settings, "events").unexpected == 1
