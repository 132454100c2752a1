"""Small files of a result table become larger ones, while jobs commit to it.

What is safe about it is what is safe about a job's commit. The new files carry a job's name and a generation, so that
`vacuum` tells those of a killed run from those of one at work. They are written first; then one commit, which fails
unless the version is the one that was looked at, takes them in and the old ones out. Before each attempt the newest
version is looked at: where a merge, a deletion or another compaction has taken one of the old files, its group is
given up, and its new file is removed. Offsets, generations and rows of jobs are not touched; a job whose commit was
second compares itself with the new version and commits again, as after any other writer.
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
"""How large a file should become: what Spark reads in one task (`spark.sql.files.maxPartitionBytes`)."""

GROUPS_PER_COMMIT = 32
"""A run that is killed loses the work of so many new files, and a job at work meets a foreign commit that often."""


@dataclass(frozen=True)
class Compaction:
    """What a table looks like, and what was done, or would be."""

    table: str
    files: int
    """Of the table, before."""
    bytes: int
    groups: tuple[tuple[DataFile, ...], ...]
    """Files that become one file, or were to."""
    replaced: int = 0
    """Files that are replaced now."""
    written: int = 0
    """Files that replace them."""
    given_up: int = 0
    """Groups that another writer has changed meanwhile; the next run finds what is left of them."""


def compact(location: TableLocation, target_bytes: int = TARGET_BYTES, *, execute: bool = False) -> list[Compaction]:
    """Put small files of a result and of its rejects together.

    Args:
        location: the result.
        target_bytes: files of half as many bytes and more stay as they are.
        execute: do it; otherwise only look.

    Returns:
        One for the result's table, and one for its rejects' where that is a table of its own and is there.

    Raises:
        OptionRefused: the store has no files that could be put together, or the table has a feature that forbids it.
        Fenced: another compaction has begun meanwhile.
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
    """Files that belong together: of one partition, none of them large, as many as make one of `target_bytes`.

    Args:
        files: of one version.
        target_bytes: of a new file, about; what is half as large counts as large.
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
                "Nothing was replaced by them; find out what has changed the files"
            )
        yield Replacement(group, new)


def _replaced(compactor: Compactor, ready: Sequence[Replacement], generation: int) -> list[Replacement]:
    """Commit what can be, and return that; the new files of the rest are removed."""
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
