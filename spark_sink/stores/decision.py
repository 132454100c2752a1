"""Operators' decisions about a table and their records: the job's next offsets, and replaced rows."""

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
"""Places at which a job can go on: the end of the rows, the stored offsets, or either end of the topic."""


@dataclass(frozen=True)
class StoreCheck:
    """Facts about a store that an operator needs before such a decision. Reading them takes nothing over."""

    stored: dict[int, int]
    """Stored next offset of each partition."""
    row_offsets: dict[int, int] | None
    """Next offset of each partition by the table's rows; None: they do not show it."""
    trouble: str
    """Sentence why the job does not go on without a decision; empty: the table is in order."""
    is_other_topic: bool = False
    """The stored offsets belong to another topic of the name."""


@dataclass(frozen=True)
class Decision:
    """Decision of an operator where a job goes on, with the reason."""

    source: str
    """Choice of the operator, as `--from` has it."""
    reason: str
    who: str
    at: str
    """Time of the decision in UTC, ISO 8601."""
    seen: Mapping[int, int] | None = None
    """Stored offsets that the decision is based on; None: they do not matter."""

    def require_seen(self, where: object, stored: Mapping[int, int]) -> None:
        """Refuse a decision for other offsets than the stored ones: the job has gone on since.

        Raises:
            StoreError: the stored offsets are others.
        """
        if self.seen is not None and dict(self.seen) != dict(stored):
            raise StoreError(
                f"{where}: the job has committed since this was decided (up to {dict(stored)}). Stop it, and look again"
            )

    def as_json(
        self, before: Mapping[int, int], after: Mapping[int, int], write_modes: tuple[str, str] = ("", "")
    ) -> str:
        """Return one line to keep with the offsets.

        Args:
            before: stored offsets before the decision.
            after: stored offsets after it.
            write_modes: the stored one and the new one, see `write_mode_text`; kept if they differ.
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
    """Return a decision of this process's user, as of now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Decision(source, reason, f"{_user()}@{socket.gethostname()}", now, seen)


@dataclass(frozen=True)
class Replacement:
    """Rows that replace all rows with the same identities, see `ResultStore.repair`."""

    identity: tuple[str, ...]
    """Columns of the identity; null is a value like others."""
    gone: pa.Table
    """Identities, each once: every row with one of them goes."""
    rows: DataFrame
    """New rows, in the columns of the table; their identities are among `identities`."""
    count: int
    """Number of new rows."""

    def with_removals(self) -> DataFrame:
        """Return the rows, and one for each identity with true in the column `DELETED`."""
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
        """Raise unless the tasks have written as many rows as planned.

        Raises:
            StoreError: the number differs; nothing was committed.
        """
        if rows != self.count:
            raise StoreError(
                f"{where}: the topic has given {rows} of the {self.count} rows that a repair puts in. Nothing was "
                "committed; run the repair again, and look whether retention deletes records during it"
            )


@dataclass(frozen=True)
class RepairNote:
    """Record of a repair: who, when, why, and how many rows."""

    who: str
    at: str
    """Time of the repair in UTC, ISO 8601."""
    reason: str
    counts: Mapping[str, int]
    """Number of identities by fault, and of rows by action."""

    def as_dict(self) -> dict[str, Any]:
        """Return the object to keep in the table."""
        return {"at": self.at, "who": self.who, "reason": self.reason, "what": "repair", "rows": dict(self.counts)}

    def as_json(self) -> str:
        """Return the line for the databases' table of decisions."""
        return json.dumps(self.as_dict())


def repair_note(reason: str, counts: Mapping[str, int]) -> RepairNote:
    """Make the record of a repair by the user of this process, now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return RepairNote(f"{_user()}@{socket.gethostname()}", now, reason, counts)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"
