"""A Faust program with nothing changed but its URL, in workers that are killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.app.faust_host.hosted import HostedProgram, free_port

POSTS = [(str(n), f"w{n % 7} w{n % 11} x") for n in range(600)]


@pytest.fixture
def program(broker: str, tmp_path: Path) -> Iterator[HostedProgram]:
    made = HostedProgram("words", broker, tmp_path)
    made.create("posts", "counted")
    yield made
    made.end()


def check_words(program: HostedProgram, posts: list[tuple[str, str]]) -> None:
    """Each word once in effect: the outputs count from 1 up, and the table has the last of them."""
    expected = Counter(word for _, post in posts for word in post.split())
    outputs: dict[str, list[int]] = {}
    for word, count in program.read("counted"):
        outputs.setdefault(word, []).append(count)
    assert outputs == {word: list(range(1, count + 1)) for word, count in expected.items()}
    shown = {word: program.page(f"/count/{word}")[word] for word in expected}
    assert shown == expected
    assert program.table("seen") == {word: [word[0]] for word in expected}


def test_words_are_counted_once_whatever_the_worker_dies_of(program: HostedProgram) -> None:
    for number, point in enumerate(["agent:2", "offered:3", "committed:2"]):
        program.publish("posts", POSTS[number * 100 : number * 100 + 100])
        # Every second time it is without the local store; and each time it is started in another way.
        program.start(point, program.commands[number % 3], state=f"state{number % 2}")
        program.wait_for_crash()
    program.publish("posts", POSTS[300:])
    program.start()
    program.wait_for(lambda: len(program.read("counted")) == 1800, "the last word")
    check_words(program, POSTS)
    program.stop()


def test_tasks_begin_once_the_lanes_have_restored_the_tables(program: HostedProgram) -> None:
    program.publish("posts", POSTS[:100])
    program.start()
    program.wait_until_read()
    program.stop()
    program.start(state="other")
    program.wait_for(lambda: "a task sees 300 words" in program.text(), "the task with the committed counts")
    program.wait_for(lambda: program.text().count("a task of the leader runs") == 2, "the second task of the leader")
    program.stop()


@pytest.mark.matrix
def test_a_topic_with_a_rule_is_deduplicated(program: HostedProgram) -> None:
    (program.folder / "ratchet.toml").write_text(
        f'''session_timeout_ms = 6000
[streams.mine]
input = "{program.topic("posts")}"
identity = "key"
sequence = "none"
inactive_after_s = 86400
''',
        "utf-8",
    )
    program.publish("posts", POSTS[:100])
    program.publish("posts", POSTS[:100])
    program.start()
    program.publish("posts", POSTS[50:200])
    program.wait_until_read()
    check_words(program, POSTS[:200])
    streams = {each["stream"]: each for each in program.command("tables")["streams"]}
    assert streams["mine"]["totals"]["fresh"] == 200
    assert streams["mine"]["totals"]["duplicate"] == 150
    program.stop()


@pytest.mark.parametrize("command", [0, *(pytest.param(number, marks=pytest.mark.matrix) for number in (1, 2))])
def test_a_worker_waits_for_its_kafka_and_can_be_stopped_meanwhile(tmp_path: Path, command: int) -> None:
    program = HostedProgram("words", f"127.0.0.1:{free_port()}", tmp_path)
    program.start(command=program.commands[command])
    try:
        program.wait_for(lambda: "does not answer yet" in program.text(), "the sentence of the wait")
        program.stop()
    finally:
        program.end()
    assert "Traceback" not in program.text()


def count_by_plain_faust(program: HostedProgram) -> None:
    program.kind = "kafka"
    program.start()
    program.publish("posts", POSTS[:300])
    program.wait_for(lambda: len(program.read("counted")) == 900, "the last word of plain Faust")
    program.stop()


INTERRUPTED = """
from pathlib import Path
from kafka_ratchet.app.faust_host import moving

commit = moving._TakeOver._commit

