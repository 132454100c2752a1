"""Python process that runs the tasks of an executor, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Task = Callable[[Iterable[Any]], Iterator[Any]]
"""Function from Arrow batches to Arrow batches."""


def map_batches(dataframe: DataFrame, task: Task, schema: StructType | str) -> DataFrame:
    """Call `DataFrame.mapInArrow` with a task after which the worker reads no archives.

    Before each task pyspark makes Python forget the contents of its import path. Up to Python 3.11 that reads the
    listings of all archives on it again, including spark-core's jar with its thousands of classes, which took more time
    than the rest of a task of few rows (CPython gh-103200, SPARK-54744). Archives without a cached finder are not read;
    the next import that needs one makes it again.

    Args:
        dataframe: the rows.
        task: a nested function, so that executors need nothing of this package.
        schema: schema of its result.
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
