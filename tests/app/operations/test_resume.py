"""Operators' changes of an installation, and `ratchet resume` after them, on a real Kafka."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.app.operations.recounting import recounted_from
from kafka_ratchet.producers import made_topic
from kafka_ratchet.tables.edits import FORGET, Edit
from tests.app.worker_process import Site, WorkerProcess, read_all, status_address

STREAM = """
session_timeout_ms = 6000
[streams.{stream}]
input = "{name}.in"
output = "{name}.out"
dead_letters = "{name}.dead"
partitions = 1
{more}
"""
IMPATIENT = "tests.app.operations.impatient_worker"
MakeSite = Callable[..., Site]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Callable[[Site], WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start(site: Site) -> WorkerProcess:
        worker = WorkerProcess(site, f"worker-{len(started)}")
        worker.start(module=IMPATIENT)
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


def commit_as_stranger(place: Site, topic: str, offset: int) -> None:
    group = Consumer({"bootstrap.servers": place.broker, "group.id": place.app})
    group.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    group.close()


def read_as_stranger(place: Site, topic: str, count: int) -> None:
    """Read as a console consumer whose group is the application: it commits and leaves."""
    options: dict[str, Any] = {"client.id": "console-consumer", "auto.offset.reset": "earliest"}
    console = Consumer({"bootstrap.servers": place.broker, "group.id": place.app, **options})
    console.subscribe([topic])
    assert len(console.consume(count, 60)) == count
    console.close()


def served(place: Site, worker: WorkerProcess, topic: str, count: int) -> None:
    worker.wait_for(lambda: place.position(topic) == count, f"offset {count} of {topic}")


def stands_still(worker: WorkerProcess, said: str) -> None:
    """Wait until the partition has halted for this reason, and two more tries have changed nothing."""
    worker.wait_for(lambda: re.search(f"partition (?:is still )?halted.*{said}", worker.text()) is not None, said)

    def tries() -> int:
        with urlopen(f"{status_address(worker)}/status", timeout=60) as answer:  # noqa: S310 - of its own log
            tables = json.load(answer)["tables"]
        partitions = [each for table in tables for each in table["partitions"]]
        return min((each["restarts"] for each in partitions if re.search(said, each["error"] or "")), default=-1)

    worker.wait_for(lambda: tries() > 0, f"{said}, in its status")
    before = tries()
    worker.wait_for(lambda: tries() >= before + 2, f"two more tries of {said}")


def resume(place: Site, *arguments: str) -> str:
    done = place.command("resume", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def proven(place: Site, *arguments: str) -> dict[str, Any]:
    """Verify the stream once a repair is done: there is nothing to be said of it."""
    done = place.command("verify", "--json", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.matrix
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
    assert (
        "no committed offset of this topic is known, and the partition has the offsets 0 to 130. "
        "Give the offset with --from" in refused.stderr
    )
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
    report = proven(place)
    assert (report["fresh"], report["duplicate"], report["before"]) == (130, 0, 100)

    again = workers(place)  # and a start from the changelog finds the same
    publish(place, source, 225, 240)
    served(place, again, source, 146)
    assert forwarded(place, output) == list(range(1, 241))
    proven(place)


def test_an_offset_of_another_client_is_restored_or_accepted(
    broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]
) -> None:
    place = site(tmp_path, broker)
    source, output = f"{place.app}.in", f"{place.app}.out"
    worker = workers(place)
    worker.wait_for(lambda: "lane runs" in worker.text(), "the lane")
    publish(place, source, 1, 50)
    served(place, worker, source, 50)
    worker.stop()
    publish(place, source, 51, 100)
    read_as_stranger(place, source, 50)
    doctor = place.command("doctor")
    assert doctor.returncode == 1
    assert f"{source}, partition 0: another client has committed offset 100" in doctor.stdout
    assert "1 member: client id 'console-consumer' at 127.0.0.1" in doctor.stdout
    unproven = place.command("verify")
    assert unproven.returncode == 2
    assert "another client has committed offset 100" in unproven.stderr
    worker = workers(place)
    client = r"committed at 20..-..-.. ..:..:.. UTC, when the group had 1 member: client id 'console-consumer' at 127"
    stands_still(worker, f"{client}.*Offsets 50 to 99, 50 of them, were never judged")
    assert "the group's offset 100 was committed by another client; our own position: 50" in resume(place)
    resume(place, "--reason", "a console consumer", "--execute")
    served(place, worker, source, 100)
    assert forwarded(place, output) == list(range(1, 101))
    proof = place.command("verify")
    assert proof.returncode == 0, proof.stdout + proof.stderr
    worker.stop()

    publish(place, source, 101, 110)
    commit_as_stranger(place, source, 105)
    worker = workers(place)
    stands_still(worker, "when the group had no members.*Offsets 100 to 104, 5 of them, were never judged")
    assert "5 offsets are skipped" in resume(place, "--from", "105", "--reason", "accepted", "--execute")
    served(place, worker, source, 110)
    assert forwarded(place, output) == [*range(1, 101), *range(106, 111)]
    proof = place.command("verify")
    assert proof.returncode == 0, proof.stdout + proof.stderr


@pytest.mark.matrix
def test_an_offset_of_another_client_in_a_new_group_needs_a_decision(
    broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]
) -> None:
    place = site(tmp_path, broker)
    source, output = f"{place.app}.in", f"{place.app}.out"
    made_topic(AdminClient({"bootstrap.servers": broker}), NewTopic(source, 1, 1), 30)
    publish(place, source, 1, 20)
    stranger = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": place.app,
            "client.id": "there-first",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    stranger.subscribe([source])
    assert len(stranger.consume(20, 60)) == 20
    worker = workers(place)
    named = "a consumer group of the new protocol: 1 member: client id 'there-first'"
    worker.wait_for(lambda: named in worker.text(), "the stranger's name")
    stranger.close()
    stands_still(worker, "the changelog has no position")
    refused = place.command("resume", "--reason", "they have left", "--execute")
    assert refused.returncode == 2
    assert "Give the offset with --from" in refused.stderr
    resume(place, "--from", "earliest", "--reason", "they have left", "--execute")
    served(place, worker, source, 20)
    assert forwarded(place, output) == list(range(1, 21))
    proof = place.command("verify")
    assert proof.returncode == 0, proof.stdout + proof.stderr


@pytest.mark.matrix
def test_a_new_stream_begins_where_resume_says(
    broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]
) -> None:
    place = site(tmp_path, broker)
    source, output = f"{place.app}.in", f"{place.app}.out"
    made_topic(AdminClient({"bootstrap.servers": broker}), NewTopic(source, 1, 1), 30)
    publish(place, source, 1, 20)
    refused = place.command("resume", "--from", "15")
    assert refused.returncode == 2
    assert "`ratchet resume` with --from and --execute creates the topics. Start no worker before" in refused.stderr
    resume(place, "--from", "15", "--reason", "moved from another deduplication", "--execute")
    worker = workers(place)
    served(place, worker, source, 20)
    assert forwarded(place, output) == list(range(16, 21))
    proven(place)


@pytest.mark.matrix
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
    assert (
        f"input topic '{source}' does not exist, but the changelog {place.app}-changelog.events shows that it existed"
        in done.stderr
    )


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


@pytest.mark.matrix
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
    stands_still(worker, "its records were judged with sequence = 'header:ratchet-sequence'")
    refused = changed.command("resume")
    assert "add --forget to continue without last sequences" in refused.stderr
    resume(changed, "--forget", "--reason", "counts by the field now", "--execute")
    served(place, worker, source, 80)
    assert forwarded(place, output) == [*range(1001, 1041), *range(1, 41)]
    proven(changed)
    assert changed.command("verify", "--independent").returncode == 0


@pytest.mark.matrix
def test_dead_letters_of_a_rule_that_was_corrected_are_proven(
    broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]
) -> None:
    wrong = 'identity = "field:nobody"\nsequence = "field:n"'
    place = site(tmp_path, broker, more=wrong)
    source, output = f"{place.app}.in", f"{place.app}.out"
    worker = workers(place)
    worker.wait_for(lambda: "lane runs" in worker.text(), "the lane")
    publish(place, source, 1, 50)
    served(place, worker, source, 50)
    worker.stop()
    corrected = site(tmp_path, broker, app=place.app, more='identity = "producer"\nsequence = "field:n"')
    halted = corrected.command("verify")  # it is judged by the rule of before until somebody decides
    assert (halted.returncode, "0 fresh, 0 duplicate, 50 invalid" in halted.stdout) == (0, True), halted.stdout
    worker = workers(corrected)
    stands_still(worker, "its records were judged with identity")
    resume(corrected, "--forget", "--reason", "the field has another name", "--execute")
    served(place, worker, source, 50)
    replay = corrected.command("dead-letters", "replay", "--json")
    assert (replay.returncode, json.loads(replay.stdout)["replayed"]) == (0, 50), replay.stderr
    publish(place, source, 48, 60)
    worker.wait_for(lambda: forwarded(place, output) == list(range(1, 61)), "all of them")
    worker.stop()
    report = proven(corrected)
    assert (report["fresh"], report["duplicate"], report["invalid"]) == (60, 3, 50)
    # Read again from the beginning, nothing of before is new, and all of it that had no identity is.
    resume(corrected, "--from", "earliest", "--forget", "--reason", "once more", "--execute")
    worker = workers(corrected)
    worker.wait_for(lambda: len(forwarded(place, output)) == 120, "all of them, once more")
    worker.stop()
    assert (proven(corrected)["fresh"], proven(corrected, "--independent")["invalid"]) == (120, 100)
    why = corrected.command("why", "--topic", source, "--partition", "0", "--offset", "7", "--json")
    told = [(each["at"]["offset"], each["verdict"]) for each in json.loads(why.stdout)["arrivals"]]
    assert told == [(7, "invalid"), (57, "fresh"), (7, "fresh"), (57, "invalid")], why.stdout


@pytest.mark.matrix
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
    assert "is running" in refused.stderr
    worker.stop()
    late = WorkerProcess(place, "late")  # has read the claims, and is in no group yet
    late.start(module="tests.app.worker.late_worker")
    late.wait_for(lambda: "claims are read" in late.text(), "the claims")
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_consumer_groups([place.app])[place.app].result(30)  # as Kafka does with idle ones
    # What is refused has not claimed anything: a worker would begin at the earliest record, and double all of them.
    nowhere = renamed.command("resume", "--adopt", "--reason", "renamed", "--execute")
    assert (nowhere.returncode, "Give the offset with --from" in nowhere.stderr) == (2, True), nowhere.stderr
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
        assert [each["records"] for each in proven(renamed)["skipped"]] == [100]
        late.stop()
    finally:
        late.end()
    back = place.command("worker")  # two do not take turns
    assert f"is written by application '{renamed.app}'" in back.stderr
    worker.stop()
    # Its own position of before means nothing: the other has forwarded what stands behind it.
    nowhere = place.command("resume", "--adopt", "--reason", "and back", "--execute")
    assert (nowhere.returncode, "Give the offset with --from" in nowhere.stderr) == (2, True), nowhere.stderr


@pytest.mark.matrix
def test_what_resume_does_not_take(broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]) -> None:
    place = site(tmp_path, broker)
    assert "does not exist" in place.command("resume").stderr
    worker = workers(place)
    worker.wait_for(lambda: "lane runs" in worker.text(), "the lane")
    publish(place, f"{place.app}.in", 1, 3)
    served(place, worker, f"{place.app}.in", 3)
    for arguments, said in (
        (("--partition", "1"), "has partitions 0 to 0, not '1'"),
        (("--partition", "x" * 200), "not 'xxxx"),
        (("--partition", "9" * 5000), "not '9999"),
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
    proven(place)


@pytest.mark.matrix
def test_records_that_passed_unjudged_are_counted_before_they_pass_again(
    broker: str, tmp_path: Path, workers: Callable[[Site], WorkerProcess]
) -> None:
    place = site(tmp_path, broker)
    source, output = f"{place.app}.in", f"{place.app}.out"
    worker = workers(place)
    worker.wait_for(lambda: "lane runs" in worker.text(), "the lane")
    publish(place, source, 0, 4)
    served(place, worker, source, 5)
    assert place.command("policy", "set", "off", "--stream", "events").returncode == 0
    worker.wait_for(lambda: "deduplicate=False" in worker.text(), "the policy")
    publish(place, source, 5, 9)
    served(place, worker, source, 10)
    back = "--from", "earliest", "--reason", "look again", "--execute"
    done = place.command("resume", *back)
    assert done.returncode == 2
    assert "10 records, the first at offset 0; deduplication is off" in done.stderr
    assert place.command("policy", "unset", "--stream", "events").returncode == 0
    worker.wait_for(lambda: "deduplicate=None" in worker.text(), "the policy")
    done = place.command("resume", *back)
    assert done.returncode == 2
    assert "5 records, the first at offset 5; offsets 5 to 9: 5 records passed while deduplication" in done.stderr
    assert "Add --recount" in done.stderr
    assert "0 of their records pass once more" not in resume(place, "--from", "9", "--recount")
    plan = json.loads(resume(place, "--from", "earliest", "--recount", "--json"))["partitions"][0]
    assert (plan["again"], plan["passes_again"], len(plan["recounted"])) == (10, 5, 2)
    said = resume(place, *back, "--recount")
    assert "10 offsets are read again: 5 of their records pass once more" in said
    worker.wait_for(lambda: len(forwarded(place, output)) == 15, "what passes once more")
    assert forwarded(place, output) == [*range(10), *range(5, 10)]
    assert "0 of their records pass once more" in resume(place, "--from", "earliest")


def test_nothing_of_ratchets_own_is_an_input_or_output(broker: str, tmp_path: Path) -> None:
    for topic in ("ratchet-owners", "ratchet-producers", "__consumer_offsets", "shop-policy", "shop-changelog.events"):
        place = site(tmp_path, broker, app="shop")
        place.config.write_text(place.config.read_text().replace('output = "shop.out"', f'output = "{topic}"'))
        done = place.command("worker")
        assert done.returncode == 2
        said = f"output of stream 'events' is '{topic}', a topic that Ratchet or Kafka writes for its own use"
        assert said in done.stderr


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