async def commit_first(self, resume, number, *rest):
    if number:
        raise SystemExit("interrupted")
    await commit(self, resume, number, *rest)

moving._TakeOver._commit = commit_first
moving.take_over("words:app", None, dry_run=False)
"""
"""Import that ends after the first partition."""


@pytest.mark.matrix
def test_a_running_program_moves_over_with_its_tables(program: HostedProgram) -> None:
    count_by_plain_faust(program)
    assert "plain Faust workers have committed" in _refusal(program)
    done = program.run("-m", "kafka_ratchet", "state", "import", "--faust", "words:app", "--dry-run")
    assert "would be taken over" in done.stdout, done.stderr
    interrupted = program.run("-c", INTERRUPTED)
    assert "interrupted" in interrupted.stderr
    done = program.run("-m", "kafka_ratchet", "state", "import", "--faust", "words:app")
    assert done.returncode == 0, done.stderr
    assert "posts, partition 1: " in done.stdout
    assert "posts, partition 0: " not in done.stdout
    program.publish("posts", POSTS[300:])
    program.start()
    program.wait_for(lambda: len(program.read("counted")) == 1800, "the last word")
    check_words(program, POSTS)
    program.stop()
    again = program.run("-m", "kafka_ratchet", "state", "import", "--faust", "words:app")
    assert again.returncode == 2, again.stdout
    assert "has already committed" in again.stderr


@pytest.mark.matrix
def test_tables_whose_offsets_kafka_has_deleted_are_not_imported(program: HostedProgram) -> None:
    count_by_plain_faust(program)
    admin = AdminClient({"bootstrap.servers": program.broker})
    [deleted] = admin.delete_consumer_groups([program.id]).values()
    deleted.result()
    for arguments in (["--dry-run"], []):
        refused = program.run("-m", "kafka_ratchet", "state", "import", "--faust", "words:app", *arguments)
        assert refused.returncode == 2, refused.stdout
        assert "has no offset. Kafka deletes offsets" in refused.stderr


@pytest.mark.matrix
def test_offsets_of_another_client_halt_partitions_of_a_program_that_has_run(program: HostedProgram) -> None:
    program.start()
    program.publish("posts", POSTS[:100])
    program.wait_until_read()
    program.stop()
    posts = program.topic("posts")
    client = Consumer({"bootstrap.servers": program.broker, "group.id": program.id})
    client.commit(offsets=[TopicPartition(posts, number, 0) for number in range(2)], asynchronous=False)
    client.close()
    program.start()
    program.wait_for(lambda: program.text().count("another client has committed offset 0") >= 2, "the halt")
    for_good = ("--stream", "posts", "--reason", "a test", "--execute")
    assert program.command("resume", *for_good)["executed"]
    program.publish("posts", POSTS[100:200])
    program.wait_until_read()
    check_words(program, POSTS[:200])
    program.stop()


@pytest.mark.matrix
def test_two_workers_share_the_partitions_and_route_requests_by_key(program: HostedProgram) -> None:
    other = HostedProgram("words", program.broker, program.folder)
    other.id, other.log = program.id, program.folder / "other.log"
    program.start()
    try:
        other.start(command=program.commands[1], state="other")
        program.publish("posts", POSTS)
        program.wait_for(lambda: len(program.read("counted")) == 1800, "the last word")
        program.wait_for(lambda: "lane runs" in other.text(), "a rebalance")
        program.wait_until_read()
        check_words(program, POSTS)
        check_words(other, POSTS)
        other.kill()
        program.publish("posts", [("more", "x")])
        program.wait_for(lambda: len(program.read("counted")) == 1801, "the word after the take-over")
        program.wait_until_read()
        check_words(program, [*POSTS, ("more", "x")])
        program.stop()
    finally:
        other.end()


def _refusal(program: HostedProgram) -> str:
    """Start a worker that does not come up, and return its log."""
    program.kind = "ratchet"
    program.start()
    assert program.process.wait(120) == 2
    assert "Traceback" not in program.text()
    return program.text()
