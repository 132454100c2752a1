"""What an operator does to an installation, and the command that lets it go on: from outside, on a real Kafka."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.app.names import earlier_changelog_name
from kafka_ratchet.app.worker.resume import recounted_from
from kafka_ratchet.app.worker.topics import COMPACTED
from kafka_ratchet.producers import made_topic
from kafka_ratchet.tables.edits import FORGET, Edit
from tests.app.worker_process import Site, WorkerProcess, read_all

STREAM = """
session_timeout_ms = 6000
[streams.{stream}]
input = "{name}.in"
output = "{name}.out"
dead_letters = "{name}.dead"
partitions = 1
{more}
"""
MakeSite = Callable[..., Site]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Callable[[Site], WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start(site: Site) -> WorkerProcess:
        worker = WorkerProcess(site, f"worker-{len(started)}")
        worker.start()
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.end()


def site(folder: Path, broker: str, app: str = "", stream: str = "events", name: str = "", more: str = "") -> Site:
    app = app or f"resume-{uuid.uuid4().hex[:8]}"
    folder.mkdir(exist_ok=True)
    return Site(folder, broker, app, STREAM.format(stream=stream, name=name or app, more=more))


def publish(place: Site, topic: str, first: int, last: int, header: str = "ratchet-sequence") -> None:
    producer = Producer({"bootstrap.servers": place.broker, "enable.idempotence": True})
    for number in range(first, last + 1):
        headers = [("ratchet-producer", b"me"), (header, b"%d" % number)]
        producer.produce(topic, json.dumps({"n": number}), headers=headers)
    assert producer.flush(30) == 0


def forwarded(place: Site, topic: str) -> list[int]:
    return [json.loads(message.value() or b"")["n"] for message in read_all(place.broker, topic).get(0, [])]


def recreate(place: Site, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": place.broker})
    admin.delete_topics([topic])[topic].result(30)
    while not made_topic(admin, NewTopic(topic, 1, 1), 30):
        pass  # the deletion is still under way


def served(place: Site, worker: WorkerProcess, topic: str, count: int) -> None:
    worker.wait_for(lambda: place.position(topic) == count, f"offset {count} of {topic}")


def stands_still(worker: WorkerProcess, said: str) -> None:
    """Its lane has said so, and again: it stays halted."""
    worker.wait_for(lambda: len(re.findall(f"{said}.*state=halted", worker.text())) > 1, said)


def resume(place: Site, *arguments: str) -> str:
    done = place.command("resume", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_input_deleted_and_created_again_under_a_worker(
    broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]
) -> None:
    place = site(tmp_path, broker)
    source, output = f"{place.app}.in", f"{place.app}.out"
    worker = workers(place)
    worker.wait_for(lambda: "lane runs" in worker.text(), "the lane")
    publish(place, source, 1, 100)
    served(place, worker, source, 100)
    recreate(place, source)
    publish(place, source, 101, 230)  # beyond the old position: a number alone would fit again
    stands_still(worker, "its input was")
    assert forwarded(place, output) == list(range(1, 101))

    refused = place.command("resume")
    assert refused.returncode == 2
    assert "the committed offset means nothing here, and the topic holds 0 to 130. Say --from where" in refused.stderr
    dry = resume(place, "--from", "earliest")
    assert "would continue at offset 0" in dry
    assert "Nothing was changed" in dry
    assert place.command("resume", "--from", "earliest", "--execute").returncode == 2  # without a reason
    stands_still(worker, "its input was")
    done = json.loads(resume(place, "--from", "earliest", "--reason", "made it anew", "--execute", "--json"))
    assert (done["executed"], done["partitions"][0]["after"]) == (True, 0)
    served(place, worker, source, 130)
    assert forwarded(place, output) == list(range(1, 231))
    worker.stop()

    again = workers(place)  # and a start from the changelog finds the same
    publish(place, source, 225, 240)
    served(place, again, source, 146)
    assert forwarded(place, output) == list(range(1, 241))


def test_an_input_that_the_changelog_knows_is_not_made_anew(
    broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]
) -> None:
    place = site(tmp_path, broker)
    source = f"{place.app}.in"
    worker = workers(place)
    worker.wait_for(lambda: "lane runs" in worker.text(), "the lane")
    publish(place, source, 1, 3)
    served(place, worker, source, 3)
    worker.stop()
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_topics([source])[source].result(30)
    done = place.command("worker")
    assert done.returncode == 2
    assert f"there is no topic '{source}', and the changelog {place.app}-changelog.events knows of one" in done.stderr


def test_two_applications_whose_names_ran_together(
    broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]
) -> None:
    prefix = f"shop{uuid.uuid4().hex[:6]}"
    one = site(tmp_path / "one", broker, app=prefix, stream="eu-orders", name=f"{prefix}.one")
    two = site(tmp_path / "two", broker, app=f"{prefix}-eu", stream="orders", name=f"{prefix}.two")
    for place, name in ((one, f"{prefix}.one"), (two, f"{prefix}.two")):
        worker = workers(place)
        worker.wait_for(lambda worker=worker: "lane runs" in worker.text(), "the lane")  # type: ignore[misc]
        publish(place, f"{name}.in", 1, 80)
        served(place, worker, f"{name}.in", 80)
        assert forwarded(place, f"{name}.out") == list(range(1, 81))


def test_a_changelog_of_the_earlier_name_goes_on_with_whoever_has_committed_with_it(
    broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation of the version before, upgraded in place; and another that only has the same name for it."""
    prefix = f"shop{uuid.uuid4().hex[:6]}"
    one = site(tmp_path / "one", broker, app=prefix, stream="eu-orders", name=f"{prefix}.one")
    source, output, changelog = f"{prefix}.one.in", f"{prefix}.one.out", earlier_changelog_name(prefix, "eu-orders")
    admin = AdminClient({"bootstrap.servers": broker})
    for topic, config in ((source, {}), (changelog, COMPACTED)):
        assert made_topic(admin, NewTopic(topic, 1, 1, config=config), 30)
    producer = Producer({"bootstrap.servers": broker, "transactional.id": f"{prefix}-{source}-0"})
    producer.init_transactions(30)
    publish(one, source, 1, 40)
    producer.begin_transaction()
    # As version 1 wrote it: progress without an epoch, identities, no owner.
    producer.produce(changelog, b"\1" + b"".join(n.to_bytes(8, "big") for n in (30, 30, 0, 0)), b"p")
    producer.produce(changelog, (30).to_bytes(8, "big"), b"ime")
    producer.commit_transaction(30)

    refused = one.command("worker")  # nothing tells whose it is: the group has forgotten its offsets
    assert refused.returncode == 2
    assert f"{changelog}: was written by an earlier Ratchet" in refused.stderr
    two = site(tmp_path / "two", broker, app=f"{prefix}-eu", stream="orders", name=f"{prefix}.two")
    assert two.command("worker").returncode == 2

    wanted = ("--adopt", "--reason", "it is ours", "--execute")
    missing = one.command("resume", *wanted)
    assert "there is no topic" in missing.stderr
    for topic in (output, f"{prefix}.one.dead", f"{prefix}-policy"):
        made_topic(admin, NewTopic(topic, 1, 1, config=COMPACTED if topic.endswith("policy") else {}), 30)
    resume(one, *wanted)
    worker = workers(one)
    served(one, worker, source, 40)
    assert forwarded(one, output) == list(range(31, 41))
    other = workers(two)  # the name is claimed now, so that it takes the one that cannot run together
    other.wait_for(lambda: "lane runs" in other.text(), "the lane")
    publish(two, f"{prefix}.two.in", 1, 80)
    served(two, other, f"{prefix}.two.in", 80)
    assert forwarded(two, f"{prefix}.two.out") == list(range(1, 81))


