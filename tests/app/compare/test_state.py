"""Comparisons that go on from a state file: changes between two runs are refused or named."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake import DeltaTable, write_deltalake

from kafka_ratchet.app.compare.comparison import Comparer, Comparison, Options
from kafka_ratchet.app.compare.table import TableSide
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import LogTruncated, SettingsError, TopicReplaced
from kafka_ratchet.producers import create_topic
from tests.topic_config import wait_for_partitions

Compared = Callable[..., Comparison]


def produce(broker: str, topic: str, ids: Sequence[Any], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in ids:
        producer.produce(topic, json.dumps({"id": number}).encode(), partition=partition)
    assert producer.flush(30) == 0


def write(table: Path, ids: Sequence[Any]) -> str:
    table.write_text("id\n" + "".join(f"{number}\n" for number in ids))
    return f"csv:{table}"


@pytest.fixture
def compared(broker: str, tmp_path: Path) -> Compared:
    """Function that compares by id, with one state file."""

    def run(source: str, target: str, **options: Any) -> Comparison:
        chosen = Options(state=tmp_path / "state", **options)
        with Comparer(source, target, "id", chosen, Settings(bootstrap=broker)) as comparer:
            return comparer.run()

    return run


def recreate(broker: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 60
    while topic in admin.list_topics(timeout=30).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    create_topic(admin, topic, partitions=1, config={}, timeout_s=60, say=print)


def delete(broker: str, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    [done] = admin.delete_records([TopicPartition(topic, 0, before)]).values()
    done.result(60)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_topic_that_was_created_again_is_refused(
    side: str, broker: str, new_topic: Callable[..., str], tmp_path: Path, compared: Compared
) -> None:
    topic = new_topic(1)
    produce(broker, topic, range(3))
    table = write(tmp_path / "t.csv", range(3))
    sides = (f"kafka:{topic}", table) if side == "source" else (table, f"kafka:{topic}")
    assert compared(*sides).ok
    recreate(broker, topic)
    produce(broker, topic, [*range(2), 77, 78])  # as many offsets as before, and one more
    with pytest.raises(TopicReplaced, match=f"{topic}.*created again.*at the last run"):
        compared(*sides)
    (tmp_path / "state").unlink()
    wrong = compared(*sides)
    assert wrong.lost + wrong.unexpected == 3


def test_a_topic_created_again_while_it_is_watched(broker: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(1)
    produce(broker, topic, range(3))
    table = write(tmp_path / "t.csv", range(3))
    with Comparer(f"kafka:{topic}", table, "id", Options(), Settings(bootstrap=broker)) as comparer:
        assert comparer.run().ok
        recreate(broker, topic)
        produce(broker, topic, range(3))
        for _ in range(2):
            with pytest.raises(TopicReplaced):
                comparer.run()
            comparer.roll_back()


def test_records_deleted_between_two_runs_are_named_in_all_later_runs(
    broker: str, new_topic: Callable[..., str], tmp_path: Path, compared: Compared
) -> None:
    topic = new_topic(2)
    produce(broker, topic, range(3))
    table = write(tmp_path / "t.csv", range(3))
    assert compared(f"kafka:{topic}", table).ok
    produce(broker, topic, range(3, 10))
    delete(broker, topic, 8)
    write(tmp_path / "t.csv", [*range(3), 8, 9])
    for _ in range(2):
        result = compared(f"kafka:{topic}", table)
        assert (result.source_rows, result.lost, result.unexpected, result.exit_code) == (5, 0, 0, 3)
        (why,) = result.unread
        assert f"{topic}, partition 0: offsets 3 to 7 were deleted" in why


def test_records_deleted_from_an_added_partition_are_named(
    broker: str, new_topic: Callable[..., str], tmp_path: Path, compared: Compared
) -> None:
    topic = new_topic(1)
    produce(broker, topic, range(3))
    table = write(tmp_path / "t.csv", range(3))
    assert compared(f"kafka:{topic}", table).ok
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    wait_for_partitions(broker, topic, 2)
    produce(broker, topic, range(3, 10), partition=1)
    admin.delete_records([TopicPartition(topic, 1, 5)])[TopicPartition(topic, 1)].result(30)
    write(tmp_path / "t.csv", [*range(3), 8, 9])
    for _ in range(2):
        result = compared(f"kafka:{topic}", table)
        assert (result.lost, result.unexpected, result.exit_code) == (0, 0, 3)
        (why,) = result.unread
        assert f"{topic}, partition 1: offsets 0 to 4 were deleted" in why


def test_records_deleted_after_they_were_read_are_no_gap(
    broker: str, new_topic: Callable[..., str], tmp_path: Path, compared: Compared
) -> None:
    topic = new_topic(1)
    produce(broker, topic, range(5))
    table = write(tmp_path / "t.csv", range(5))
    assert compared(f"kafka:{topic}", table).ok
    delete(broker, topic, 5)
    assert compared(f"kafka:{topic}", table).ok


def test_a_log_that_has_lost_its_end_is_refused(
    broker: str, new_topic: Callable[..., str], tmp_path: Path, compared: Compared
) -> None:
    topic = new_topic(1)
    produce(broker, topic, range(5))
    table = write(tmp_path / "t.csv", range(5))
    assert compared(f"kafka:{topic}", table).ok
    with duckdb.connect(str(tmp_path / "state")) as state:  # as if more had been read
        state.execute("UPDATE progress SET next = 9")
    with pytest.raises(LogTruncated, match=r"partition 0 ends at offset 5.*up to offset 9"):
        compared(f"kafka:{topic}", table)


def test_records_without_an_identity_stay_counted(
    broker: str, new_topic: Callable[..., str], tmp_path: Path, compared: Compared
) -> None:
    topic = new_topic(1)
    produce(broker, topic, [0, None, 1, None])
    table = write(tmp_path / "t.csv", range(2))
    for _ in range(2):
        result = compared(f"kafka:{topic}", table)
        assert (result.without_identity, result.exit_code) == ({"source": 2, "target": 0}, 3)
        assert result.first_without_identity == {"source": {"topic": topic, "partition": 0, "offset": 1}}
        assert (result.source_rows, result.lost, result.unexpected, result.doubled) == (2, 0, 0, 0)
    produce(broker, topic, [None])
    assert compared(f"kafka:{topic}", table).without_identity["source"] == 3


def test_a_table_of_other_types_is_refused(broker: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic, settings = new_topic(1), Settings(bootstrap=broker)
    produce(broker, topic, range(2))
    table, options = tmp_path / "t.parquet", Options(state=tmp_path / "state", compare="id")
    pa.parquet.write_table(pa.table({"id": pa.array(range(2), pa.int64())}), table)
    with Comparer(f"kafka:{topic}", f"parquet:{table}", "offset=id", options, settings) as comparer:
        assert comparer.run().ok
    pa.parquet.write_table(pa.table({"id": ["0", "1"]}), table)
    with (
        Comparer(f"kafka:{topic}", f"parquet:{table}", "offset=id", options, settings) as comparer,
        pytest.raises(SettingsError, match="other types at the last run: any, number then, any, any now"),
    ):
        comparer.run()


def test_another_format_of_values_is_another_comparison(
    broker: str, new_topic: Callable[..., str], tmp_path: Path, compared: Compared
) -> None:
    topic = new_topic(1)
    produce(broker, topic, range(2))
    table = write(tmp_path / "t.csv", range(2))
    assert compared(f"kafka:{topic}", table).ok
    with pytest.raises(SettingsError, match="value format"):
        compared(f"kafka:{topic}", table, value_format="bytes")


def test_tables_are_read_anew_in_each_run(
    broker: str, new_topic: Callable[..., str], tmp_path: Path, compared: Compared
) -> None:
    """Files that were replaced or appended, and a Delta table that went back, hide nothing."""
    topic = new_topic(1)
    produce(broker, topic, range(4))
    write_deltalake(str(tmp_path / "delta"), pa.table({"id": range(2)}))
    write_deltalake(str(tmp_path / "delta"), pa.table({"id": range(2, 4)}), mode="append")
    target = f"delta:{tmp_path}/delta"
    assert compared(f"kafka:{topic}", target).ok
    DeltaTable(str(tmp_path / "delta")).restore(0)
    assert compared(f"kafka:{topic}", target).lost == 2
    (tmp_path / "state").unlink()
    files = tmp_path / "files"
    files.mkdir()
    pa.parquet.write_table(pa.table({"id": range(4)}), files / "a.parquet")
    assert compared(f"kafka:{topic}", f"parquet:{files}").ok
    pa.parquet.write_table(pa.table({"id": [0, 1, 2, 9]}), files / "a.parquet")
    pa.parquet.write_table(pa.table({"id": [0]}), files / "b.parquet")
    result = compared(f"kafka:{topic}", f"parquet:{files}")
    assert (result.lost, result.doubled, result.unexpected) == (1, 1, 1)


def test_a_file_that_changes_while_it_is_read_is_named(
    broker: str, new_topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    produce(broker, topic, range(4))
    table, read = write(tmp_path / "t.csv", range(4)), TableSide.rows

    def rows(side: TableSide, wanted: Any) -> Iterator[Any]:
        for number, each in enumerate(read(side, wanted)):
            if not number:
                with (tmp_path / "t.csv").open("a") as file:
                    file.write("4\n")
            yield each

    monkeypatch.setattr(TableSide, "rows", rows)
    with Comparer(f"kafka:{topic}", table, "id", Options(), Settings(bootstrap=broker)) as comparer:
        result = comparer.run()
    assert result.exit_code == 3
    assert "t.csv was changed while it was read" in result.unread[0]


def test_a_delta_table_is_not_taken_for_its_files(tmp_path: Path, broker: str, new_topic: Callable[..., str]) -> None:
    write_deltalake(str(tmp_path / "delta"), pa.table({"id": range(2)}))
    with pytest.raises(SettingsError, match="Write delta:"):
        Comparer(
            f"kafka:{new_topic(1)}", f"parquet:{tmp_path}/delta", "id", Options(), Settings(bootstrap=broker)
        ).run()
