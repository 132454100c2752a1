"""Folders beside a DuckDB file in which tasks of a killed job have left rows."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.stores.orphans import Orphan


def staging_prefix(path: Path, table: str, job: str) -> str:
    """How folders with a job's rows on their way begin, beside the database; its holder's generation comes next."""
    digest = hashlib.sha256(f"{table}\0{job}".encode()).hexdigest()[:12]
    return f".{path.name}.{digest}.staged-"


def orphans(path: Path, table: str, staged: list[str], generations: Mapping[str, int]) -> Iterator[Orphan]:
    """See `TableStore.orphans`.

    Args:
        path: the database file.
        table: the result table.
        staged: folders beside the file, as they were before `generations` was asked for.
        generations: the newest holder of each job.
    """
    beside = LocalFolder(path.parent)
    for job, newest in generations.items():
        prefix = staging_prefix(path, table, job)
        for name in staged:
            generation = name.removeprefix(prefix).partition("-")[0]
            if name.startswith(prefix) and generation.isdecimal() and int(generation) < newest:
                files = beside.files(name)
                modified_s = max((file.modified_s for file in files), default=0.0)
                remove = partial(shutil.rmtree, path.parent / name)
                yield Orphan(name, sum(file.bytes for file in files), modified_s, remove)
