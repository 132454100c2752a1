"""Avro values: the columns of a schema, and the conversion of Kafka records into their rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows import decoded
from kafka_ratchet.spark_sink.rows.avro import task as avro_task
from kafka_ratchet.spark_sink.rows.avro.task import DAYS, MICROSECONDS
from kafka_ratchet.spark_sink.rows.columns import RECORD_COLUMNS, STATE, checked, result_schema
from kafka_ratchet.spark_sink.rows.ddl import MAX_DIGITS
from kafka_ratchet.spark_sink.spark.dialect import arrow_schema
from kafka_ratchet.spark_sink.spark.python_worker import Task, map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Pattern of names, by Avro's specification."""

MAX_ID = 2**32 - 1

MAX_DEPTH = 32
"""Maximum depth of nested types. Each level of a schema is a level of Python's stack while values are read."""

INT = ("within", -(2**31), 2**31 - 1, 1)

Plan = tuple[Any, ...]


@dataclass(frozen=True)
class AvroValues:
    """Avro encoding of the values: the schema, and a registry's id in front of each value.

    Raises:
        OptionRefused: the schema cannot be read, or has a type that a table cannot hold.
    """

    schema: str
    """Schema that every value was written with, as JSON text (.avsc); a record."""
    id: int | None = None
    """Number of the schema in a registry. Values begin with a zero byte and this number in four bytes; a value with
    another number does not parse. None: values are plain Avro without a prefix."""
    plan: Plan = field(init=False, repr=False, compare=False)
    columns: StructType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        from pyspark.sql.types import StructType

        if self.id is not None and not 0 <= self.id <= MAX_ID:
            raise OptionRefused(f"avro id {self.id} is out of range: a registry's ids are 0 to {MAX_ID}")
        try:
            plan, columns = _SchemaReader().type(schema_object(self.schema), "", 0)
        except RecursionError:
            raise OptionRefused(NO_JSON) from None
        if not isinstance(columns, StructType):
            raise OptionRefused(
                "avro schema: values must be records, so that their fields become columns. Give the schema of a record"
            )
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "columns", checked(columns))

    @property
    def prefix(self) -> bytes:
        """Return the prefix of every value (Confluent's wire format), before Avro's own bytes."""
        return b"" if self.id is None else b"\0" + self.id.to_bytes(4, "big")


NO_JSON = "avro schema: the text is no JSON. Give the text of an .avsc file, or its path"


def schema_object(text: str) -> object:
    """Parse a schema's JSON.

    Raises:
        OptionRefused: the text is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise OptionRefused(NO_JSON) from None


def avro_values(schema: str, schema_id: int | None = None) -> AvroValues:
    """Return the encoding for a schema, given as text or path.

    Raises:
        OptionRefused: see `AvroValues`; the file cannot be read.
    """
    if schema.lstrip().startswith(("{", "[", '"')):
        return AvroValues(schema, schema_id)
    try:
        return AvroValues(Path(schema).read_text("utf-8"), schema_id)
    except (OSError, ValueError) as error:
        raise OptionRefused(f"avro schema {schema!r}: the file cannot be read ({error}). Correct the path") from None


def rows(records: DataFrame, values: AvroValues, *, restricted_values: int, keep_value: bool = False) -> DataFrame:
    """Turn records of Spark's Kafka source into rows, as `columns.rows` does for JSON values."""
    from pyspark.sql import functions as F

    record = [F.col(name.removeprefix("_kafka_")).alias(name) for name in RECORD_COLUMNS]
    made = task(values, restricted_values=restricted_values, keep_value=keep_value)
    return map_batches(records.select(*record), made, _read_schema(values))


def task(values: AvroValues, *, restricted_values: int, keep_value: bool = False) -> Task:
    """Return the task of `avro_task.decoding`, which runs in executors without this package."""
    from pyspark import cloudpickle

    for module in (avro_task, decoded):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return avro_task.decoding(
        values.plan, values.prefix, restricted_values, keep_value, arrow_schema(_read_schema(values))
    )


def _read_schema(values: AvroValues) -> StructType:
    from pyspark.sql.types import IntegerType, StructField, StructType

    return StructType([*result_schema(values.columns).fields, StructField(STATE, IntegerType())])


