"""Results in a bucket, on a real server process that speaks S3."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, StoreError
from kafka_ratchet.spark_sink.files.bucket import Bucket
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode, reduced, table_schema
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import make_store
from kafka_ratchet.spark_sink.stores.results import read_rows
from kafka_ratchet.spark_sink.stores.store import ResultStore
from kafka_ratchet.spark_sink.stores.vacuum import vacuum
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.files.bucket import BucketSite, s3_server
from tests.spark_sink.sites import delta_store, iceberg_store

SIMPLE = "_kafka_partition int, _kafka_offset long, who string, amount long"


@pytest.fixture
def bucket(s3: dict[str, str], tmp_path: Path) -> BucketSite:
    return BucketSite(tmp_path.name, s3)


@pytest.fixture
def frame(spark: SparkSession) -> Callable[..., DataFrame]:
    return lambda *rows: spark.createDataFrame(list(rows), SIMPLE)


def schema(write_mode: WriteMode = APPEND) -> StructType:
    struct = struct_of(SIMPLE)
    return table_schema(write_mode, struct)


def test_rows_offsets_and_one_holder_in_a_bucket(
    bucket: BucketSite, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    older = bucket.make(topic_id=7)
    with pytest.raises(StoreError, match="there is no result table"):
        read_rows(bucket.location, ["who"])
    assert (older.offsets(), older.open(schema())) == ({}, {})
    assert older.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1}) == 1
    third = bucket.make(topic_id=7)

    def take_over(point: str) -> None:
        if point == "before-commit":  # its file is in the bucket, and the log entry is next
            monkeypatch.undo()
            assert third.open(schema()) == {0: 1}

    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", take_over)
    with pytest.raises(Fenced, match="generation 2 has taken over from 1"):
        older.commit(frame((0, 1, "older", 1)), {0: 1}, {0: 2})
    assert third.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2}) == 1
    assert sorted(read_rows(bucket.location, ["who", "_kafka_offset"])) == [("a", 0), ("b", 1)]
    assert vacuum(bucket.location) == []
    [orphan] = vacuum(bucket.location, -60)
    assert orphan.name.startswith("part-job.1-")
    assert vacuum(bucket.location, -60) == []
    assert (sorted(row["who"] for row in bucket.rows()), third.offsets()) == (["a", "b"], {0: 2})


def take_over_unseen(site: BucketSite) -> None:
    """Another holder's take-over becomes visible after the next commit has looked at the log, just before its put."""
    version = DeltaTable(site.path, storage_options=Bucket.of(site.options).for_delta()).version()
    entry = [
        {"txn": {"appId": "ratchet-sink/job/generation", "version": 2, "lastUpdated": 0}},
        {"commitInfo": {"timestamp": 0, "operation": "WRITE", "operationParameters": {}}},
    ]
    key = f"{site.path.removeprefix('s3:/')}/_delta_log/{version + 1:020}.json"
    port = int(site.options["AWS_ENDPOINT_URL"].rpartition(":")[2])
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("PUT", f"/rival{key}", "\n".join(map(json.dumps, entry)))
        assert connection.getresponse().status == 200


def test_the_conditional_put_fences_whom_no_look_at_the_log_has_stopped(
    bucket: BucketSite, frame: Callable[..., DataFrame]
) -> None:
    store = bucket.make()
    store.open(schema())
    take_over_unseen(bucket)
    with pytest.raises(Fenced, match="generation 2 has taken over from 1"):
        store.commit(frame((0, 0, "older", 1)), {0: 0}, {0: 1})
    assert (store.offsets(), store.generation(), bucket.rows()) == ({}, 2, [])


def test_without_conditional_puts_nobody_is_fenced(frame: Callable[..., DataFrame]) -> None:
    """What the test above would miss, if the server did not know the condition."""
    with s3_server("deaf") as options:
        site = BucketSite("deaf", options)
        store = site.make()
        store.open(schema())
        take_over_unseen(site)
        store.commit(frame((0, 0, "older", 1)), {0: 0}, {0: 1})
        assert store.generation() == 1  # the take-over has been written over