def test_a_changed_rule_stands_still_and_can_begin_without_what_was_counted(
    broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]
) -> None:
    place = site(tmp_path, broker)
    source, output = f"{place.app}.in", f"{place.app}.out"
    worker = workers(place)
    worker.wait_for(lambda: "lane runs" in worker.text(), "the lane")
    publish(place, source, 1001, 1040)
    served(place, worker, source, 40)
    worker.stop()
    changed = site(tmp_path, broker, app=place.app, more='sequence = "field:n"')
    publish(place, source, 1, 40, header="another")
    worker = workers(changed)
    stands_still(worker, "it was judged with sequence = 'header:ratchet-sequence'")
    refused = changed.command("resume")
    assert "add --forget to begin without them" in refused.stderr
    resume(changed, "--forget", "--reason", "counts by the field now", "--execute")
    served(place, worker, source, 80)
    assert forwarded(place, output) == [*range(1001, 1041), *range(1, 41)]


def test_an_application_that_was_renamed_over_the_same_topics(
    broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]
) -> None:
    place = site(tmp_path / "before", broker)
    source, output = f"{place.app}.in", f"{place.app}.out"
    worker = workers(place)
    worker.wait_for(lambda: "lane runs" in worker.text(), "the lane")
    publish(place, source, 1, 100)
    served(place, worker, source, 100)
    renamed = site(tmp_path / "after", broker, app=f"{place.app}-2", name=place.app)
    done = renamed.command("worker")
    assert done.returncode == 2
    assert f"{output}: is written by application '{place.app}', stream 'events'" in done.stderr
    adopt = ("--adopt", "--from", "latest", "--reason", "renamed", "--execute")
    refused = renamed.command("resume", *adopt)
    assert "is at work" in refused.stderr
    worker.stop()
    late = WorkerProcess(place, "late")  # has read the claims, and is in no group yet
    late.start(module="tests.app.worker.late_worker")
    late.wait_for(lambda: "claims are read" in late.text(), "the claims")
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_consumer_groups([place.app])[place.app].result(30)  # as Kafka does with idle ones
    # What is refused has not claimed anything: a worker would begin at the earliest record, and double all of them.
    nowhere = renamed.command("resume", "--adopt", "--reason", "renamed", "--execute")
    assert (nowhere.returncode, "Say --from where" in nowhere.stderr) == (2, True), nowhere.stderr
    assert f"is written by application '{place.app}'" in renamed.command("worker").stderr
    resume(renamed, *adopt)
    worker = workers(renamed)
    worker.wait_for(lambda: "lane runs" in worker.text(), "the lane")
    try:
        (tmp_path / "before" / "go").touch()
        stands_still(late, f"is written by application '{renamed.app}'")
        publish(place, source, 101, 120)
        served(renamed, worker, source, 120)
        assert forwarded(place, output) == list(range(1, 121))
        late.stop()
    finally:
        late.end()
    back = place.command("worker")  # two do not take turns
    assert f"is written by application '{renamed.app}'" in back.stderr
    worker.stop()
    # Its own position of before means nothing: the other has forwarded what stands behind it.
    nowhere = place.command("resume", "--adopt", "--reason", "and back", "--execute")
    assert (nowhere.returncode, "Say --from where" in nowhere.stderr) == (2, True), nowhere.stderr


