"""Comparisons of a table as source while its pipeline goes on: the target must not be ahead of the source."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake import write_deltalake

from kafka_ratchet.app.compare.comparison import Comparer, Options
from kafka_ratchet.app.settings import Settings


@pytest.mark.parametrize("kind", ["topic", "table"])
@pytest.mark.parametrize("moment", ["source", "target"])
def test_rows_that_come_between_two_snapshots_are_not_unexpected(
    kind: str, moment: str, broker: str, new_topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    target = f"kafka:{topic}" if kind == "topic" else f"delta:{tmp_path}/target"

    def go_on(id: int, at: datetime) -> None:
        """Add a row to the source, and then to the target, as a pipeline does."""
        row = pa.table({"id": [id], "at": pa.array([at])})
        write_deltalake(str(tmp_path / "source"), row, mode="append")
        if kind == "table":
            write_deltalake(str(tmp_path / "target"), row, mode="append")
            return
        producer = Producer({"bootstrap.servers": broker, "log_level": 0})
        producer.produce(topic, json.dumps({"id": id}).encode())
        assert producer.flush(30) == 0

    go_on(1, datetime(2026, 1, 1, tzinfo=UTC))
    opened = Comparer._open

    def open_side(comparer: Comparer, name: Any) -> Any:
        side = opened(comparer, name)
        if name == moment:
            go_on(2, datetime.now(UTC))
        return side

    monkeypatch.setattr(Comparer, "_open", open_side)
    options = Options(grace="5m", timestamp="at")
    with Comparer(f"delta:{tmp_path}/source", target, "id", options, Settings(bootstrap=broker)) as comparer:
        result = comparer.run()
    assert not result.is_wrong, result.findings
    # A topic's end is fixed after its opening, a table is read as of it.
    expected = {"source": (1, 1), "target": (2, 2 if kind == "topic" else 1)}[moment]
    assert (result.source_rows, result.target_rows) == expected
    assert result.in_flight == expected[0] - expected[1]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_partition_that_is_added_while_sides_are_read(
    arrived: bool, broker: str, new_topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows in the target are not unexpected, and its records are in flight."""
    topic = new_topic(1)

    def send(id: int, partition: int) -> None:
        producer = Producer({"bootstrap.servers": broker, "log_level": 0})
        producer.produce(topic, json.dumps({"id": id}).encode(), partition=partition)
        assert producer.flush(30) == 0
        if partition == 0 or arrived:
            write_deltalake(str(tmp_path / "target"), pa.table({"id": [id]}), mode="append")

    send(1, 0)
    opened = Comparer._open

    def open_side(comparer: Comparer, name: Any) -> Any:
        if name == "target":
            admin = AdminClient({"bootstrap.servers": broker})
            admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
            while len(admin.list_topics(topic, timeout=30).topics[topic].partitions) < 2:
                time.sleep(0.05)
            send(2, 1)
        return opened(comparer, name)

    monkeypatch.setattr(Comparer, "_open", open_side)
    with Comparer(
        f"kafka:{topic}", f"delta:{tmp_path}/target", "id", Options(), Settings(bootstrap=broker)
    ) as comparer:
        result = comparer.run()
    assert not result.is_wrong, result.findings
    assert result.in_flight == (0 if arrived else 1)
