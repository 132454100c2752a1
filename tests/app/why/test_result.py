"""By which commit a record came into the table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kafka_ratchet.app.why.answer import Place
from kafka_ratchet.app.why.result import oldest_past
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import partition_and_offset, scan


@pytest.mark.parametrize(
    ("offset", "commit"),
    [(0, "version 1"), (4, "version 1"), (5, "version 3"), (8, "version 3"), (9, None)],
)
def test_it_is_the_oldest_whose_offset_is_past_it(offset: int, commit: str | None) -> None:
    commits = [
        ("version 4", {0: 9}),
        ("version 3", {0: 9}),
        ("version 2", {0: 5}),
        ("version 1", {0: 5}),
        ("version 0", {}),
    ]
    assert oldest_past(commits, Place("out", 0, offset)) == commit


def test_where_older_ones_are_cleaned_up_it_is_that_or_an_older_one() -> None:
    assert oldest_past([("version 9", {0: 50})], Place("out", 0, 7)) == "version 9 at the latest"
    assert oldest_past([], Place("out", 0, 7)) is None


def test_rows_of_other_records_are_left_out_where_the_store_can(tmp_path: Path) -> None:
    for partition in (0, 1):
        rows = {"_partition": pa.array([partition] * 3, pa.int32()), "_offset": pa.array([1, 2, 3], pa.int64())}
        write_deltalake(str(tmp_path), pa.table(rows), mode="append")
    found = scan(TableLocation("delta", str(tmp_path), "results"), partition_and_offset(), records=(1, 2, 3))
    assert sorted(row["_offset"] for batch in found for row in batch.to_pylist() if row["_partition"] == 1) == [2, 3]
    found = scan(TableLocation("delta", str(tmp_path), "results"), partition_and_offset(), records=(1, 9, 9))
    assert sum(batch.num_rows for batch in found) == 0
