"""Commits of a job among the snapshots of an Iceberg table, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.iceberg.commit import Commit
from kafka_ratchet.spark_sink.stores.iceberg.lineage import commits_of_job, offsets_of_rows
from tests.spark_sink.stores.test_touched import commit_of, made

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def stored(next_offset: int, topic: str = "events") -> dict[str, str]:
    """Return the property of the offsets as `Commit` finds it."""
    return {f"ratchet-sink.job.{topic}": json.dumps({"offsets": {"3": next_offset}})}


def test_offsets_of_the_rows_are_those_of_the_commit_that_wrote_them(tmp_path: Path) -> None:
    table = made(tmp_path / "warehouse", SCHEMA)
    commit = commit_of(table, WriteMode("upsert", ("k",)))
    other = Commit("another", 1, commit.write_mode, commit.folder)
    for number, writer in enumerate((commit, commit, other), 1):
        rows = pa.table([[number], [number]], schema=SCHEMA)
        writer.write(table, rows, stored(number * 10) if writer is commit else {}, 0)
        table.refresh()
    assert offsets_of_rows(table, "job", "events") == {3: 20}
    assert offsets_of_rows(table, "job", "another topic") == {}
    assert [offsets for _, offsets in commits_of_job(table, "job", "events")] == [{3: 20}, {3: 10}]
