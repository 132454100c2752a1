"""Repair of the result table of one sink: search for wrong rows, and the commit that corrects them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kafka_ratchet.app.repair.keyed import KeyTable, LastRows, Totals, compare_rejects
from kafka_ratchet.app.repair.plan import RepairPlan
from kafka_ratchet.app.repair.records import AppendedTable, ComparedOffsets, ExpectedRows, HeldRecords
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.results import access_of, planner_of, sink_errors_translated, spec_of
from kafka_ratchet.app.verify.rows import RowOffsets
from kafka_ratchet.app.verify.values import ComparedColumns
from kafka_ratchet.app.worker.topics import config_of
from kafka_ratchet.errors import SettingsError, SetupError
from kafka_ratchet.producers import admin_client
from kafka_ratchet.spark_sink.job.mend import TableRepair, mend
from kafka_ratchet.spark_sink.job.plan import TopicPlanner, resume
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.recount import due_records, recount
from kafka_ratchet.spark_sink.job.start import with_columns
from kafka_ratchet.spark_sink.log_lines import announced
from kafka_ratchet.spark_sink.spark.dialect import arrow_schema
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import RepairNote, repair_note
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.results import partition_and_offset, scan
from kafka_ratchet.spark_sink.stores.store import ResultStore, require_local_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Session = Callable[[], AbstractContextManager["SparkSession"]]

QUIET_ATTEMPTS: Final = 5
"""Maximum number of attempts to read the whole table between two commits of the job."""

MAX_REASON: Final = 1_000
"""Maximum number of characters of the operator's reason, which is stored with the commit."""


@dataclass(frozen=True)
class Repair:
    """Options of `ratchet repair`, as given by the operator.

    Args:
        reason: the operator's reason; "" without `execute`.
        execute: True to make the changes; False to only list them.
        sample: maximum number of findings of each kind and action to name.
        remove_unexpected: True to remove rows without a record, and wrong rows of a record with several rows.

    Raises:
        SettingsError: the reason is missing, or not a single line.
    """

    reason: str = ""
    execute: bool = False
    sample: int = 20
    remove_unexpected: bool = False

    def __post_init__(self) -> None:
        if self.execute and not self.reason.strip():
            raise SettingsError("--execute needs --reason TEXT: give the reason; it is stored with the commit")
        if len(self.reason) > MAX_REASON or (self.reason and not self.reason.isprintable()):
            raise SettingsError(
                f"--reason: give the reason in one line of at most {MAX_REASON} characters; it is stored with the "
                "commit"
            )