def test_what_resume_does_not_take(broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]) -> None:
    place = site(tmp_path, broker)
    assert "there is no topic" in place.command("resume").stderr
    worker = workers(place)
    worker.wait_for(lambda: "lane runs" in worker.text(), "the lane")
    publish(place, f"{place.app}.in", 1, 3)
    served(place, worker, f"{place.app}.in", 3)
    for arguments, said in (
        (("--partition", "1"), "has partitions 0 to 0, and no '1'"),
        (("--partition", "x" * 200), "and no 'xxxx"),
        (("--partition", "9" * 5000), "and no '9999"),
        (("--from", "9" * 5000), "--from takes earliest"),
        (("--from", "4"), "--from takes earliest, latest or an offset from 0 to 3 (given: '4')"),
        (("--from", "-1"), "--from takes earliest"),
        (("--from", "٣"), "--from takes earliest"),
        (("--stream", "nobody"), "no stream 'nobody'"),
    ):
        done = place.command("resume", *arguments)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    other = site(tmp_path / "other", broker, app=place.app, more='sequence = "field:n"')
    refused = other.command("resume", "--forget", "--reason", "a settings file of before", "--execute")
    assert (refused.returncode, "run with other settings than these" in refused.stderr) == (2, True), refused.stderr
    # A lane that runs is moved as well: skipped ahead, and back.
    assert "2 offsets are read again" in resume(place, "--from", "1", "--reason", "look again", "--execute")
    served(place, worker, f"{place.app}.in", 3)
    assert forwarded(place, f"{place.app}.out") == [1, 2, 3]


def test_nothing_of_ratchets_own_is_an_input_or_output(broker: str, tmp_path: Path) -> None:
    for topic in ("ratchet-owners", "ratchet-producers", "__consumer_offsets", "shop-policy", "shop-changelog.events"):
        place = site(tmp_path, broker, app="shop")
        place.config.write_text(place.config.read_text().replace('output = "shop.out"', f'output = "{topic}"'))
        done = place.command("worker")
        assert done.returncode == 2
        assert f"the output of 'events' is '{topic}', which Ratchet or Kafka writes for itself" in done.stderr


def test_the_name_of_the_producers_topic_is_the_producers_own() -> None:
    from kafka_ratchet.app.names import PRODUCERS_TOPIC
    from kafka_ratchet.producers import PROGRESS_TOPIC

    assert PRODUCERS_TOPIC == PROGRESS_TOPIC


def test_what_was_forgotten_behind_the_offset_to_go_on_at_is_said() -> None:
    who = "now", "me", "so"
    edits = [
        Edit("0" * 16, FORGET, *who, position, b"me".hex(), None, before, after)
        for position, before, after in ((5, 4, -1), (6, -1, -1), (9, 7, 2))
    ]
    assert [each.split(":")[0] for each in recounted_from(edits, 12, 4)] == ["offset 5", "offset 9"]
    assert [each.split(":")[0] for each in recounted_from(edits, 12, 5)] == ["offset 9"]
    assert recounted_from(edits, 12, 9) == []
    assert len(recounted_from(edits, None, 100)) == 2  # positions in another topic
