"""Records without a value: a row, a deletion or a count, by the kind of result; the same over every store."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.recount import recount
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline, sql_transform
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from tests.spark_sink.sites import LOCAL, Site, params

Ingest = Callable[..., RunSummary]
Write = Callable[..., None]

BY_KEY = WriteMode("upsert", ("_kafka_key",))


class Died(BaseException):
    """The job ends here, and nothing of its own runs any more."""


def event(n: int) -> bytes:
    return b'{"n":%d}' % n


KEYED = pytest.mark.parametrize(
    "site",
    [*params(*LOCAL, "postgres"), pytest.param("mysql", marks=pytest.mark.long)],
    indirect=True,
)
AT_LENGTH = pytest.mark.parametrize(
    "site",
    [
        *params("delta", "postgres", by_default=()),
        *(pytest.param(name, marks=pytest.mark.long) for name in [*LOCAL, "mysql"] if name != "delta"),
    ],
    indirect=True,
)
"""A minute for each store: in the matrix one that deletes rows, and one that merges files."""


def test_appended_it_is_a_row_of_nulls(site: Site, ingest: Ingest, new_topic: Callable[..., str], write: Write) -> None:
    topic = new_topic(partitions=1)
    write(topic, [event(1), None, b"no json"], keys=[b"a", b"a", None])
    assert ingest(topic, RowPipeline("n long", rejects=site.rejects)).rows == (2 if site.rejects else 3)
    rows = sorted(site.rows(), key=lambda row: row["_kafka_offset"])
    assert [(row["_kafka_key"], row["n"], row.get("_kafka_value")) for row in rows[:2]] == [
        (b"a", 1, None),
        (b"a", None, None),
    ]
    if site.rejects:
        assert [(row["_kafka_offset"], row["_kafka_value"]) for row in site.rows(rejects=True)] == [(2, b"no json")]


@AT_LENGTH
def test_it_deletes_the_row_of_its_key_in_the_order_of_the_records(
    site: Site, ingest: Ingest, new_topic: Callable[..., str], write: Write, spark: SparkSession, broker: str
) -> None:
    topic, pipeline = new_topic(partitions=2), RowPipeline("n long", BY_KEY, rejects=True)
    #        0: value, tombstone, value   1: value, tombstone   2: tombstone   None: a key like others
    records = [(b"0", 1), (b"1", 2), (None, 3), (b"0", None), (b"2", None), (b"0", 4), (b"1", None)]
    values = [None if n is None else event(n) for _, n in records]
    write(topic, values, keys=[key for key, _ in records])
    write(topic, [event(9), b"no json"], 1, keys=[b"9", b"0"])

    def rows() -> list[tuple[bytes | None, int]]:
        assert all("_ratchet" not in column for row in site.rows() for column in row)
        return sorted(((row["_kafka_key"], row["n"]) for row in site.rows()), key=str)

    ingest(topic, pipeline)  # in one slice
    assert rows() == [(None, 3), (b"0", 4), (b"9", 9)]
    write(topic, [None, event(5), None, None, event(6)], keys=[b"0", b"0", b"0", None, b"1"])
    write(topic, [None], 1, keys=[b"never there"])
    for _ in range(2):
        ingest(topic, pipeline, max_records=1)  # each in a slice of its own
        assert rows() == [(b"1", 6), (b"9", 9)]
    write(topic, [None], 1, keys=[b"never there"])
    assert ingest(topic, pipeline).commits == 1
    assert rows() == [(b"1", 6), (b"9", 9)]
    write(topic, [None, None], keys=[b"1", b"9"])
    ingest(topic, pipeline)
    assert rows() == []
    assert [row["_kafka_value"] for row in site.rows(rejects=True)] == [b"no json"]

    end = TopicPlanner(broker, topic, {}).offset_range().end
    job = Job(broker, topic, "job", pipeline)
    again = recount(spark, job, {0: 0, 1: 0}, end, restricted_values=site.make().restricted_values)
    assert {row["_kafka_key"] for row in again.keys.to_pylist()} == {b"9"}  # of partition 1; partition 0 has deleted it
    assert {row["_kafka_key"] for row in again.deleted.to_pylist()} == {b"0", b"1", b"2", b"9", b"never there", None}


@pytest.mark.matrix
@AT_LENGTH
def test_a_deletion_is_there_once_whenever_the_job_dies(
    site: Site, ingest: Ingest, new_topic: Callable[..., str], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, pipeline = new_topic(partitions=1), RowPipeline("n long", BY_KEY, rejects=True)
    for number, point in enumerate(("before-write", "before-commit", "after-commit")):
        write(
            topic, [event(number), None, b"x", event(number), event(7), None], keys=[b"k", b"k", b"k", b"k", b"l", b"l"]
        )

        def die(here: str, there: str = point) -> None:
            if here == there:
                raise Died

        with monkeypatch.context() as patch:
            patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", die)
            with pytest.raises(Died):
                ingest(topic, pipeline, max_records=3)
        ingest(topic, pipeline, max_records=3)
        assert [(row["_kafka_key"], row["n"]) for row in site.rows()] == [(b"k", number)]
        write(topic, [None], keys=[b"k"])
        ingest(topic, pipeline)
        assert site.rows() == []
        assert len(site.rows(rejects=True)) == number + 1


@KEYED
def test_where_it_does_not_say_which_row_it_means_it_is_a_reject(
    site: Site, ingest: Ingest, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [event(1), None, event(2)], keys=[b"a", b"a", b"b"])
    ingest(topic, RowPipeline("n long", WriteMode("upsert", ("n",)), rejects=True))
    assert sorted(row["n"] for row in site.rows()) == [1, 2]
    assert [(row["_kafka_key"], row["_kafka_offset"], row["_kafka_value"]) for row in site.rows(rejects=True)] == [
        (b"a", 1, None)
    ]


@KEYED
@pytest.mark.parametrize("key", ["_kafka_key", "who"])
def test_totals_count_it_under_its_key_or_reject_it(
    site: Site, ingest: Ingest, new_topic: Callable[..., str], write: Write, key: str
) -> None:
    topic, who = new_topic(partitions=1), b'{"who":"a","n":2}'
    write(topic, [who, None, who], keys=[b"a"] * 3)
    ingest(topic, RowPipeline("who string, n long", WriteMode("totals", (key,), ("n",)), rejects=True))
    [row] = site.rows()
    assert (row["_records"], int(row["n"])) == (3 if key == "_kafka_key" else 2, 4)
    assert len(site.rows(rejects=True)) == (key != "_kafka_key")


@KEYED
def test_bytes_with_a_key_are_deleted_and_a_query_sees_nulls(
    site: Site, ingest: Ingest, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"1", b"2", None], keys=[b"a", b"b", b"a"])
    ingest(topic, RowPipeline(None, BY_KEY))
    assert [(row["_kafka_key"], row["_kafka_value"]) for row in site.rows()] == [(b"b", b"2")]
    query = RowPipeline(None, BY_KEY, transform=sql_transform("SELECT * FROM records WHERE _kafka_value IS NOT NULL"))
    write(topic, [None], keys=[b"b"])
    ingest(topic, query)
    assert [row["_kafka_key"] for row in site.rows()] == [b"b"]  # the query has left the tombstone out
