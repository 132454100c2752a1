"""Columns inferred from a sample of the values. An existing table's columns take precedence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows import infer_task
from kafka_ratchet.spark_sink.rows.columns import ILLEGAL_IN_NAMES, RECORD_COLUMNS
from kafka_ratchet.spark_sink.spark.python_worker import map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger("spark_sink")

INFER = "infer"
"""Setting for columns inferred from the values."""

SAMPLE_OFFSETS = 100_000
"""Offsets of one sample. The next offsets are read only if no sampled field can be a column."""

SAMPLE_OBJECTS = 10_000
"""Number of objects that each task samples: the first objects of its records."""

MAX_NAMES = 10_000
"""Number of names that each task remembers: each object may have new ones."""

MAX_COLUMNS = 500
"""Maximum number of inferred columns; the most frequent fields come first. PostgreSQL allows 1,600, and readers
fewer."""

MAX_NAME_BYTES = 63
"""Longest name in bytes: PostgreSQL's limit for all stores, so that inference does not depend on the store."""

SHOWN = 10
"""Maximum number of field names in one warning."""

FOUND = "name string, reason string, types string, seen long"
"""Columns of a task's report, with one row for each field name. `reason` tells why the name cannot be a column; without
a reason, `types` has the letters of the field's types and `seen` the number of objects with the field. In the row
without a name, `seen` is the number of values."""


@dataclass(frozen=True)
class InferredColumns:
    """Columns inferred from some values, with the number of values and the omitted fields."""

    values: int
    """Number of records with a value."""
    columns: StructType
    """Fields that can be columns; empty if no value is a JSON object with such a field."""
    left_out: dict[str, str]
    """Reason for each field without a column, by the field's name, shortened and in ASCII."""


def nothing_sampled() -> InferredColumns:
    """Return the sample for a range without records."""
    from pyspark.sql.types import StructType

    return InferredColumns(0, StructType([]), {})


def sampled(records: DataFrame) -> InferredColumns:
    """Infer columns from the values of these records.

    A column is `boolean`, `long`, `double` or `string`. Strings hold texts, objects and arrays (as JSON text), whole
    numbers beyond 64 bits, and fields of several types.
    """
    from pyspark import cloudpickle
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    cloudpickle.register_pickle_by_value(infer_task)  # type: ignore[no-untyped-call]
    task = infer_task.sampling(ILLEGAL_IN_NAMES.pattern, SAMPLE_OBJECTS, MAX_NAMES, MAX_NAME_BYTES)
    found = map_batches(records.select(F.col("value")), task, FOUND).collect()
    types: dict[str, set[str]] = {}
    seen: dict[str, int] = {}
    left_out: dict[str, str] = {}
    for row in found:
        if row.reason:
            left_out.setdefault(row.name, row.reason)
        elif row.name is not None:
            types.setdefault(row.name, set()).update(row.types)
            seen[row.name] = seen.get(row.name, 0) + row.seen
    fields: dict[str, StructField] = {}
    for name in sorted(types, key=lambda name: (-seen[name], name)):
        if name.lower() in RECORD_COLUMNS:
            left_out[ascii(name)] = "the name is one of Ratchet's own"
        elif name.lower() in fields:
            left_out[ascii(name)] = "another field's name differs in case only, and more objects have that field"
        elif len(fields) == MAX_COLUMNS:
            left_out[ascii(name)] = f"{MAX_COLUMNS} others are in more objects"
        else:
            fields[name.lower()] = StructField(name, _type(types[name]))
    values = sum(row.seen for row in found if row.name is None)
    return InferredColumns(values, StructType(list(fields.values())), left_out)


def require_columns(sample: InferredColumns, topic: str) -> StructType:
    """Return the sample's columns, and log the omitted fields.

    Raises:
        OptionRefused: the sample has no columns.
    """
    _warn_of(sample.left_out, topic)
    if not sample.columns.fields:
        raise OptionRefused(
            f"columns: none of the {sample.values} sampled values of topic {topic} is a JSON object with a field "
            "that can be a column. Name the columns, or choose format bytes"
        )
    log.info("topic %s: columns are %s", topic, sample.columns.simpleString())
    return sample.columns


def with_new_fields(known: StructType, sample: InferredColumns, topic: str) -> StructType:
    """Return the columns of a table, followed by the sample's new fields.

    Args:
        known: the table's columns, see `of_table`; they keep their types.
        sample: sample of the next records; its left-out fields are logged.
        topic: the sample's topic.
    """
    from pyspark.sql.types import StructField, StructType

    spelled, left_out = {name.lower(): name for name in known.names}, dict(sample.left_out)
    new: list[StructField] = []
    for field in sample.columns.fields:
        if field.name in known.names:
            continue
        if field.name.lower() in spelled:
            left_out[ascii(field.name)] = f"the table has {spelled[field.name.lower()]!a}, which differs in case only"
        elif len(known) + len(new) >= MAX_COLUMNS:
            left_out[ascii(field.name)] = f"the table has {MAX_COLUMNS} columns"
        else:
            new.append(field)
    _warn_of(left_out, topic)
    if new:
        log.info("topic %s: new columns are %s", topic, StructType(new).simpleString())
    return StructType([*known.fields, *new])


def _warn_of(left_out: Mapping[str, str], topic: str) -> None:
    names = list(left_out)
    for name in names[:SHOWN]:
        log.warning("topic %s: field %s gets no column: %s", topic, name, left_out[name])
    if len(names) > SHOWN:
        log.warning("topic %s: %d further fields get no column", topic, len(names) - SHOWN)


def of_table(table: StructType, where: str) -> StructType:
    """Return the values' columns of an existing table.

    Raises:
        OptionRefused: the table has no such columns.
    """
    from pyspark.sql.types import StructType

    found = StructType([field for field in table.fields if field.name not in RECORD_COLUMNS])
    if not found.fields:
        raise OptionRefused(
            f"columns: {where} keeps values as bytes and has no columns for fields. Choose another table"
        )
    return found


def _type(types: set[str]) -> DataType:
    from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType

    if types == {"b"}:
        return BooleanType()
    if types and types <= {"i", "l"}:
        return LongType()
    if types and types <= {"i", "f"}:
        return DoubleType()
    return StringType()
