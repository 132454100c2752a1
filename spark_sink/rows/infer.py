"""Columns read off the values themselves: once, from a sample, and from then on the table's own are the ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.columns import ILLEGAL_IN_NAMES, RECORD_COLUMNS
from kafka_ratchet.spark_sink.spark.python_worker import Task, map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger("spark_sink")

INFER = "infer"
"""What stands for columns that are to be read off the values."""

SAMPLE_OFFSETS = 100_000
"""Offsets that are looked at in one go for values to judge by; more only where these have none."""

SAMPLE_OBJECTS = 10_000
"""Objects that each task judges by, the first it sees."""

MAX_NAMES = 10_000
"""Names that each task remembers: a stranger's objects may have a new one each."""

MAX_COLUMNS = 500
"""Columns of a table, at most; those that most objects have. PostgreSQL ends at 1,600, and readers before."""

MAX_NAME_BYTES = 63
"""PostgreSQL's limit, for all stores, so that what is inferred does not depend on where it goes."""

SHOWN = 10
"""Names in one warning."""

FOUND = "name string, reason string, types string, seen long"


@dataclass(frozen=True)
class Sample:
    """What a range of records says about its values."""

    values: int
    """Records that have a value."""
    columns: StructType
    """Fields that can be columns; none where no value is a JSON object with such a field."""
    left_out: dict[str, str]
    """Fields that cannot, and why; each name as ASCII, cut off."""


def sampled(records: DataFrame) -> Sample:
    """Look at the values of these records.

    A column is `boolean`, `long`, `double` or `string`: texts, objects and arrays (as their JSON text), whole numbers
    beyond 64 bits, and what is of several types are strings.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    illegal = ILLEGAL_IN_NAMES.pattern
    task = _looking(illegal, SAMPLE_OBJECTS, MAX_NAMES, MAX_NAME_BYTES)
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
            left_out[ascii(name)] = "another differs from it in case only, and more objects have that"
        elif len(fields) == MAX_COLUMNS:
            left_out[ascii(name)] = f"{MAX_COLUMNS} others are in more objects"
        else:
            fields[name.lower()] = StructField(name, _type(types[name]))
    values = sum(row.seen for row in found if row.name is None)
    return Sample(values, StructType(list(fields.values())), left_out)


def require_columns(sample: Sample, topic: str) -> StructType:
    """The sample's columns; says what is left out.

    Raises:
        OptionRefused: there is none.
    """
    names = list(sample.left_out)
    for name in names[:SHOWN]:
        log.warning("topic %s: no column is made of field %s: %s", topic, name, sample.left_out[name])
    if len(names) > SHOWN:
        log.warning("topic %s: and of %d other fields", topic, len(names) - SHOWN)
    if not sample.columns.fields:
        raise OptionRefused(
            f"columns: none of the {sample.values} values of topic {topic} that were looked at is a JSON object with a "
            "field that can be a column. Name the columns, or choose format bytes"
        )
    log.info("topic %s: columns are %s", topic, sample.columns.simpleString())
    return sample.columns


def of_table(table: StructType, where: str) -> StructType:
    """The values' columns of a table that is there.

    Raises:
        OptionRefused: it has none.
    """
    from pyspark.sql.types import StructType

    found = StructType([field for field in table.fields if field.name not in RECORD_COLUMNS])
    if not found.fields:
        raise OptionRefused(f"columns: {where} keeps values as bytes and has no columns to go on with. Choose another")
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


def _looking(illegal: str, max_objects: int, max_names: int, max_name_bytes: int) -> Task:
    # A nested function with its own imports: cloudpickle sends it by value, so executors need pyarrow and nothing else.

    def look(batches: Iterable[Any]) -> Iterator[Any]:
        import json
        import re

        import pyarrow as pa

        illegal_in_names = re.compile(illegal)

        def number(text: str) -> int | str:
            # A text of any length would take time that grows with its square.
            return int(text) if len(text) <= 20 else text

        def letter(value: object) -> str:
            if value is None:
                return ""
            if isinstance(value, bool):
                return "b"
            if isinstance(value, int) and -(2**63) <= value < 2**63:
                return "i" if abs(value) <= 2**53 else "l"  # "l" would not survive as a double
            return "f" if isinstance(value, float) else "s"

        def reason(name: str) -> str:
            try:
                size = len(name.encode())
            except UnicodeEncodeError:
                return "the name is no Unicode text"
            if not 0 < size <= max_name_bytes:
                return f"a name has 1 to {max_name_bytes} bytes"
            if illegal_in_names.search(name):
                return "a name may not have any of ' ,;{}()=', tab, newline"
            if not name.isprintable():
                return "the name has characters that cannot be seen"
            return ""

        types: dict[str, set[str]] = {}
        seen: dict[str, int] = {}
        left_out: dict[str, str] = {}
        values = objects = 0
        for batch in batches:
            if objects >= max_objects:
                continue  # Spark wants its batches taken
            for value in batch.column(0).to_pylist():
                values += value is not None
                try:
                    found = json.loads(value.decode("utf-8"), parse_int=number) if value else None
                except (ValueError, RecursionError):
                    continue
                if not isinstance(found, dict):
                    continue
                objects += 1
                for name, each in found.items():
                    if name not in types:
                        if len(types) + len(left_out) >= max_names:
                            continue
                        if why := reason(name):
                            left_out[ascii(name[:max_name_bytes])] = why
                            continue
                        types[name], seen[name] = set(), 0
                    types[name].update(letter(each))
                    seen[name] += 1
                if objects >= max_objects:
                    break
        rows = [(name, "", "".join(sorted(types[name])), seen[name]) for name in types]
        rows += [(name, why, "", 0) for name, why in left_out.items()]
        rows.append((None, "", "", values))  # type: ignore[arg-type]
        schema = pa.schema([("name", "string"), ("reason", "string"), ("types", "string"), ("seen", "int64")])
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)],
            schema=schema,
        )

    return look
