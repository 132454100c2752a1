"""Files with the last sequences of a deduplicating job, next to the job's rows.

A commit writes the changed sequences into new Parquet files, and a manifest that names all valid files. The manifest is
valid only once the commit of rows and offsets names it. So rows, offsets and sequences always agree, even in stores
that change one table at a time.

Each file contains identities of one Kafka partition, sorted; only the task that judges this partition reads it. Files
of similar size are merged, so that their number grows with the logarithm of the number of identities instead of the
number of commits. Executors read, judge and merge; the driver knows only the files' names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafka_ratchet.spark_sink.errors import SequencesLost, StoreError, first_line
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.files.parquet import FILE_NAME, file_prefix, write_partitioned_files
from kafka_ratchet.spark_sink.rows.judging.judge import merged, sequences_schema
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.rows.judging.task import Known
from kafka_ratchet.spark_sink.spark.dialect import arrow_schema
from kafka_ratchet.spark_sink.spark.python_worker import Task, map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER: Final = "_ratchet_sequences"
"""Folder inside the table's folder, so that it is moved, copied and removed with the table. Clean-ups of Delta and
Iceberg skip names that begin with an underscore."""

FORMAT: Final = 1

FANOUT: Final = 8
"""Number of runs of similar size to merge into one. Each merge moves an identity into a run of about this many times
the size."""

ROWS_PER_TASK: Final = 500_000
"""Approximate number of rows that one task merges; there are at most as many tasks as Kafka partitions."""

GROUP_ROWS: Final = 10_000
"""Rows per row group of a file. A file is sorted by identity, and a task reads only the groups that may contain one of
its identities: few records among many identities match few groups."""

LOOK_ROWS: Final = 250_000
"""Rows that a task searches at a time; each search hashes the requested identities again."""

TAIL_BYTES: Final = 64 * 1024
"""Bytes at a file's end that its digest covers: Parquet's footer, and the pages before it."""

COUNT_BITS: Final = 32

MANIFEST = re.compile(r"manifest-(?P<job>[a-z][a-z0-9_-]{0,62})\.(?P<generation>\d{1,18})-(?P<id>\d{1,19})\.json")


class SequenceFile(NamedTuple):
    """File of last sequences; `partition` is the Kafka partition of its identities, or -1 for several."""

    name: str
    rows: int
    bytes: int
    digest: int
    """Digest of the file's last bytes, which describe all pages; the pages have checksums of their own."""
    partition: int = -1


@dataclass(frozen=True)
class Run:
    """Files written by one commit, or by one merge."""

    rows: int
    files: tuple[SequenceFile, ...]

    @property
    def size_class(self) -> int:
        """Return the size class of the run, a logarithm of its rows; runs of one class are merged together."""
        size, rows = 0, self.rows
        while rows >= FANOUT:
            size, rows = size + 1, rows // FANOUT
        return size


