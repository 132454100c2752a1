"""`ratchet publish --batches`: killed at every point, resumed, and the same records as one by one."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_ratchet.transport.publishing.sender import BatchSender
from kafka_ratchet.transport.transactions.crash_points import PUBLISHING_POINTS, VARIABLE
from tests.app.cli.test_publish import Publish, Start, name, publish, read, sequence_of, start, written

__all__ = ["name", "publish", "start"]  # fixtures
NewTopic = Callable[..., str]


def written_file(path: Path, count: int) -> dict[int, tuple[bytes, bytes]]:
    """Key and value of each record by its sequence."""
    found: dict[int, tuple[bytes, bytes]] = {}
    with path.open("wb") as file:
        for number in range(count):
            key = b"u%d" % (number * number % 97)
            line = b'{"n":%d,"user":"%s","text":"%s"}' % (number, key, b"x" * (number % 300))
            found[file.tell()] = key, line
            file.write(line + (b"\r\n" if number % 10 == 0 else b"\n" * (1 + (number % 17 == 0))))
    return found


@pytest.mark.matrix
def test_killed_at_every_point_and_resumed(
    start: Start, publish: Publish, broker: str, new_topic: NewTopic, name: str, tmp_path: Path
) -> None:
    topic = new_topic(4)
    path = tmp_path / "events.ndjson"
    expected = written_file(path, 60_000)  # eleven megabytes: eleven blocks
    arguments = (path, "--producer", name, "--topic", topic, "--key", "user", "--batches")
    ended: list[str] = []
    for point in PUBLISHING_POINTS:
        for times in (1, 3):
            process = start(*arguments, **{VARIABLE: f"{point}:{times}"})
            process.wait(120)
            ended.append(f"{point}:{times} {process.returncode}")
            if process.returncode != -signal.SIGKILL:
                assert process.returncode == 0, process.communicate()
    assert sum(each.endswith(f" {-signal.SIGKILL}") for each in ended) >= 4, ended
    # The other way of sending goes on where this one was killed, and this one where that one has come to.
    code, out, err = publish(*arguments[:-1], "--no-batches", "--json")
    assert code == 0, err
    more = json.loads(out)
    assert more["last_sequence"] == max(expected)
    with path.open("ab") as file:
        expected[file.tell()] = b"u1", b'{"user":"u1"}'
        file.write(b'{"user":"u1"}')
    code, out, err = publish(*arguments, "--json")
    assert code == 0, err
    assert json.loads(out) == {
        "published": 1,
        "resumed_after": more["last_sequence"],
        "last_sequence": max(expected),
    }

    seen: set[int] = set()
    kept: dict[bytes, list[int]] = {}
    for partition in range(4):
        last = -1
        for message in read(broker, topic, partition):
            sequence = sequence_of(message)
            assert dict(message.headers())["ratchet-producer"] == name.encode()
            assert (message.key(), message.value()) == expected[sequence]
            seen.add(sequence)
            if sequence > last:  # what the worker keeps
                last = sequence
                kept.setdefault(message.key(), []).append(sequence)
    assert seen == set(expected)
    order: dict[bytes, list[int]] = {}
    for sequence, (key, _) in expected.items():
        order.setdefault(key, []).append(sequence)
    assert kept == order


def test_a_bad_line_stops_before_it_and_goes_on_once_mended(
    publish: Publish, broker: str, new_topic: NewTopic, name: str, tmp_path: Path
) -> None:
    topic = new_topic(2)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"id":1}\n{"id":2}\n{"id":oops}\n{"id":4}\n')
    arguments = (path, "--producer", name, "--topic", topic, "--key", "id", "--batches")
    code, out, err = publish(*arguments)
    assert (code, out) == (2, "")
    assert f"{path}: line 3 (byte 18): not JSON" in err
    assert written(broker, topic, 2) == 2
    path.write_bytes(b'{"id":1}\n{"id":2}\n{"id":3}\n{"id":4}\n')
    code, out, err = publish(*arguments, "--json")
    assert (code, json.loads(out)) == (0, {"published": 2, "resumed_after": 9, "last_sequence": 27})
    path.write_bytes(b'{"id":0}\n{"id":2}\n{"id":3}\n{"id":4}\n')
    code, _, err = publish(*arguments)
    assert code == 2
    assert "has changed between byte 0 and byte 36" in err


@pytest.mark.parametrize("way", ["--batches", "--no-batches"])
def test_too_large_a_record_is_named_by_its_line(
    publish: Publish, broker: str, new_topic: NewTopic, name: str, tmp_path: Path, way: str
) -> None:
    topic, path = new_topic(1), tmp_path / "in.log"
    # The second one in the middle of a block, the first one larger than a block.
    for size in (2_000_000, 1_000_001):
        path.write_bytes(b"one\nthree\n" + b"x" * size + b"\n5\n6\n")
        code, out, err = publish(path, "--producer", f"{name}-{size}", "--topic", topic, way)
        assert (code, out) == (2, "")
        assert f"{path}: line 3 (before byte {size + 11}): the record is too large: topic '{topic}'" in err
        sent = [message.value() for message in read(broker, topic, 0)]
        assert sent[-2:] == [b"one", b"three"]
        path.write_bytes(b"one\nthree\n5\n")  # it was left out
        code, out, err = publish(path, "--producer", f"{name}-{size}", "--topic", topic, way, "--json")
        assert (code, json.loads(out)) == (0, {"published": 1, "resumed_after": 4, "last_sequence": 10}), err
    assert [message.value() for message in read(broker, topic, 0)] == [b"one", b"three", b"5"] * 2


@pytest.mark.parametrize("way", ["--batches", "--no-batches"])
def test_a_record_that_kafka_refuses_is_not_placed_in_a_wrong_line(
    publish: Publish, new_topic: NewTopic, name: str, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refusal comes when later lines have been read."""
    monkeypatch.setattr(BatchSender, "limit", lambda sender, most: most)  # as for a user who may not read the topic's
    topic, path = new_topic(1, max_message_bytes=2000), tmp_path / "in.log"
    path.write_bytes(b"one\n" + b"x" * 5000 + b"\n" + b"5\n" * 1000)
    code, out, err = publish(path, "--producer", name, "--topic", topic, way)
    assert (code, out) == (2, "")
    assert f"{path}: a record is too large: topic '{topic}', producer '{name}', " in err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--rate", "5"), "--rate counts single records"),
        (("--format", "csv"), "only one file of lines or NDJSON"),
        (("--sequence-field", "id"), "only one file of lines or NDJSON"),
    ],
)
def test_what_cannot_be_sent_in_batches_is_refused(
    publish: Publish, new_topic: NewTopic, name: str, tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"id":1}\n')
    code, _, err = publish(path, "--producer", name, "--topic", new_topic(1), "--batches", *more)
    assert code == 2
    assert f"--batches is not possible: {said}" in err
    assert "--no-batches" in err
