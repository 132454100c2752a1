"""`ratchet sink resume`, over a real topic and table: what it says, what it does, and what is in the table then."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from kafka_ratchet.app.cli.sink import sink
from kafka_ratchet.errors import SetupError
from kafka_ratchet.spark_sink.errors import RowsLost, TopicRecreated
from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.stores.delta.log import read_entry
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.optimistic import Staged
from kafka_ratchet.spark_sink.stores.results import count
from kafka_ratchet.spark_sink.topic_ids import StoredTopicId, first_bits, of_halves, of_parts, parts, text
from tests.spark_sink.sites import delta_store

Run = Callable[..., RunSummary]
Write = Callable[..., None]
Rows = Callable[..., list[tuple[object, ...]]]
Resume = Callable[..., Result]


@pytest.fixture
def resume(broker: str, table: str, tmp_path: Path) -> Resume:
    """resume(topic, *arguments) for the job of `run`."""

    def start(topic: str, *arguments: str) -> Result:
        path = tmp_path / "ratchet.toml"
        path.write_text(
            f"bootstrap = {json.dumps(broker)}\n[streams.events]\ninput = 'in'\noutput = '{topic}'\n"
            f"dead_letters = 'dead'\n[sink]\nname = 'job'\npath = {json.dumps(table, ensure_ascii=False)}\n",
            "utf-8",
        )
        return CliRunner().invoke(sink, ["resume", "--config", str(path), *arguments])

    return start


def test_a_restored_table_is_read_again_once_from_what_it_has(
    new_topic: Callable[..., str], write: Write, run: Run, rows: Rows, table: str, resume: Resume
) -> None:
    topic = new_topic(partitions=2)
    write(topic, [b"%d" % n for n in range(50)], 0)
    write(topic, [b"%d" % n for n in range(50)], 1)
    run(topic)
    then = DeltaTable(table).version()
    write(topic, [b"%d" % n for n in range(50, 100)], 0)
    run(topic)
    DeltaTable(table).restore(then)
    assert count(TableLocation("delta", table)) == 100
    with pytest.raises(RowsLost, match=rf"restored to version {then} .*`ratchet sink resume`: --from table"):
        run(topic)
    version = DeltaTable(table).version()

    looked = resume(topic, "--from", "table", "--reason", "a disk was swapped")
    assert looked.exit_code == 0, looked.output
    said = " ".join(looked.output.split())
    assert f"was restored to version {then}" in said
    assert "partition 0: next offset 102 -> 51 (51 offsets are read once more, 51 to read in all)" in said
    assert "partition 1: next offset 51 -> 51 (0 offsets to read)" in said
    assert "nothing was changed; --execute does it" in said
    assert DeltaTable(table).version() == version

    done = resume(topic, "--from", "table", "--reason", "a disk was swapped", "--execute", "--json")
    told = json.loads(done.output)
    assert (told["executed"], told["generation"]) == (True, 3)
    assert told["partitions"]["0"] == {"before": 102, "after": 51, "end": 102}
    entry = read_entry(LocalFolder(Path(table)), DeltaTable(table).version())
    assert entry is not None
    noted = entry.user_metadata["resume"]
    assert (noted["reason"], noted["from"]) == ("a disk was swapped", "table")
    assert (noted["who"], noted["before"]) == (told["who"], {"0": 102, "1": 51})
    assert run(topic).rows == 50
    expected = [(0, b"%d" % n) for n in range(100)] + [(1, b"%d" % n) for n in range(50)]
    assert sorted(rows("_kafka_partition", "_kafka_value")) == sorted(expected)
    again = resume(topic, "--from", "stored", "--reason", "nothing to do")
    assert "nothing is wrong; the job goes on without a decision" in again.output


def test_another_topic_of_the_name_is_refused_with_both_ids_until_somebody_says_where_to_go_on(
    broker: str, new_topic: Callable[..., str], write: Write, run: Run, rows: Rows, resume: Resume
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"old %d" % n for n in range(10)])
    run(topic)
    was = topic_id(broker, topic)
    create_again(broker, topic)
    write(topic, [b"new %d" % n for n in range(30)])  # longer than the old one, so that its offsets would do
    now = topic_id(broker, topic)
    assert was != now
    with pytest.raises(
        TopicRecreated, match=rf"its id is {re.escape(now)}, and the id of the topic read so far was {re.escape(was)}\."
    ):
        run(topic)

    refused = resume(topic, "--from", "table", "--reason", "why")
    assert isinstance(refused.exception, SetupError)
    assert "the rows and rejects do not tell which offsets the job has read" in str(refused.exception)
    looked = resume(topic, "--from", "earliest", "--reason", "made anew on purpose")
    assert was in looked.output
    assert now in looked.output
    resume(topic, "--from", "earliest", "--reason", "made anew on purpose", "--execute")
    assert run(topic).rows == 30
    expected = [b"old %d" % n for n in range(10)] + [b"new %d" % n for n in range(30)]
    values: list[Any] = [value for (value,) in rows("_kafka_value")]
    assert sorted(values) == sorted(expected)

    create_again(broker, topic)  # and once more: the id that counts is the one of the last decision
    with pytest.raises(TopicRecreated, match=re.escape(now)):
        run(topic)


def test_an_output_that_has_lost_its_end_is_refused_and_goes_on_where_somebody_says(
    broker: str, new_topic: Callable[..., str], write: Write, run: Run, table: str, resume: Resume
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"x"] * 4)
    run(topic)
    planner = TopicPlanner(broker, topic, {})
    store = delta_store(table, "job", topic, planner.topic_id())
    store.open(store.columns())  # type: ignore[arg-type]
    store._write(store._existing(), Staged(0), 2, {0: 9})
    with pytest.raises(TopicRecreated, match=r"read up to offset 9, but the topic ends at 5; .*ratchet sink resume"):
        run(topic)
    for wrong, sentence in [
        ("stored", "offset 9 of .* is not in the topic, which holds 0 to 5"),
        ("0:6", "offset 6 of .* is not in the topic"),
        ("1:0", "has no partition 1"),
        ("0:1,0:2", "twice"),
        ("beginning", "write table, stored, earliest, latest or PARTITION:OFFSET"),
    ]:
        refused = resume(topic, "--from", wrong, "--reason", "why", "--execute")
        assert re.search(sentence, str(refused.exception)), refused.exception
    assert re.search("give the reason in one line", str(resume(topic, "--from", "latest", "--reason", " ").exception))
    for named, rows in (("latest", 0), ("0:3", 1)):
        assert resume(topic, "--from", named, "--reason", "the log was cut", "--execute").exit_code == 0
        assert run(topic).rows == rows


def test_an_id_comes_back_from_its_parts_as_kafka_prints_it() -> None:
    for topic_id in (3, 2**127, 2**128 - 1, 0x4123456789ABCDEF_8000000000000001):
        assert of_parts(*parts(topic_id)) == topic_id
        halves = struct.unpack(">2q", topic_id.to_bytes(16, "big"))  # signed, as Java and librdkafka have them
        assert of_halves(*halves) == topic_id
        assert all(0 <= part < 2**63 for part in parts(topic_id))
        assert not StoredTopicId(text(topic_id)).is_other(topic_id)
        assert StoredTopicId(text(topic_id)).is_other(topic_id ^ 1)
        earlier = StoredTopicId("", first_bits(topic_id))  # what a table of an earlier version has
        assert not earlier.is_other(topic_id ^ 1)
        assert earlier.is_other(topic_id ^ 1 << 70) == bool(earlier.first_bits)
    assert text(3) == "AAAAAAAAAAAAAAAAAAAAAw"
    assert not StoredTopicId().is_other(7)
    assert not StoredTopicId(text(1)).is_other(0)


def topic_id(broker: str, topic: str) -> str:
    """As Kafka's own tools print it; librdkafka has `+` and `/` where those have `-` and `_`."""
    from confluent_kafka import TopicCollection

    admin = AdminClient({"bootstrap.servers": broker})  # has to live until the answer is there
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id
    return str(found).translate(str.maketrans("+/", "-_"))


def create_again(broker: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 30
    while topic in admin.list_topics(timeout=60).topics:  # the broker answers before it is done
        assert time.monotonic() < deadline, f"{topic} is still there"
        time.sleep(0.05)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    deadline = time.monotonic() + 30
    while True:
        found = admin.list_topics(topic, timeout=60).topics[topic].partitions
        if len(found) == 1 and found[0].leader >= 0:
            return
        assert time.monotonic() < deadline, f"{topic} has no leader"
        time.sleep(0.05)
