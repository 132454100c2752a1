import gzip
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from kafka_ratchet.app.cli import cli, run
from kafka_ratchet.errors import RatchetError

ROOT = Path(__file__).parents[3]
NewTopic = Callable[..., str]
Publish = Callable[..., tuple[int, str, str]]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def name() -> str:
    return f"producer-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start(broker: str, tmp_path: Path) -> Iterator[Start]:
    """start(*arguments, **variables) starts `ratchet publish` as a process that does not outlive the test."""
    started: list[subprocess.Popen[str]] = []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")}
    environment |= {"RATCHET_BOOTSTRAP": broker, "PYTHONPATH": str(ROOT)}

    def run(*arguments: object, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "kafka_ratchet", "publish", *map(str, arguments)],
            cwd=tmp_path,
            env=environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()  # nothing happens to one that has ended and was waited for
        process.communicate()


@pytest.fixture
def publish(broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """publish(*arguments, given=standard input) runs it here -> exit code, standard output, standard error."""
    monkeypatch.setenv("RATCHET_BOOTSTRAP", broker)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, given: bytes | None = None) -> tuple[int, str, str]:
        done = CliRunner().invoke(cli, ["publish", *map(str, arguments)], input=given)
        if isinstance(done.exception, RatchetError):
            return 2, done.stdout, done.stderr + str(done.exception)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout, done.stderr

    return run


def read(broker: str, topic: str, partition: int) -> list[Message]:
    consumer = Consumer(
        {"bootstrap.servers": broker, "group.id": "t", "enable.partition.eof": True, "fetch.wait.max.ms": 10}
    )
    consumer.list_topics(topic, timeout=60)  # one that has met no broker reads half a second later
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found = []
    try:
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.append(message)
        assert message is not None, "no end of the partition"
    finally:
        consumer.close()
    return found


def sequence_of(message: Message) -> int:
    return int.from_bytes(dict(message.headers())["ratchet-sequence"], "big")


def written(broker: str, topic: str, partitions: int) -> int:
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "t"})
    try:
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in range(partitions))
    finally:
        consumer.close()


def lines(count: int) -> list[bytes]:
    return [b'{"user":"u%d","n":%d,"text":"%s"}' % (i * i % 97, i, b"x" * (i % 50)) for i in range(count)]


