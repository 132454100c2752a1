"""What a task leaves behind in the Python process that runs the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_ratchet.spark_sink.spark.python_worker import Task, map_batches

SAID = "process int, archives int"


def _looking() -> Task:
    def look(batches: Iterable[Any]) -> Iterator[Any]:
        import importlib.util
        import os
        import sys
        from zipimport import zipimporter

        import pyarrow as pa

        found = sum(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())
        importlib.util.find_spec("there_is_no_such_module")  # looks through the whole path, and finders are made for it
        made = sum(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"process": [os.getpid()] * 2, "archives": [found, made]}).cast(
                pa.schema([("process", "int32"), ("archives", "int32")])
            )

    return look


def _said(ran: DataFrame) -> tuple[int, int, int]:
    """Process, archives in its caches when the task began, and at its end."""
    before, after = ran.collect()
    assert before.process == after.process
    return before.process, before.archives, after.archives


def test_no_archive_is_left_for_the_next_task_to_read_again(spark: SparkSession) -> None:
    """Spark has several processes and hands tasks to them in turn, so each is followed by itself."""
    one = spark.range(1).coalesce(1)
    left = dict[int, tuple[bool, int]]()
    seen = set[bool]()
    for number in range(40):
        cleans = number % 2 == 0
        process, found, made = _said(map_batches(one, _looking(), SAID) if cleans else one.mapInArrow(_looking(), SAID))
        assert made > 0  # Spark's own are on the path
        if process in left:
            cleaned, archives = left[process]
            assert found == archives
            seen.add(cleaned)
        left[process] = cleans, 0 if cleans else made
        if seen == {True, False}:
            return
    pytest.fail(f"no process has had a task after one of each kind: {left}")
