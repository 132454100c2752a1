"""Comparison of a stream's result table with its output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.results import access_of, planner_of, sink_errors_translated, spec_of
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.decided import JoinedLegs
from kafka_ratchet.app.verify.findings import FindingKind, ProvenBy, ResultsReport
from kafka_ratchet.app.verify.identities import UNMATCHED, Numbers, OutputRecords, OutputStates
from kafka_ratchet.app.verify.keys import KeyedRows
from kafka_ratchet.app.verify.rows import RowOffsets, RowsOfPartition, StoredOffsets, match
from kafka_ratchet.app.verify.values import ComparedColumns, TableValues
from kafka_ratchet.errors import SetupError
from kafka_ratchet.spark_sink.job.plan import TopicPlanner, resume
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.recount import due_records, record_times, recount
from kafka_ratchet.spark_sink.job.start import with_columns
from kafka_ratchet.spark_sink.log_lines import announced
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.windows import RECORD_TIME
from kafka_ratchet.spark_sink.spark.dialect import arrow_schema
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.results import partition_and_offset, scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Batches = Iterator[pa.RecordBatch]
Session = Callable[[], AbstractContextManager["SparkSession"]]


QUIET_ATTEMPTS = 5
"""Maximum number of reads of a table with a key. A read is repeated if the job has committed during it."""


class ResultTable:
    """Comparison of one stream's result table with its output, partition by partition.

    Memory: eight bytes for each row of an append-only table, or some 700 bytes for each key of a table with a key.

    Args:
        settings: settings with the `[sink]` of the table.
        topic: the stream's output; with `from_input`, its input.
        bootstrap: host:port[,host:port].
        session: function that starts Spark, to compute the expected rows.

    Raises:
        SetupError: the settings contradict each other, or store or Kafka do not answer.
    """

    def __init__(self, settings: Settings, topic: str, bootstrap: str, session: Session) -> None:
        self._session, self._kept = session, settings.sink
        self._access = access_of(settings)
        with sink_errors_translated():
            self._spec = spec_of(settings, topic, bootstrap)
            self._location = self._spec.location(self._access)
            self._pipeline = self._spec.pipeline(self._access)
            self._planner = planner_of(bootstrap, settings, topic)
            self._store = self._spec.result_store(self._pipeline, self._access, self._planner.topic_id())
            generation = self._store.generation()
        self._rows, self._rejects = RowOffsets(), RowOffsets()
        self._values: TableValues | None = None
        """Values of the rows to compare; None: values are not compared row by row."""
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._first: dict[int, int] = {}
        """Offset where the sink's first run began with `--start`, by partition."""
        made_by = "sql" if self._kept.sql is not None else "transform" if self._kept.transform is not None else None
        proven_by: ProvenBy = "rows" if self._kept.kind == "append" else "keys"
        self.report = ResultsReport(
            f"{self._kept.store} {self._location}",
            self._kept.name,
            self._kept.kind,
            generation,
            None if made_by else proven_by,
            f"sink.{made_by} makes the rows, so that verify cannot compute them; only offsets"
            f"{' and rejects' if self._kept.rejects else ''} are compared"
            if made_by
            else "",
        )
        if made_by:
            self.report.values_unproven = self.report.unproven

    def read(self) -> None:
        """Read the table, and have Spark compute its expected rows, if possible.

        Call it before the ends of the output are read, so that the table's offsets are not past these ends.

        Raises:
            SetupError: the table cannot be read or changes during each read, or Spark cannot be started.
        """
        if self.report.generation == 0:
            return  # it was never written
        reading = f"reading table {self._location}, and computing its rows again with Spark"
        with sink_errors_translated(), announced(reading, partial(print, file=sys.stderr, flush=True)):
            self._first = self._store.first_offsets()
            if self.report.proven_by == "keys":
                self._read_keyed()
            elif self.report.proven_by == "rows":
                self._read_rows()
            else:
                self._before = self._store.offsets()
                self._read_rejects()
                self._after = self._store.offsets()
            resume(self._planner.offset_range(), self._after)  # refuses offsets that this topic cannot have led to
        self.report.offsets, self.report.rejects = self._after, self._rejects.rows

    def _read_rows(self) -> None:
        """Read an append-only table, and compute the expected row of each record."""
        try:
            session = self._session()
        except (ModuleNotFoundError, SetupError) as error:
            self.report.values_unproven = f"Spark, which would compute the expected values, cannot be started: {error}"
            self._read_appended(partition_and_offset(), lambda batches: batches)
            return
        with session as spark:
            job = self._job(spark)
            self._values = values = self._values_of(job, spark)
            self._read_appended(values.schema, values.hold)
            self._expect(spark, job, values)

    def _read_appended(self, schema: pa.Schema, each: Callable[[Batches], Batches]) -> None:
        self._before = self._store.offsets()
        self._rows.add(each(scan(self._location, schema)))
        self.report.rows = self._rows.rows
        self._read_rejects()
        self._after = self._store.offsets()

    def _job(self, spark: SparkSession) -> Job:
        """Return the Spark job with the columns of its table.

        Raises:
            SetupError: the table does not exist.
        """
        named = self._spec.job(self._pipeline, self._access)
        job = with_columns(named, self._planner, self._store, spark, grow=False)
        if job is None:
            raise SetupError(
                f"{self.report.table}: the table does not exist, so nothing can be compared. Check the settings of the "
                "sink"
            )
        return job

    def _values_of(self, job: Job, spark: SparkSession) -> TableValues:
        """Choose the columns to compare, in the order of the table."""
        held = self._store.column_names()
        wanted = job.pipeline.schema(spark)
        names = wanted.names if held is None else [name for name in held if name in wanted.names]
        schema = type(wanted)([wanted[name] for name in names])
        nested = store_class(self._location.kind).nested_columns
        compared = ComparedColumns.of_table(schema, nested=nested)
        self.report.columns_left_out = compared.left_out
        return TableValues(compared, arrow_schema(wanted), self.report, parses=job.pipeline.parses)

    def _expect(self, spark: SparkSession, job: Job, values: TableValues) -> None:
        """Have Spark compute the expected rows from the topic, up to the table's offsets."""
        offset_range = self._planner.offset_range()
        resume(offset_range, self._after)
        start = {partition: offset_range.earliest[partition] for partition in self._after}
        restricted = self._store.restricted_values
        values.expect(due_records(spark, job, values.columns, start, self._after, restricted_values=restricted).rows)

    def _read_rejects(self) -> None:
        if self._kept.rejects or self._kept.from_input:
            self._rejects.add(scan(self._location, partition_and_offset(), rejects=True))

    def _read_keyed(self) -> None:
        write_mode = self._pipeline.write_mode
        made = write_mode.aggregates if write_mode.kind == "totals" else []
        compared = [each.name for each in made] or ["_kafka_partition", "_kafka_offset"]
        with self._session() as spark:
            job = self._job(spark)
            columns = arrow_schema(job.pipeline.schema(spark))
            schema = pa.schema([columns.field(name) for name in (*write_mode.row_key, *compared)])
            if write_mode.kind == "upsert":
                self._values = self._values_of(job, spark)
            rounded = {each.name for each in made if each.rule == "average"}
            keys = KeyedRows(schema, len(write_mode.row_key), self.report, rounded)
            for _ in range(QUIET_ATTEMPTS):
                self._rejects = RowOffsets()
                self._before = self._store.offsets()
                keys.hold(scan(self._location, schema))
                if self._values is not None:
                    for _ in self._values.hold(scan(self._location, self._values.schema)):
                        continue
                self._read_rejects()
                self._after = self._store.offsets()
                if self._before == self._after:
                    break
            else:
                raise SetupError(
                    f"{self.report.table}: job {self._kept.name} has committed {QUIET_ATTEMPTS} times while the table "
                    "was read, and rows with a key change with every commit. Stop the job, then verify again"
                )
            offset_range = self._planner.offset_range()
            resume(offset_range, self._after)
            start = {each: max(offset_range.earliest[each], self._first.get(each, 0)) for each in self._after}
            found = recount(spark, job, start, self._after, restricted_values=self._store.restricted_values)
            if self._values is not None:
                self._expect(spark, job, self._values)
            elif write_mode.windows is not None and write_mode.windows.time == RECORD_TIME:
                # `recount` assigns windows by Spark's timestamps, so these are compared with Kafka's own.
                only_times = ComparedColumns([], [], has_time=True, has_value=False)
                self._values = TableValues(only_times, arrow_schema(record_schema()), self.report, parses=True)
                restricted = self._store.restricted_values
                times = record_times(spark, job, start, self._after, restricted_values=restricted)
                for _ in self._values.hold(times.to_batches()):
                    continue
        if write_mode.kind == "totals":
            keys.compare_totals(found.keys)
        else:
            keys.compare_last(found.keys, found.deleted)
            if self._values is not None:
                self._values.leave_out(keys.misplaced)
        keys.compare_rejects(found.rejects, self._rejects, self._after)

    def compare(self, expected: ExpectedPartition | JoinedLegs, emitted: OutputRecords, judged_to: int) -> None:
        """Compare the table's rows of one partition with the output.

        Args:
            expected: expected records, already compared with the output.
            emitted: records of the output.
            judged_to: see `ExpectedPartition.compare`.
        """
        partition, records = expected.partition, emitted.offsets
        stored = StoredOffsets.of(self._before, self._after, partition, self._first)
        rows, rejects = self._rows.take(partition), self._rejects.take(partition)
        found = match(records, rows, rejects, stored, rejects_ahead=store_class(self._location.kind).rejects_apart)
        steps = found.steps
        self.report.left_out += int(np.count_nonzero(found.left_out))
        self.report.records += int(np.count_nonzero(records < stored.before))
        if self.report.proven_by != "rows":
            # A row may stand for several records here, so each record that the job has read counts as row or reject.
            read = (records >= stored.first) & (records < stored.after) & (steps.rejects == 0)
            steps = OutputStates(read.astype(np.int64), steps.rejects, records >= stored.after, np.zeros_like(read))
        self._find(expected, emitted, found, steps, stored)
        if self._values is not None:
            self._values.compare(partition, records, emitted.timestamps_ms)
        self.report.waiting += int(np.count_nonzero(steps.waiting))
        self.report.accounts.add(
            expected.identities, expected.owners, expected.seen, expected.input_offsets < judged_to, emitted, steps
        )

    def leave_out(self, partition: int) -> None:
        """Exclude a partition's rows and rejects from the comparison."""
        self._rows.take(partition)
        self._rejects.take(partition)
        if self._values is not None:
            self._values.drop(partition)

    def _find(
        self,
        expected: ExpectedPartition | JoinedLegs,
        emitted: OutputRecords,
        found: RowsOfPartition,
        steps: OutputStates,
        stored: StoredOffsets,
    ) -> None:
        times = steps.rows + steps.rejects

        def tell(kind: FindingKind, at: Numbers, detail: Callable[[int], str], each: Callable[[int], int]) -> None:
            for index in at.tolist():
                known_as = expected.known_as(int(emitted.places[index]))
                offset = int(emitted.offsets[index])
                self.report.find(kind, detail(index), expected.partition, offset, each(index), known_as)

        def once(_: int) -> int:
            return 1

        tell(
            "lost",
            np.flatnonzero(steps.lost),
            lambda _: f"has no row, and the table has read up to {stored.before}",
            once,
        )
        tell(
            "doubled",
            np.flatnonzero(times > 1),
            lambda at: f"has {steps.rows[at]} rows and {steps.rejects[at]} rejects",
            lambda at: int(times[at] - 1),
        )
        tell(
            "unexpected",
            np.flatnonzero(found.early),
            lambda _: f"has a row, but the table says that it has read up to {stored.after} only",
            once,
        )
        self._invented(expected.partition, found.unmatched, found.unmatched_times)

    def _invented(self, partition: int, offsets: Numbers, times: Numbers) -> None:
        if self.report.proven_by == "keys":  # then what lies below the stored offset was compared with the second count
            behind = offsets >= self._after.get(partition, 0)
            offsets, times = offsets[behind], times[behind]
        for offset, count in zip(offsets.tolist(), times.tolist(), strict=True):
            detail = (
                f"{count} {'row' if count == 1 else 'rows'} of a record that the topic does not have; if another job "
                "writes to this table, they may be its rows"
            )
            self.report.find("unexpected", detail, partition, offset, count)

    def compare_judged(self, expected: ExpectedPartition, emitted: OutputRecords, end: int) -> None:
        """Compare the table with one partition of an input: fresh records must be rows, invalid ones rejects.

        Args:
            expected: judged input of the partition.
            emitted: fresh and invalid records of the partition; invalid ones have the index UNMATCHED.
            end: input offset after the last judged record.
        """
        partition = expected.partition
        if self.report.proven_by == "rows":
            invalid = emitted.offsets[emitted.places == UNMATCHED]
            for offset in np.intersect1d(self._rows.of(partition), invalid).tolist():
                self.report.find("unexpected", "has a row, although it must be a reject", partition, offset)
        if not self._pipeline.parses:
            fresh = emitted.offsets[emitted.places != UNMATCHED]
            for offset in np.intersect1d(self._rejects.of(partition), fresh).tolist():
                self.report.find("lost", "is a reject, although it is valid and fresh", partition, offset)
        self.compare(expected, emitted, end)

    @property
    def planner(self) -> TopicPlanner:
        """Return the planner that knows the offsets of the topic to read."""
        return self._planner

    def finish(self) -> ResultsReport:
        """Report rows of partitions that the output lacks, and return all results. Call it last."""
        for held in (self._rows, self._rejects):
            for partition in held.left():
                self._invented(partition, *np.unique(held.take(partition), return_counts=True))
        return self.report