def test_publishing_needs_the_address_of_a_kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the records would go to an embedded Kafka, which is deleted with them."""
    monkeypatch.delenv("RATCHET_BOOTSTRAP", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("events.txt").write_text("an event\n")
    assert run(["publish", "events.txt", "--producer", "p", "--topic", "t", "--partitions", "1"]) == 2
    printed = capsys.readouterr()
    assert "bootstrap is missing" in printed.err
    assert printed.out == ""


def test_killed_five_times_and_resumed(
    start: Start, publish: Publish, broker: str, new_topic: NewTopic, name: str, tmp_path: Path
) -> None:
    topic = new_topic(4)
    records = lines(12_000)
    path = tmp_path / "events.ndjson.gz"
    path.write_bytes(gzip.compress(b"\n".join(records) + b"\n"))
    arguments = (path, "--producer", name, "--topic", topic, "--key", "user")
    resumed: list[int] = []
    for kill in range(5):
        process = start(*arguments, "--rate", 400)  # 30 s for the whole file: not at its end when it is killed
        goal = written(broker, topic, 4) + 500 + 50 * kill
        while written(broker, topic, 4) < goal:
            assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGKILL)
        told = re.search(r"goes on after byte (\d+)", process.communicate()[1])
        resumed.append(int(told[1]) if told else -1)
    code, out, err = publish(*arguments, "--json")
    assert code == 0, err
    summary = json.loads(out)
    resumed.append(summary["resumed_after"])
    assert resumed == sorted(resumed)
    assert resumed[0] == -1
    assert resumed[-1] > 0
    assert f"goes on after byte {summary['resumed_after']}" in err

    expected: dict[int, bytes] = {}
    offset = 0
    for record in records:
        expected[offset] = record
        offset += len(record) + 1
    assert summary["last_sequence"] == max(expected)
    order: dict[bytes, list[int]] = {b"u%d" % (i * i % 97): [] for i in range(12_000)}
    for sequence, record in expected.items():
        order[json.loads(record)["user"].encode()].append(sequence)

    seen: dict[int, bytes] = {}
    kept: dict[bytes, list[int]] = {key: [] for key in order}
    for partition in range(4):
        last = -1
        for message in read(broker, topic, partition):
            sequence = sequence_of(message)
            assert dict(message.headers())["ratchet-producer"] == name.encode()
            assert expected[sequence] == message.value()
            assert seen.setdefault(sequence, message.value()) == message.value()
            if sequence > last:  # what the worker keeps
                last = sequence
                kept[message.key()].append(sequence)
    assert set(seen) == set(expected)
    assert kept == order


def test_publishing_again_does_nothing_and_from_start_sends_all(
    publish: Publish, broker: str, new_topic: NewTopic, name: str, tmp_path: Path
) -> None:
    topic = new_topic(1)
    path = tmp_path / "notes.txt"
    path.write_bytes(b"one\ntwo\n\nfour")
    arguments = (path, "--producer", name, "--topic", topic)
    code, out, _ = publish(*arguments)
    assert (code, out) == (0, f"{path}: 4 records published to {topic} as '{name}', last sequence 9\n")
    assert publish(*arguments)[:2] == (0, f"{path}: nothing to publish, all of it was published before\n")
    code, out, _ = publish(*arguments, "--from-start", "--json")
    assert json.loads(out) == {"published": 4, "resumed_after": -1, "last_sequence": 9}
    assert [sequence_of(message) for message in read(broker, topic, 0)] == [0, 4, 8, 9] * 2
    path.write_bytes(b"one\ntwo\n\nfour and more\n")
    code, _, err = publish(*arguments)
    assert code == 2
    assert "has a longer line at byte 9 than when it was published" in err
    path.write_bytes(b"one\ntwo\n\nfour\nfive\n")
    code, out, _ = publish(*arguments, "--json")
    assert json.loads(out) == {"published": 1, "resumed_after": 9, "last_sequence": 14}


def test_a_bad_line_stops_before_it_and_goes_on_once_mended(
    publish: Publish, broker: str, new_topic: NewTopic, name: str, tmp_path: Path
) -> None:
    topic = new_topic(2)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"id":1}\n{"id":2}\n{"id":oops}\n{"id":4}\n')
    arguments = (path, "--producer", name, "--topic", topic, "--key", "id")
    code, out, err = publish(*arguments)
    assert (code, out) == (2, "")
    assert f"{path}: line 3 (byte 18): not JSON" in err
    assert written(broker, topic, 2) == 2
    path.write_bytes(b'{"id":1}\n{"id":2}\n{"id":3}\n{"id":4}\n')
    code, out, err = publish(*arguments, "--json")
    assert (code, json.loads(out)) == (0, {"published": 2, "resumed_after": 9, "last_sequence": 27})
    keys = [message.key() for partition in range(2) for message in read(broker, topic, partition)]
    assert sorted(keys) == [b"1", b"2", b"3", b"4"]


def test_a_table_with_a_bad_row_sends_nothing(
    publish: Publish, broker: str, new_topic: NewTopic, name: str, tmp_path: Path
) -> None:
    topic = new_topic(1)
    path = tmp_path / "parts.csv"
    path.write_text('id,what\n1,nail\n2,5" pipe\n3,screw\n4,6" pipe\n')
    arguments = (path, "--producer", name, "--topic", topic, "--key", "id", "--json")
    code, out, err = publish(*arguments)
    assert (code, out) == (2, "")
    assert f"{path}: line 3 (byte 15): not CSV: a quote neither around a whole field" in err
    good = tmp_path / "a.csv"
    good.write_text("id,what\n0,hook\n")
    assert publish(good, *arguments)[0] == 2  # one bad row among several files
    assert written(broker, topic, 1) == 0
    path.write_text('id,what\n1,nail\n2,"5"" pipe"\n3,screw\n4,"6"" pipe"\n')
    code, out, err = publish(*arguments)
    assert (code, json.loads(out)["published"]) == (0, 4), err


def test_an_empty_file(publish: Publish, new_topic: NewTopic, name: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.ndjson"
    path.touch()
    assert publish(path, "--producer", name, "--topic", new_topic(1))[:2] == (
        0,
        f"{path}: nothing to publish, it has no records\n",
    )


def test_a_source_that_changed(publish: Publish, new_topic: NewTopic, name: str, tmp_path: Path) -> None:
    topic = new_topic(1)
    path = tmp_path / "f.txt"
    path.write_bytes(b"one\ntwo\nthree\n")
    arguments = (path, "--producer", name, "--topic", topic)
    assert publish(*arguments)[0] == 0
    for changed, says in (
        (b"ONE\ntwo\nthree\n", "has changed between byte 0 and byte 14"),
        (b"one\ntwo\nthrEe\n", "has changed between byte 0 and byte 14"),
        (b"one\n", "is shorter than it was"),
    ):
        path.write_bytes(changed)
        code, _, err = publish(*arguments)
        assert code == 2
        assert says in err
        assert "under another producer name" in err


def test_several_files_and_then_one_more(
    publish: Publish, broker: str, new_topic: NewTopic, name: str, tmp_path: Path
) -> None:
    topic = new_topic(1)
    (tmp_path / "1.csv").write_text('id,text\na,"two\nlines"\nb,plain\n')
    (tmp_path / "2.ndjson.gz").write_bytes(gzip.compress(b'{"id":"c"}\n'))
    arguments = ("--producer", name, "--topic", topic, "--key", "id", "--json")
    assert json.loads(publish("1.csv", *arguments)[1])["published"] == 2
    code, out, err = publish("1.csv", "2.ndjson.gz", *arguments)
    assert (code, json.loads(out)["published"]) == (0, 1), err
    assert "goes on after byte 22 of 1.csv" in err
    assert [(m.key(), m.value()) for m in read(broker, topic, 0)] == [
        (b"a", b'{"id":"a","text":"two\\nlines"}'),
        (b"b", b'{"id":"b","text":"plain"}'),
        (b"c", b'{"id":"c"}'),
    ]
    code, _, err = publish("2.ndjson.gz", "1.csv", *arguments)
    assert code == 2
    assert "another producer name" in err


def test_a_folder_is_followed_until_a_signal(
    start: Start, publish: Publish, broker: str, new_topic: NewTopic, name: str, tmp_path: Path
) -> None:
    topic = new_topic(1)
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "1.txt").write_text("a\nb\nhal")
    process = start(folder, "--follow", "--producer", name, "--topic", topic)

    def wait_for(count: int) -> None:
        while written(broker, topic, 1) < count:
            assert process.poll() is None, process.communicate()

    wait_for(2)
    with (folder / "1.txt").open("a") as file:
        file.write("f\nlast")
    wait_for(3)
    (folder / "2.txt").write_text("next\nnot yet")
    wait_for(5)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "5 records published" in out) == (0, True), err
    code, out, _ = publish(folder, "--producer", name, "--topic", topic, "--json")  # to the end, once
    assert (code, json.loads(out)["published"]) == (0, 1)
    assert [m.value() for m in read(broker, topic, 0)] == [b"a", b"b", b"half", b"last", b"next", b"not yet"]


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["rename", "copy"])
def test_a_log_that_is_rotated_is_followed_line_for_line(
    start: Start, broker: str, new_topic: NewTopic, name: str, tmp_path: Path, way: str
) -> None:
    topic = new_topic(1)
    folder = tmp_path / "logs"
    folder.mkdir()
    log, rotated = folder / "app.log", folder / "app.log.1"
    records: list[bytes] = []

    def append(count: int) -> None:
        with log.open("ab") as file:
            for _ in range(count):
                records.append(b"line %d" % len(records))
                file.write(records[-1] + b"\n")

    def rotate() -> None:
        if rotated.exists():
            (folder / "app.log.2.gz").write_bytes(gzip.compress(rotated.read_bytes()))
        if way == "rename":
            log.replace(rotated)
            log.touch()
        else:
            rotated.write_bytes(log.read_bytes())
            os.truncate(log, 0)

    def follow_until(count: int) -> tuple[int, str]:
        process = start(folder, "--follow", "--producer", name, "--topic", topic)
        while written(broker, topic, 1) < count and process.poll() is None:
            pass
        if count == 300:
            append(150)
            rotate()
            append(400)
            while written(broker, topic, 1) < len(records) and process.poll() is None:
                pass
        process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=60)[1]
        return process.returncode, err

    append(300)
    assert follow_until(300)[0] == 0
    append(50)
    rotate()  # while nobody looks
    append(100)
    code, err = follow_until(len(records))
    assert code == 0, err
    assert [message.value() for message in read(broker, topic, 0)] == records
    log.write_bytes(b"another log\n" * 400)
    code, err = follow_until(10**9)
    assert (code, "another producer name" in err) == (2, True), err
    assert written(broker, topic, 1) == len(records)


def test_standard_input_with_identifiers(publish: Publish, broker: str, new_topic: NewTopic, name: str) -> None:
    topic = new_topic(1)
    rows = b'{"n":3}\n{"n":"7"}\n{"n":9}\n{"n":8}\n'
    arguments = ("-", "--producer", name, "--topic", topic, "--sequence-field", "n", "--json")

    assert json.loads(publish(*arguments, given=rows[:18])[1]) == {
        "published": 2,
        "resumed_after": -1,
        "last_sequence": 7,
    }
    code, _, err = publish(*arguments, given=rows)  # from its beginning again: what was published is passed over
    assert code == 2
    assert "sequence 8" in err
    assert "does not rise above 9" in err
    assert [sequence_of(message) for message in read(broker, topic, 0)] == [3, 7, 9]


@pytest.mark.parametrize("piped", [False, True])
def test_numbers_below_the_progress_are_refused_and_not_left_out(
    publish: Publish, broker: str, new_topic: NewTopic, name: str, tmp_path: Path, piped: bool
) -> None:
    topic, path = new_topic(1), tmp_path / "till.ndjson"

    def run(rows: bytes, *more: str) -> tuple[int, str, str]:
        path.write_bytes(rows)
        common = ("--producer", name, "--topic", topic, "--sequence-field", "n", "--json", *more)
        return publish("-", *common, given=rows) if piped else publish(path, *common)

    code, _, err = run(b'{"n":1}\n{"n":1000000}\n{"n":3}\n{"n":4}\n')
    assert (code, "sequence 3 does not rise" in err) == (2, True), err
    corrected = b'{"n":1}\n{"n":2}\n{"n":3}\n{"n":4}\n'
    code, out, err = run(corrected)
    assert (code, out) == (2, "")
    assert "ends at sequence 4, but producer" in err
    assert f"'{name}' has published to '{topic}' up to sequence 1000000" in err
    assert "publish with --from-start" in err
    code, out, err = run(corrected, "--from-start")
    assert code == 0, err
    assert json.loads(out)["published"] == 4
    assert [sequence_of(message) for message in read(broker, topic, 0)] == [1, 1000000, 1, 2, 3, 4]
    assert run(b"")[0] == 0  # no record says anything
    code, out, err = run(b'{"n":1000000}\n{"n":1000001}\n')
    assert (code, json.loads(out)["published"]) == (0, 1), err


def test_a_compacted_topic_needs_keys_and_is_refused_before_anything_is_sent(
    publish: Publish, broker: str, new_topic: NewTopic, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'{"id":"a"}\n')
    for policy in ("compact", "compact,delete"):
        topic = new_topic(1, cleanup_policy=policy)
        code, _, err = publish(path, "--producer", name, "--topic", topic)
        assert code == 2
        assert "Add --key FIELD" in err
        assert policy in err
        assert written(broker, topic, 1) == 0
        assert publish(path, "--producer", name, "--topic", topic, "--key", "id")[0] == 0


def test_a_missing_topic_is_created_where_it_is_known_how(
    publish: Publish, broker: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(b"one\n")
    settings = tmp_path / "ratchet.toml"
    topic = f"input-{name}"
    settings.write_text(
        f'[streams.s]\ninput = "{topic}"\noutput = "o-{name}"\ndead_letters = "d-{name}"\npartitions = 3\n'
    )
    code, _, err = publish(path, "--producer", name, "--topic", f"unknown-{name}", "--config", settings)
    assert code == 2
    assert f"topic 'unknown-{name}' does not exist" in err
    assert "--partitions N" in err
    code, _, err = publish(path, "--producer", name, "--config", settings)  # the only stream's input
    assert code == 0, err
    assert "created with 3 partitions" in err
    assert publish(path, "--producer", name, "--topic", f"two-{name}", "--partitions", 2)[0] == 0
    topics = AdminClient({"bootstrap.servers": broker}).list_topics(timeout=30).topics
    assert len(topics[topic].partitions) == 3
    assert len(topics[f"two-{name}"].partitions) == 2
    assert f"unknown-{name}" not in topics


@pytest.mark.parametrize(
    ("producer", "says"), [("", "is empty"), ("x" * 300, "300 bytes"), ("a\tb", "control character")]
)
def test_bad_producer_names(publish: Publish, new_topic: NewTopic, tmp_path: Path, producer: str, says: str) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(b"one\n")
    code, _, err = publish(path, "--producer", producer, "--topic", new_topic(1))
    assert code == 2
    assert says in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("missing.txt", "--producer", "p", "--topic", "t"), "missing.txt: there is no such file"),
        ((".", "--producer", "p", "--topic", "t"), "has no files"),
        (("missing.txt", "--producer", "p"), "the topic is not named, and the settings have no stream"),
        (("missing.txt", "--producer", "p", "--topic", "t", "--stream", "x"), "no stream 'x' in the settings"),
        (("missing.txt", "--producer", "p", "--topic", "t", "--format", "x"), "write ndjson, lines or csv"),
        (("missing.txt", "--follow", "--producer", "p", "--topic", "t"), "there is no such file"),
        (("-", "--producer", "p", "--topic", "t"), "cannot be read again after a crash"),
        (("-", "a.txt", "--producer", "p", "--topic", "t"), "cannot be combined with files or --follow"),
    ],
)
def test_mistakes_are_said_before_kafka_is_asked(
    publish: Publish, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.setenv("RATCHET_BOOTSTRAP", "127.0.0.1:1")
    code, out, err = publish(*arguments)
    assert (code, out) == (2, "")
    assert says in err


def test_nobody_listens(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(b"one\n")
    variables = {"RATCHET_BOOTSTRAP": "127.0.0.1:1", "RATCHET_KAFKA_TIMEOUT_S": "3"}
    process = start(path, "--producer", "p", "--topic", "t", **variables)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert "does not answer yet" in err
    assert "did not answer within 3 s" in err
    assert "Traceback" not in err