@dataclass(frozen=True)
class Manifest:
    """List of the valid files, with the offsets and the rule that they belong to."""

    offsets: Mapping[int, int]
    """Next offset of each partition after the commit that the manifest was written for."""
    runs: tuple[Run, ...] = ()
    rule: Mapping[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> list[SequenceFile]:
        """Return the files of all runs."""
        return [file for run in self.runs for file in run.files]

    def as_json(self) -> str:
        """Return the manifest as the JSON text of its file."""
        return json.dumps(
            {
                "format": FORMAT,
                "offsets": {str(partition): offset for partition, offset in self.offsets.items()},
                "rule": dict(self.rule),
                "runs": [{"rows": run.rows, "files": run.files} for run in self.runs],
            }
        )

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Parse the bytes of a manifest's file.

        Raises:
            ValueError, KeyError, TypeError: the bytes are no manifest, or one of a newer format.
        """
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']} comes from a newer version of Ratchet")
        runs = [
            Run(int(run["rows"]), tuple(SequenceFile(str(name), *map(int, rest)) for name, *rest in run["files"]))
            for run in found["runs"]
        ]
        offsets = {int(partition): int(offset) for partition, offset in found["offsets"].items()}
        return cls(offsets, tuple(runs), found["rule"])


class SequenceFiles:
    """Files of last sequences of one job.

    Args:
        folder: folder that contains `inner`.
        inner: names of the nested folders in `folder` that lead to the files.
        job: the job's name.
        rule: the job's rule for judging records.
    """

    def __init__(self, folder: Folder, inner: tuple[str, ...], job: str, rule: JudgeRule) -> None:
        self._folder, self._inner, self._job, self._rule = folder, inner, job, rule
        self._written = 0
        """Number of manifests that this run has written."""
        self._number, self._manifest = 0, Manifest({})
        """Number of the committed manifest, and the manifest."""
        self._staged = self._number, self._manifest

    @property
    def where(self) -> str:
        """Return the path of the files' folder, for messages."""
        return self._folder.inside(*self._inner)

    def open(self, number: int, offsets: Mapping[int, int]) -> None:
        """Continue from the manifest of the store's last commit; see `require` for arguments and errors."""
        self._number, self._manifest, self._written = number, self.require(number, offsets), 0

    def require(self, known: int, offsets: Mapping[int, int]) -> Manifest:
        """Check the files of the store's last commit, and return their manifest.

        Args:
            known: number of the manifest that the store's last commit names; 0: none.
            offsets: stored next offset of each partition.

        Raises:
            SequencesLost: a file is missing or changed, or the files belong to another commit.
            StoreError: the files cannot be read.
        """
        if not known:
            if any(offsets.values()):
                raise self._lost("the table has offsets, but no sequences were committed with them")
            return Manifest({})
        try:
            text = self._folder.read(_name(self._job, known), *self._inner) if self._is_there() else None
            if text is None:
                raise self._lost(f"{_name(self._job, known)} is gone")
            found = Manifest.from_json(text)
            sizes = self._sizes()
        except OSError as error:
            raise StoreError(
                f"{self.where}: the last sequences cannot be read ({error.strerror or error}). Look at the folder and "
                "its rights, then run again"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise self._lost(f"{_name(self._job, known)} cannot be read ({first_line(error)})") from None
        for file in found.files:
            if sizes.get(file.name) != file.bytes:
                raise self._lost(f"{file.name} {'is gone' if file.name not in sizes else 'has another size'}")
            # An object in a bucket is replaced as a whole, and a request for each would take minutes.
            if self._folder.filesystem is None and self._digest(file.name) != file.digest:
                raise self._lost(f"{file.name} is another file of the same size, or damaged")
        moved = [partition for partition, offset in found.offsets.items() if offsets.get(partition, 0) != offset]
        if moved or found.rule != self._rule.as_dict():
            raise self._lost(f"{_name(self._job, known)} belongs to other offsets or to another rule")
        return found

    def known(self) -> Known | None:
        """Return the function for Spark's tasks that looks up committed sequences; None: there are none."""
        files = self._manifest.files
        return looking(self._paths(files), self._folder.filesystem, has_seen=self._has_seen) if files else None

    def stage(self, changes: DataFrame, generation: int, offsets: Mapping[int, int]) -> int:
        """Write a commit's changed sequences, and the manifest that it has to name.

        Args:
            changes: new last sequences, one row per identity; all those of a Kafka partition are in one task.
            generation: generation of this run.
            offsets: next offset of each partition after the commit.

        Returns:
            Number of the manifest.

        Raises:
            StoreError: the files cannot be written, or two tasks have judged one Kafka partition.
        """
        self._folder.make(*self._inner)
        written = self._write(changes, generation)
        partitions = [file.partition for file in written.files]
        if len(set(partitions)) < len(partitions):
            raise StoreError(
                f"{self.where}: two tasks read one Kafka partition of this commit, so that neither knew which records "
                "the other one took as new. Nothing was committed. Remove the options minPartitions and "
                "maxRecordsPerPartition, which make Spark's Kafka source split partitions"
            )
        runs = [*self._manifest.runs, *([written] if written.rows else [])]
        joined, kept = _to_join(runs)
        if joined:
            runs = [*kept, self._write(self._merged(changes.sparkSession, joined), generation)]
        self._written += 1
        number = generation << COUNT_BITS | self._written
        manifest = Manifest(dict(offsets), tuple(runs), self._rule.as_dict())
        self._put(_name(self._job, number), manifest.as_json().encode())
        self._staged = number, manifest
        return number

    def adopt_staged(self) -> None:
        """Adopt the last staged manifest as committed, and remove older files.

        A frozen run may resume here after commits of its successor. No file of the successor is removed: this run's
        last manifest names the files that the successor took over, and the successor's own files have a later
        generation.
        """
        before, self._number, self._manifest = self._number, *self._staged
        kept = {_name(self._job, number) for number in (before, self._number)}
        kept |= {file.name for file in self._manifest.files}
        generation = self._number >> COUNT_BITS
        with suppress(OSError):  # it only takes space
            for file in self._folder.files(*self._inner):
                found = FILE_NAME.fullmatch(file.name) or MANIFEST.fullmatch(file.name)
                if found is None or found["job"] != self._job or file.name in kept:
                    continue
                if int(found["generation"]) <= generation:
                    self._folder.remove(file.name, *self._inner)

    def _is_there(self) -> bool:
        """Return whether the folder exists; in a bucket it counts as existing."""
        return not isinstance(self._folder, LocalFolder) or self._folder.path.joinpath(*self._inner).is_dir()

    def _sizes(self) -> dict[str, int]:
        return {file.name: file.bytes for file in self._folder.files(*self._inner)}

    def _write(self, rows: DataFrame, generation: int) -> Run:
        schema = arrow_schema(sequences_schema(self._rule))
        prefix = file_prefix(self._job, generation)
        where = self._folder.inside(*self._inner)
        fields = [("_kafka_partition", "")]
        found = write_partitioned_files(
            rows,
            where,
            schema,
            prefix,
            self._folder.filesystem,
            fields,
            sorted_by=["_identity"],
            row_group_rows=GROUP_ROWS,
        )
        files = tuple(
            SequenceFile(*file[:3], self._digest(file.name), int(partition or 0)) for file, (partition,) in found
        )
        return Run(sum(file.rows for file in files), files)

    def _digest(self, name: str) -> int:
        """Return the digest of a file's last bytes.

        Raises:
            StoreError: the file cannot be read.
        """
        from pyarrow.fs import LocalFileSystem

        path = self._folder.inside(*self._inner, name)
        try:
            with (self._folder.filesystem or LocalFileSystem()).open_input_file(path) as file:
                file.seek(max(0, file.size() - TAIL_BYTES))
                tail = file.read()
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be read ({error.strerror or error}). Look at the folder and its rights, then run again"
            ) from None
        return int.from_bytes(hashlib.blake2b(tail, digest_size=7).digest(), "big")

    def _merged(self, spark: SparkSession, runs: list[Run]) -> DataFrame:
        """Return the merged rows of several runs; each Kafka partition is in one task."""
        files = [file for run in runs for file in run.files]
        schema = sequences_schema(self._rule)
        # A task for each file, without a shuffle: the range's partitions are its numbers.
        numbers = spark.range(0, len(files), 1, len(files))
        read = map_batches(numbers, _reading(self._paths(files), self._folder.filesystem), schema)
        tasks = min(len({file.partition for file in files}), -(-sum(run.rows for run in runs) // ROWS_PER_TASK))
        return merged(read.repartition(max(1, tasks), "_kafka_partition"), self._rule)

    @property
    def _has_seen(self) -> bool:
        return self._rule.reorder_window > 0

    def _paths(self, files: Iterable[SequenceFile]) -> list[tuple[str, int]]:
        return [(self._folder.inside(*self._inner, file.name), file.partition) for file in files]

    def _put(self, name: str, data: bytes) -> None:
        path = self._folder.inside(*self._inner, name)
        try:
            if self._folder.filesystem is not None:
                with self._folder.filesystem.open_output_stream(path) as stream:
                    stream.write(data)
                return
            with open(path, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # in a power failure the commit that names it must not survive it
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be written ({error.strerror or error}). Look at the folder and its rights, then run "
                "again"
            ) from None

    def _lost(self, what: str) -> SequencesLost:
        return SequencesLost(
            f"{self.where}: the last sequences of job {self._job} are not those of its rows: {what}. Without these "
            "sequences, known records would be added once more. Restore this folder and the table to the same moment, "
            "or begin with another table or path"
        )


def _name(job: str, number: int) -> str:
    return f"manifest-{job}.{number >> COUNT_BITS}-{number}.json"


def _to_join(runs: list[Run]) -> tuple[list[Run], list[Run]]:
    """Split runs into runs to merge, and runs that stay.

    `FANOUT` runs of one size class are merged together with all runs of smaller classes.
    """
    joined: list[Run] = []
    for size in sorted({run.size_class for run in runs}):
        here = [run for run in runs if run.size_class == size]
        rows = sum(run.rows for run in joined)
        carried = bool(joined) and Run(rows, ()).size_class == size
        if len(here) + carried >= FANOUT:
            joined = [run for run in runs if run.size_class <= size]
    return joined, [run for run in runs if run not in joined]


def _reading(paths: list[tuple[str, int]], filesystem: Any) -> Task:
    # A nested function with its own imports: cloudpickle sends it by value, so executors need pyarrow and nothing else.
    def read(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow.parquet as pq

        for batch in batches:
            for number in batch.column(0).to_pylist():
                with pq.ParquetFile(paths[number][0], filesystem=filesystem, page_checksum_verification=True) as file:
                    yield from file.iter_batches()

    return read


def looking(paths: list[tuple[str, int]], filesystem: Any, *, has_seen: bool) -> Known:
    """Return the function that yields last sequences of identities from the files; it runs in Spark's tasks.

    Args:
        paths: path of each file, and its Kafka partition; -1: the file has several.
        filesystem: pyarrow's file system of the paths; None: this machine's.
        has_seen: True if the files have the column of seen sequences.
    """
    # A nested function, as above.
    look_rows = LOOK_ROWS

    def needed(file: Any, identities: list[bytes]) -> Iterator[list[int]]:
        """Yield lists of row groups that may contain an identity, each of about `LOOK_ROWS` rows."""
        from bisect import bisect_left

        groups, rows = [], 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            found = group.column(1).statistics
            if found is not None and found.has_min_max:
                at = bisect_left(identities, found.min)
                if at == len(identities) or identities[at] > found.max:
                    continue
            groups.append(number)
            rows += group.num_rows
            if rows >= look_rows:
                yield groups
                groups, rows = [], 0
        if groups:
            yield groups

    def look(partition: int, identities: Sequence[bytes]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        ordered = sorted(identities)
        wanted = pa.array(ordered, pa.binary())
        for path, of in paths:
            if of not in (partition, -1):
                continue
            with pq.ParquetFile(path, filesystem=filesystem, page_checksum_verification=True) as file:
                for groups in needed(file, ordered):
                    table = file.read_row_groups(groups)
                    is_wanted = pc.is_in(table["_identity"].cast(pa.binary()), value_set=wanted)
                    found = table.filter(pc.and_(is_wanted, pc.equal(table["_kafka_partition"], partition)))
                    seen = found["_seen"].to_pylist() if has_seen else [None] * found.num_rows
                    yield from zip(found["_identity"].to_pylist(), found["_last"].to_pylist(), seen, strict=True)

    return look