@dataclass(frozen=True)
class RepairResult:
    """Result of a repair: the findings, and the commit that corrected them."""

    plan: RepairPlan
    note: RepairNote | None = None
    """Note stored with the commit; None: nothing was committed."""
    generation: int | None = None
    """Generation of the job in the commit; None: nothing was committed."""

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0 if nothing was wrong or all of it was corrected, else 1."""
        if self.plan.cannot or self.plan.actions["stays"]:
            return 1
        return 0 if self.note is not None or not self.plan.counts else 1


class RepairedTable:
    """Result table of a sink, to compare with its topic and to repair.

    Args:
        settings: settings with the `[sink]`.
        topic: topic of the table's records.
        bootstrap: host:port[,host:port].
        asked: options of the operator.

    Raises:
        SetupError: the settings contradict each other, or store or Kafka do not answer.
        SettingsError: rows of this table cannot be computed again.
    """

    def __init__(self, settings: Settings, topic: str, bootstrap: str, asked: Repair) -> None:
        self._kept, self._asked = settings.sink, asked
        if made_by := "sql" if self._kept.sql is not None else "transform" if self._kept.transform is not None else "":
            raise SettingsError(
                f"sink.{made_by} computes the rows, so Ratchet does not know which rows are right. Nothing was repaired"
            )
        access = access_of(settings)
        with sink_errors_translated():
            spec = spec_of(settings, topic, bootstrap)
            self._location = spec.location(access)
            pipeline = spec.pipeline(access)
            self._planner: TopicPlanner = planner_of(bootstrap, settings, topic)
            self._store: ResultStore = spec.result_store(pipeline, access, self._planner.topic_id())
            self._named: Job = spec.job(pipeline, access)
        self._write_mode = pipeline.write_mode
        config = config_of(admin_client({"bootstrap.servers": bootstrap, **settings.kafka}), topic)
        self._is_compacted = "compact" in config["cleanup.policy"]
        if self._is_compacted and asked.remove_unexpected:
            raise SettingsError(
                f"--remove-unexpected: topic {topic} has cleanup.policy=compact, so that right rows may have lost "
                "their record. Remove the option"
            )
        self._has_rejects = self._kept.rejects or self._kept.from_input
        self._table = f"{self._kept.store} {self._location}"

    def run(self, session: Session) -> RepairResult:
        """Compare the table with its topic; with `execute`, take the job over and commit the repair.

        Args:
            session: function that starts Spark, which computes the rows.

        Raises:
            SetupError: table or topic cannot be read, or the table cannot be written.
        """
        with sink_errors_translated():
            self._require_repairable()
            with session() as spark:
                require_local_master(self._store, spark.conf.get("spark.master", None))
                job = with_columns(self._named, self._planner, self._store, spark, grow=False)
                if job is None:
                    raise SetupError(f"{self._table}: the table does not exist. Check the settings of the sink")
                seen = self._store.generation()
                plan = self._look(spark, job)
                if not (self._asked.execute and plan.mends):
                    return RepairResult(plan)
                return self._carry_out(spark, job, plan, seen)

    def _carry_out(self, spark: SparkSession, job: Job, plan: RepairPlan, seen: int) -> RepairResult:
        """Take the job over and commit the repair. seen: generation of the table before it was read."""
        stored = self._store.open(job.pipeline.schema(spark))
        self._store.check_before_commit(lambda: self._planner.require_still_first_topic(stored))
        try:
            crash_points.passing("taken-over")
            # A job moves the offsets. Another repair moves the generation alone.
            if stored != plan.offsets or self._store.generation() != seen + 1:
                plan = self._look(spark, job)  # from now on no other job commits
            if not plan.mends:
                return RepairResult(plan)
            note = repair_note(self._asked.reason, plan.counted())
            wanted = TableRepair(plan.gone, plan.put_in), TableRepair(plan.rejects_gone, plan.rejects_put_in)
            with self._announced("reading rows again, and committing them"):
                mend(spark, job, self._store, (self._start(plan.offsets), plan.offsets), wanted, note)
            return RepairResult(plan, note, self._store.generation())
        finally:
            self._store.close()

    def _require_repairable(self) -> None:
        """Check that only this job writes the table, and that its rows can be replaced.

        Raises:
            SetupError: other jobs have rows in the table, or no job has written to it.
            OptionRefused: the store cannot replace its rows.
        """
        if self._store.generation() == 0:
            raise SetupError(
                f"{self._table}: job {self._kept.name} has never written to the table. Nothing was repaired; check "
                "the settings of the sink"
            )
        if others := self._store.other_sources():
            raise SetupError(
                f"{self._table}: {', '.join(others)} {('has' if len(others) == 1 else 'have')} rows in the table "
                "too, and a row does not show which job wrote it. Nothing was repaired; only a table of a single job "
                "can be repaired"
            )
        self._store.require_repairable()

    @contextmanager
    def _announced(self, work: str) -> Iterator[None]:
        with announced(f"table {self._location}: {work}", partial(print, file=sys.stderr, flush=True)):
            yield

    def _start(self, offsets: dict[int, int]) -> dict[int, int]:
        """Return the first offset to compare in each partition: the topic's first one, or that of `--start`."""
        earliest, first = self._planner.offset_range().earliest, self._store.first_offsets()
        return {each: min(max(earliest[each], first.get(each, 0)), offset) for each, offset in offsets.items()}

    def _bounds(self, offsets: dict[int, int], reached: dict[int, int]) -> dict[int, ComparedOffsets]:
        resume(self._planner.offset_range(), reached)  # refuses offsets that this topic cannot have led to
        ahead = store_class(self._location.kind).rejects_apart
        start = self._start(reached)
        return {p: ComparedOffsets(first, offsets.get(p, first), reached[p], ahead) for p, first in start.items()}

    def _look(self, spark: SparkSession, job: Job) -> RepairPlan:
        with self._announced("reading it, and computing its rows again with Spark"):
            for _ in range(QUIET_ATTEMPTS):
                plan = RepairPlan(self._table, self._kept.name, self._kept.kind, self._asked.sample)
                plan.offsets = self._store.offsets()
                reached = self._compare(spark, job, plan) if plan.offsets else {}
                # Rows of an appended table stay as they are while the job goes on.
                if self._write_mode.kind == "append" or reached == plan.offsets:
                    return plan
        raise SetupError(
            f"{self._table}: job {self._kept.name} committed during each of {QUIET_ATTEMPTS} attempts to read the "
            "table. Stop the job, then repair again"
        )

    def _can_compare(self, topic: str, plan: RepairPlan) -> bool:
        """Return True if topic and table can be compared; add the limits of the comparison to `plan.cannot`."""
        start, first = self._start(plan.offsets), self._store.first_offsets()
        deleted = [f"{each} from offset {at:,}" for each, at in start.items() if at > first.get(each, 0)]
        if self._is_compacted:
            gone = f"topic {topic} has cleanup.policy=compact, which deletes records in its middle"
        elif deleted:
            gone = f"topic {topic} begins later than the table (partition {', '.join(deleted)})"
        else:
            return True
        if self._write_mode.kind == "totals":
            plan.cannot.append(
                f"{gone}: totals with the deleted records cannot be computed again, so the repair changes no row"
            )
            return False
        if self._kept.from_input:
            plan.cannot.append(f"{gone}: it is unknown which records were new, so the repair changes no row")
            return False
        plan.cannot.append(
            f"{gone}: rows of deleted records stay as they are, and it is unknown whether some of them are missing"
        )
        return True

    def _compare(self, spark: SparkSession, job: Job, plan: RepairPlan) -> dict[int, int]:
        """Compare the table with its topic; return the stored offsets after the reading."""
        if not self._can_compare(job.topic, plan):
            return plan.offsets
        rejects = RowOffsets()
        if self._write_mode.kind == "append":
            columns = self._columns(spark, job)
            columns.hold(scan(self._location, columns.schema))
            self._read_rejects(rejects)
            reached = self._store.offsets()
            bounds = self._bounds(plan.offsets, reached)
            due = self._due(spark, job, columns, plan, bounds)
            remove = self._asked.remove_unexpected
            table = AppendedTable(plan, remove_unexpected=remove, has_rejects=self._has_rejects)
            table.compare(columns, rejects, due, bounds)
            return reached
        self._read_rejects(rejects)
        self._compare_keyed(spark, job, plan, rejects, self._bounds(plan.offsets, plan.offsets))
        return self._store.offsets()

    def _read_rejects(self, rejects: RowOffsets) -> None:
        if self._has_rejects:
            rejects.add(scan(self._location, partition_and_offset(), rejects=True))

    def _columns(self, spark: SparkSession, job: Job) -> HeldRecords:
        """Return an empty `HeldRecords` for the columns to compare, in the table's order."""
        held, wanted = self._store.column_names(), job.pipeline.schema(spark)
        names = wanted.names if held is None else [name for name in held if name in wanted.names]
        schema = type(wanted)([wanted[name] for name in names])
        nested = store_class(self._location.kind).nested_columns
        return HeldRecords(ComparedColumns.of_table(schema, nested=nested), arrow_schema(wanted))

    def _due(
        self, spark: SparkSession, job: Job, columns: HeldRecords, plan: RepairPlan, bounds: dict[int, ComparedOffsets]
    ) -> ExpectedRows:
        start = {partition: bounds[partition].earliest for partition in plan.offsets}
        restricted = self._store.restricted_values
        found = due_records(spark, job, columns.columns, start, plan.offsets, restricted_values=restricted)
        return ExpectedRows(found, parses=job.pipeline.parses, has_value="_kafka_value" in columns.schema.names)

    def _compare_keyed(
        self, spark: SparkSession, job: Job, plan: RepairPlan, rejects: RowOffsets, bounds: dict[int, ComparedOffsets]
    ) -> None:
        write_mode, remove = self._write_mode, self._asked.remove_unexpected
        whole = arrow_schema(job.pipeline.schema(spark))
        keys = KeyTable(pa.schema([whole.field(name) for name in write_mode.row_key]))
        start = {partition: each.earliest for partition, each in bounds.items()}
        found = recount(spark, job, start, plan.offsets, restricted_values=self._store.restricted_values)
        if write_mode.kind == "totals":
            made = write_mode.aggregates
            schema = pa.schema([*keys.schema, *(whole.field(each.name) for each in made)])
            rounded = {each.name for each in made if each.rule == "average"}
            totals = Totals(plan, keys, schema, rounded, remove_unexpected=remove)
            totals.hold(scan(self._location, schema))
            totals.plan(found)
        else:
            columns = self._columns(spark, job)
            names = dict.fromkeys([*keys.schema.names, *columns.schema.names])
            rows = LastRows(
                plan,
                keys,
                remove_unexpected=remove,
                is_compacted=self._is_compacted,
                deletes=job.pipeline.deletes,
            )
            rows.hold(scan(self._location, pa.schema([whole.field(name) for name in names])), columns)
            rows.compare(found, self._due(spark, job, columns, plan, bounds), bounds)
        compare_rejects(plan, found.rejects, rejects, bounds, remove_unexpected=remove)