class _SchemaReader:
    """Single-pass reader of an Avro schema, with the named types defined so far."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Plan, DataType] | None] = {}

    def type(self, schema: object, namespace: str, depth: int) -> tuple[Plan, DataType]:
        """Return the decoding plan and the column type for a schema."""
        if depth > MAX_DEPTH:
            raise OptionRefused(f"avro schema: types are nested more than {MAX_DEPTH} deep. Flatten the schema")
        if isinstance(schema, str):
            return self._by_name(schema, namespace)
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if not isinstance(schema, dict) or "type" not in schema:
            raise OptionRefused(f"avro schema: {_shown(schema)} is not a type. Correct the schema")
        kind = schema["type"]
        if kind in {"record", "enum", "fixed"}:
            return self._definition(schema, namespace, depth)
        if kind in {"array", "map"}:
            return self._collection(schema, namespace, depth)
        return _logical(schema) or self.type(kind, namespace, depth + 1)

    def _by_name(self, name: str, namespace: str) -> tuple[Plan, DataType]:
        if name in PRIMITIVE:
            return _primitive(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._named:
            raise OptionRefused(
                f"avro schema: the type {_shown(name)} is not defined (null is allowed in a union only). Correct the "
                "schema"
            )
        found = self._named[full]
        if found is None:
            raise OptionRefused(
                f"avro schema: {_shown(name)} contains itself, which no table can hold. Change the schema, or choose "
                "format bytes"
            )
        return found

    def _union(self, branches: list[object], namespace: str, depth: int) -> tuple[Plan, DataType]:
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1 or len(branches) != 2:
            raise OptionRefused(
                f"avro schema: union {_shown(branches)}: a column has a single type, so a union may have null and "
                "one other type. Change the schema, or choose format bytes"
            )
        plan, data_type = self.type(others[0], namespace, depth + 1)
        return ("optional", branches.index("null"), plan), data_type

    def _definition(self, schema: Mapping[str, Any], namespace: str, depth: int) -> tuple[Plan, DataType]:
        name = schema.get("name")
        if not isinstance(name, str) or not all(NAME.fullmatch(part) for part in name.split(".")):
            raise OptionRefused(f"avro schema: {_shown(name)} is not a valid name of a type. Correct the schema")
        given = schema.get("namespace", namespace)
        namespace = name.rpartition(".")[0] if "." in name else given if isinstance(given, str) else ""
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full in self._named:
            raise OptionRefused(f"avro schema: type {_shown(full)} is defined twice. Correct the schema")
        self._named[full] = None
        found = self._named[full] = self._defined(schema, namespace, depth)
        return found

    def _defined(self, schema: Mapping[str, Any], namespace: str, depth: int) -> tuple[Plan, DataType]:
        from pyspark.sql.types import BinaryType, StringType

        if schema["type"] == "record":
            return self._record(schema, namespace, depth)
        if schema["type"] == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not symbols or not all(isinstance(each, str) for each in symbols):
                raise OptionRefused(f"avro schema: enum {_shown(schema['name'])} has no symbols. Correct the schema")
            return ("enum", tuple(symbols)), StringType()
        size = schema.get("size")
        if type(size) is not int or size < 1:
            raise OptionRefused(
                f"avro schema: fixed {_shown(schema['name'])} needs a size of at least 1. Correct the schema"
            )
        return _logical(schema) or (("fixed", size), BinaryType())

    def _record(self, schema: Mapping[str, Any], namespace: str, depth: int) -> tuple[Plan, DataType]:
        from pyspark.sql.types import StructField, StructType

        described = schema.get("fields")
        if not isinstance(described, list) or not described:
            raise OptionRefused(f"avro schema: record {_shown(schema['name'])} has no fields. Correct the schema")
        plans, fields, taken = [], [], set[str]()
        for each in described:
            name = each.get("name") if isinstance(each, dict) else None
            if not isinstance(name, str) or not NAME.fullmatch(name) or "type" not in each:
                raise OptionRefused(
                    f"avro schema: record {_shown(schema['name'])}: {_shown(each)} is not a field. Correct the schema"
                )
            if name.lower() in taken:
                raise OptionRefused(
                    f"avro schema: field {_shown(name)} occurs twice (names that differ in case only are one "
                    "column). Rename one"
                )
            taken.add(name.lower())
            plan, data_type = self.type(each["type"], namespace, depth + 1)
            plans.append((name, plan))
            fields.append(StructField(name, data_type))
        return ("record", tuple(plans)), StructType(fields)

    def _collection(self, schema: Mapping[str, Any], namespace: str, depth: int) -> tuple[Plan, DataType]:
        from pyspark.sql.types import ArrayType, MapType, StringType

        key = "items" if schema["type"] == "array" else "values"
        if key not in schema:
            raise OptionRefused(f"avro schema: {_shown(schema)} has no {key}. Correct the schema")
        plan, data_type = self.type(schema[key], namespace, depth + 1)
        if schema["type"] == "array":
            return ("array", plan), ArrayType(data_type)
        return ("map", plan), MapType(StringType(), data_type)


PRIMITIVE = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})


def _primitive(name: str) -> tuple[Plan, DataType]:
    from pyspark.sql import types as T

    types = {
        "boolean": T.BooleanType,
        "int": T.IntegerType,
        "long": T.LongType,
        "float": T.FloatType,
        "double": T.DoubleType,
        "bytes": T.BinaryType,
        "string": T.StringType,
    }
    return (INT if name == "int" else (name,)), types[name]()


def _logical(schema: Mapping[str, Any]) -> tuple[Plan, DataType] | None:
    """Return plan and column type for a logical type; None: the type is unknown, and the underlying type counts."""
    from pyspark.sql.types import DateType, DecimalType, TimestampNTZType, TimestampType

    logical, kind = schema.get("logicalType"), schema["type"]
    if logical == "date" and kind == "int":
        return ("within", *DAYS, 1), DateType()
    if kind == "long" and logical in {f"{local}timestamp-{unit}" for local in ("", "local-") for unit in UNITS}:
        plan = ("within", *MICROSECONDS, UNITS[logical.rpartition("-")[2]])
        return plan, TimestampNTZType() if logical.startswith("local-") else TimestampType()
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if (
        logical == "decimal"
        and kind in {"bytes", "fixed"}
        and type(precision) is int
        and type(scale) is int
        and 0 <= scale <= precision <= MAX_DIGITS
        and precision > 0
    ):
        return ("decimal", schema.get("size"), precision, scale), DecimalType(precision, scale)
    return None


UNITS = {"millis": 1000, "micros": 1}
"""Microseconds per unit of time, for the units that a timestamp can hold; nanoseconds stay whole numbers."""


def _shown(what: object) -> str:
    """Return a schema's text, shortened for a sentence."""
    text = json.dumps(what)
    return text if len(text) <= 80 else f"{text[:77]}..."
