"""Python process of an executor, which runs tasks one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Task = Callable[[Iterable[Any]], Iterator[Any]]
"""Function that converts an iterable of Arrow batches to an iterator of Arrow batches."""


def map_batches(dataframe: DataFrame, task: Task, schema: StructType | str) -> DataFrame:
    """Call `DataFrame.mapInArrow`, and keep the Python worker from reading archives after the task.

    Before each task pyspark makes Python forget the contents of its import path. Up to Python 3.11, Python then reads
    the listings of all archives on that path again, including spark-core's jar with thousands of classes. This took
    more time than the rest of a task with few rows (CPython gh-103200, SPARK-54744). Python does not read an archive
    without a cached finder; the next import that needs the archive creates a finder again.

    Args:
        dataframe: the rows.
        task: nested function, so that executors do not need this package.
        schema: schema of the task's result.
    """
    return dataframe.mapInArrow(_forgetting_archives(task), schema)


def _forgetting_archives(task: Task) -> Task:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import sys
        from zipimport import zipimporter

        yield from task(batches)
        # A task that fails ends its worker.
        for path, finder in list(sys.path_importer_cache.items()):
            if isinstance(finder, zipimporter):
                sys.path_importer_cache.pop(path, None)

    return run
