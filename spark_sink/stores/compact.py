"""Compaction of a table's small files into larger ones, while jobs commit to the table.

A run first writes the new files. Their names contain a job name and a generation, so that `vacuum` distinguishes the
files of a killed run from those of a running one. Then the run adds the new files and removes the old ones in one
commit. That commit fails if the table has a version that the run has not read; the run then reads the newest version
and tries again. If another writer has removed an old file of a group, the run deletes the group's new file and commits
only the other groups. Compaction changes no rows, offsets or generations of jobs. If a compaction commits before a
job does, the job's commit fails; the job then checks the new version and commits again.
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
"""Target size of a file: Spark reads this many bytes in one task (`spark.sql.files.maxPartitionBytes`)."""

GROUPS_PER_COMMIT = 32
"""Maximum number of groups of files that one commit replaces. A killed run loses the work on at most this many groups.
A job that commits at the same time has to repeat its commit after each commit of the run."""


@dataclass(frozen=True)
class Compaction:
    """Files of one table before a compaction, and the groups of files that the run replaced or would replace."""

    table: str
    files: int
    """Files of the table before the compaction."""
    bytes: int
    groups: tuple[tuple[DataFile, ...], ...]
    """Groups of files, each replaced or to be replaced by one file."""
    replaced: int = 0
    """Number of old files that the run replaced."""
    written: int = 0
    """Number of new files that replaced them."""
    given_up: int = 0
    """Number of groups that the run left alone, because another writer had removed some of their files."""


def compact(location: TableLocation, target_bytes: int = TARGET_BYTES, *, execute: bool = False) -> list[Compaction]:
    """Merge small files of a result table and of its table of rejects.

    Args:
        location: location of the result table.
        target_bytes: target size of a file; files of at least half this size stay as they are.
        execute: False: only report the files that would be merged.

    Returns:
        One compaction for the result table, and one for the table of rejects if the store keeps them in a table of
        their own.

    Raises:
        OptionRefused: the store has no files to merge, or the table has a feature that forbids rewriting files.
        Fenced: a newer compaction of the table has begun.
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
    """Group small files of each partition up to `target_bytes` per group.

    Args:
        files: files of one version.
        target_bytes: approximate size of a new file; files of at least half this size are not grouped.
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
                f"{group[0].name} and {len(group) - 1} more files have {new.rows:,} rows, but the table's metadata "
                f"says {rows:,}. These files were not replaced; find out which program has changed them"
            )
        yield Replacement(group, new)


def _replaced(compactor: Compactor, ready: Sequence[Replacement], generation: int) -> list[Replacement]:
    """Commit the groups that still have all their old files; remove the new files of all other groups.

    Returns:
        The committed replacements.
    """
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
    raise StoreError(
        f"other writers committed to the table first {ATTEMPTS} times in a row. Earlier commits of this run stay. Run "
        "the compaction again when the other writers commit less often"
    )
