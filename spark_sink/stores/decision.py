"""Decisions of operators about a table, and the records of them: next offsets of a job, or repaired rows."""

from __future__ import annotations

import datetime
import getpass
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.distinct import quoted
from kafka_ratchet.spark_sink.spark.dialect import from_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

TABLE, STORED, EARLIEST, LATEST = "table", "stored", "earliest", "latest"
"""Values of `--from`: the job resumes after the last row of the table, at the stored offsets, or at either end of the
topic."""


@dataclass(frozen=True)
class StoreCheck:
    """State of a store, read for an operator's decision without fencing the running job."""

    stored: dict[int, int]
    """Stored next offset of each partition."""
    row_offsets: dict[int, int] | None
    """Next offset of each partition, derived from the table's rows; None: the rows do not show the offsets."""
    trouble: str
    """Sentence that states why the job refuses to run without a decision; empty: the table is in order."""
    is_other_topic: bool = False
    """True if the stored offsets belong to a topic of the same name with another id."""
    rows_ahead: bool = False
    """True if the table may have rows after the stored offsets, which were removed, or restored without the rows."""


@dataclass(frozen=True)
class Decision:
    """Operator's decision about the offsets at which a job resumes."""

    source: str
    """Value of `--from`, such as `table`."""
    reason: str
    who: str
    at: str
    """Time of the decision in UTC, ISO 8601."""
    seen: Mapping[int, int] | None = None
    """Stored offsets that the operator saw; None: the decision does not depend on them."""

    def require_seen(self, where: object, stored: Mapping[int, int]) -> None:
        """Refuse the decision if the job has committed since the operator saw the offsets.

        Raises:
            StoreError: the stored offsets differ from the seen ones.
        """
        if self.seen is not None and dict(self.seen) != dict(stored):
            raise StoreError(
                f"{where}: the job has committed since the decision was made (up to {dict(stored)}). Stop the job, and "
                "run the command again"
            )

    def as_json(
        self, before: Mapping[int, int], after: Mapping[int, int], write_modes: tuple[str, str] = ("", "")
    ) -> str:
        """Return the decision as one line of JSON, to store with the offsets.

        Args:
            before: stored offsets before the decision.
            after: stored offsets after it.
            write_modes: stored and new write mode, see `write_mode_text`; part of the line only if they differ.
        """
        was, becomes = write_modes
        changed = {"rule": {"before": json.loads(was), "after": json.loads(becomes)}} if was and was != becomes else {}
        return json.dumps(
            {
                "at": self.at,
                "who": self.who,
                "reason": self.reason,
                "from": self.source,
                "before": {str(partition): offset for partition, offset in before.items()},
                "after": {str(partition): offset for partition, offset in after.items()},
                **changed,
            }
        )


def decide(source: str, reason: str, seen: Mapping[int, int] | None = None) -> Decision:
    """Return a decision made now by the user of this process."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Decision(source, reason, f"{_user()}@{socket.gethostname()}", now, seen)


def first_after(first: Mapping[int, int], before: Mapping[int, int], after: Mapping[int, int]) -> dict[int, int]:
    """Return the first offset of the table's records by partition, after a decision.

    Args:
        first: first offsets before the decision; without an offset, a partition's records begin with the topic.
        before: stored offsets before the decision; empty: the decision is the start of a first run.
        after: stored offsets after the decision.
    """
    if not before:
        return dict(after)
    return {partition: min(offset, after.get(partition, offset)) for partition, offset in first.items()}


@dataclass(frozen=True)
class Replacement:
    """Rows that a repair adds, and the identities of the rows that it removes; see `ResultStore.repair`."""

    identity: tuple[str, ...]
    """Names of the identity columns; null counts as a value."""
    gone: pa.Table
    """Identities to remove, each once: the repair deletes every row that has one of them."""
    rows: DataFrame
    """New rows, with the table's columns; each has one of the identities in `gone`."""
    count: int
    """Number of new rows."""

    def with_removals(self) -> DataFrame:
        """Return the new rows, followed by one row with `DELETED` = true for each identity."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        schema = self.rows.schema
        of_identity = StructType([schema[name] for name in self.identity])
        gone = from_arrow(self.rows.sparkSession, self.gone.select(list(self.identity)), of_identity)
        columns = [
            F.col(quoted(name)) if name in self.identity else F.lit(None).cast(schema[name].dataType).alias(name)
            for name in schema.names
        ]
        removals = gone.select(*columns, F.lit(True).alias(DELETED))
        return self.rows.withColumn(DELETED, F.lit(False)).unionByName(removals)

    def require_staged(self, where: object, rows: int) -> None:
        """Refuse to commit unless the tasks wrote the planned number of rows.

        Raises:
            StoreError: the number differs; nothing was committed.
        """
        if rows != self.count:
            raise StoreError(
                f"{where}: {rows} rows were read from the topic for the {self.count} rows of the repair. Nothing was "
                "committed; run the repair again, and check whether Kafka's retention deletes records of the range"
            )


@dataclass(frozen=True)
class RepairNote:
    """Record of a repair: who, when, why, and how many rows."""

    who: str
    at: str
    """Time of the repair in UTC, ISO 8601."""
    reason: str
    counts: Mapping[str, int]
    """Number of identities by kind of fault, and number of rows by action."""

    def as_dict(self) -> dict[str, Any]:
        """Return the record as the object that the table stores."""
        return {"at": self.at, "who": self.who, "reason": self.reason, "what": "repair", "rows": dict(self.counts)}

    def as_json(self) -> str:
        """Return the record as one line of JSON, for a database's table of decisions."""
        return json.dumps(self.as_dict())


def repair_note(reason: str, counts: Mapping[str, int]) -> RepairNote:
    """Return the record of a repair made now by the user of this process."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return RepairNote(f"{_user()}@{socket.gethostname()}", now, reason, counts)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"
