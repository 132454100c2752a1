"""Compaction of a result table's small files into larger ones, while jobs commit to it.

It is as safe as a job's commit. The new files carry a job's name and a generation, so that `vacuum` tells those of a
killed run from those of a running one. They are written first. Then one commit adds them and removes the old ones; it
fails if the table has a version that the run has not read. Each attempt first reads the newest version: if a merge, a
deletion or another compaction has removed one of the old files, its group is given up, and its new file is removed.
Offsets, generations and rows of jobs stay as they are. A job that commits second compares itself with the new version
and commits again, as after any other writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kafka_ratchet.spark_sink.errors import SinkError, StoreError, refuse
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.compactor import ATTEMPTS, Compactor, DataFile, Replacement
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import reader, rejects_location

TARGET_BYTES = 128 * 1024 * 1024
"""Target size of a file: Spark reads as much in one task (`spark.sql.files.maxPartitionBytes`)."""

GROUPS_PER_COMMIT = 32
"""Groups in one commit. A killed run loses the work of so many new files, and a running job meets a foreign commit that
often."""


@dataclass(frozen=True)
class Compaction:
    """State of a table, with the replacements that were made or planned."""

    table: str
    files: int
    """Files of the table before the compaction."""
    bytes: int
    groups: tuple[tuple[DataFile, ...], ...]
    """Files that become one file, done or planned."""
    replaced: int = 0
    """Number of replaced files."""
    written: int = 0
    """Number of files in their place."""
    given_up: int = 0
    """Groups that another writer has changed in between; the next run reads them again."""


def compact(location: TableLocation, target_bytes: int = TARGET_BYTES, *, execute: bool = False) -> list[Compaction]:
    """Merge small files of a result and of its rejects.

    Args:
        location: the result.
        target_bytes: files of half as many bytes and more stay as they are.
        execute: True: compact; False: only report.

    Returns:
        One for the result's table, and one for the table of rejects if it exists apart.

    Raises:
        OptionRefused: the store has no files to merge, or the table has a feature that forbids it.
        Fenced: another compaction has begun since.
        StoreError: there is no such table, or it cannot be read or written.
    """
    try:
        store = reader(location, "compact")
        found = [_compacted(str(location), store.compactor(), target_bytes, execute=execute)]
        if store.rejects_apart:
            beside = reader(rejects_location(location), "compact")
            if beside.is_there():
                rejects = str(rejects_location(location))
                found.append(_compacted(rejects, beside.compactor(), target_bytes, execute=execute))
    except (SinkError, ModuleNotFoundError):  # the second becomes the sentence with the extra to install
        raise
    except Exception as error:  # errors of the stores' libraries, and of the disk
        refuse(location, error, "the table and the rights in it")
    return found


def small_groups(files: Sequence[DataFile], target_bytes: int) -> list[tuple[DataFile, ...]]:
    """Group small files of one partition, as many as make one of `target_bytes`.

    Args:
        files: files of one version.
        target_bytes: size of a new file, about; a file of half the size counts as large.
    """
    groups = []
    small = sorted((each for each in files if each.bytes < target_bytes / 2), key=lambda each: each.partition)
    for _, together in groupby(small, key=lambda each: each.partition):
        group: list[DataFile] = []
        for file in together:
            if group and sum(each.bytes for each in group) + file.bytes > target_bytes:
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [tuple(group) for group in groups if len(group) > 1]


def _compacted(table: str, compactor: Compactor, target_bytes: int, *, execute: bool) -> Compaction:
    groups = small_groups(compactor.look(), target_bytes)
    files, size = compactor.count()
    found = Compaction(table, files, size, tuple(groups))
    if not execute or not groups:
        return found
    generation = compactor.take_over()
    replaced = written = 0
    for begin in range(0, len(groups), GROUPS_PER_COMMIT):
        some = groups[begin : begin + GROUPS_PER_COMMIT]
        crash_points.passing("before-write")
        ready = list(_rewritten(compactor, some, generation))
        crash_points.passing("before-commit")
        done = _replaced(compactor, ready, generation)
        crash_points.passing("after-commit")
        replaced += sum(len(each.old) for each in done)
        written += len(done)
    return Compaction(table, files, size, tuple(groups), replaced, written, len(groups) - written)


def _rewritten(compactor: Compactor, groups: Sequence[tuple[DataFile, ...]], generation: int) -> Iterator[Replacement]:
    for group in groups:
        new = compactor.rewrite(group, generation)
        rows = sum(each.rows for each in group)
        if new.rows != rows:
            compactor.remove(new)
            raise StoreError(
                f"{group[0].name} and {len(group) - 1} more files have {new.rows:,} rows, and the table says {rows:,}. "
                "Nothing was replaced; find out which program has changed the files"
            )
        yield Replacement(group, new)


def _replaced(compactor: Compactor, ready: Sequence[Replacement], generation: int) -> list[Replacement]:
    """Commit every group that still fits, and return those; remove the new files of the rest."""
    for _ in range(ATTEMPTS):
        there = {file.name for file in compactor.look()}
        if any(each.new.name in there for each in ready):  # the answer to the attempt before was lost
            return list(ready)
        gone = [each for each in ready if not there.issuperset(old.name for old in each.old)]
        for each in gone:
            compactor.remove(each.new)
        ready = [each for each in ready if each not in gone]
        if not ready or compactor.replace(ready, generation):
            return list(ready)
    raise StoreError(f"other writers were faster {ATTEMPTS} times in a row. Compact again when they have less to do")