def test_merges_are_staged_in_the_bucket(bucket: BucketSite, frame: Callable[..., DataFrame]) -> None:
    write_mode = WriteMode("totals", ("who",), ("amount",))
    store = bucket.make(write_mode=write_mode)
    store.open(schema(write_mode))
    store.commit(reduced(frame((0, 0, "a", 1), (0, 1, "b", 2)), write_mode), {0: 0}, {0: 2})
    store.commit(reduced(frame((0, 2, "a", 40)), write_mode), {0: 2}, {0: 3})
    assert {row["who"]: int(row["amount"]) for row in bucket.rows()} == {"a": 41, "b": 2}
    bucket.make(write_mode=write_mode).open(schema(write_mode))
    assert [orphan.name for orphan in vacuum(bucket.location, -60)] == []


def test_options_that_do_not_exist_are_named() -> None:
    with pytest.raises(OptionRefused, match="storage option 'aws_secret' is unknown; write one of AWS_ACCESS_KEY_ID"):
        BucketSite("x", {"aws_secret": "s3cret"}).make()
    assert "s3cret" not in repr(
        TableLocation("delta", "s3://results/t", storage_options={"AWS_SECRET_ACCESS_KEY": "s3cret"})
    )


def test_it_can_be_reached_by_the_environment_alone(bucket: BucketSite, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.make().open(schema())
    for name, value in Bucket.of(bucket.options).options.items():
        monkeypatch.setenv(name, value)
    store = delta_store(bucket.path, "job", "events")
    assert (store.generation(), vacuum(TableLocation("delta", bucket.path))) == (1, [])


class LakeSite(BucketSite):
    """Iceberg tables in the bucket, with a catalog that is a database."""

    def __init__(self, name: str, options: dict[str, str], catalog: dict[str, str]) -> None:
        super().__init__(name, options)
        self.catalog = catalog

    @property
    def location(self) -> TableLocation:
        return TableLocation("iceberg", self.path, "results", storage_options=self.options, catalog=self.catalog)

    def make(self, name: str = "job", topic: str = "events", identity: int = 0, write_mode: WriteMode = APPEND,
             rejects: StructType | None = None) -> ResultStore:  # fmt: skip
        return make_store(self.location, name, topic, identity, RowPipeline())


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def lake(request: pytest.FixtureRequest, s3: dict[str, str], tmp_path: Path) -> LakeSite:
    address = f"sqlite:///{tmp_path / 'catalog.db'}"
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        user, _, rest = server.url.removeprefix("postgresql://").partition("@")
        address = f"postgresql+psycopg://{user}:{server.password}@{rest}"
    return LakeSite(tmp_path.name, s3, {"type": "sql", "uri": address})


def test_iceberg_in_a_bucket_with_a_catalog_of_ones_own(
    lake: LakeSite, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    older = lake.make()
    assert (older.offsets(), older.open(schema())) == ({}, {})
    assert older.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1}) == 1
    newer = lake.make()

    def take_over(point: str) -> None:
        if point == "before-commit":
            monkeypatch.undo()
            assert newer.open(schema()) == {0: 1}

    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", take_over)
    with pytest.raises(Fenced, match="generation 2 has taken over from 1"):
        older.commit(frame((0, 1, "older", 1)), {0: 1}, {0: 2})
    assert newer.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2}) == 1
    assert sorted(read_rows(lake.location, ["who", "_kafka_offset"])) == [("a", 0), ("b", 1)]
    [orphan] = vacuum(lake.location, -60)
    assert orphan.name.startswith("part-job.1-")
    assert sorted(read_rows(lake.location, ["who"])) == [("a",), ("b",)]


def test_a_catalog_that_cannot_be_is_named(lake: LakeSite) -> None:
    for path, catalog, sentence in [
        (lake.path, {}, "a bucket cannot contain the SQLite file"),
        (lake.path, {"s3.endpoint": "http://x"}, "Give it as a storage option instead"),
        ("gs://bucket/x", lake.catalog, "write s3://bucket/folder"),
    ]:
        with pytest.raises(OptionRefused, match=sentence):
            iceberg_store(path, "results", "job", "events", catalog=catalog)
    with pytest.raises(StoreError, match="results"):
        iceberg_store(lake.path, "results", "job", "events", catalog={"type": "sql", "uri": "nonsense"}).offsets()
