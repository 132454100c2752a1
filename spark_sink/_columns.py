"""The columns of the result table, and how a Kafka record becomes a row of it."""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING

from spark_sink.errors import OptionRefused

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

RECORD_COLUMNS = ("_partition", "_offset", "_timestamp", "_key", "_value")
"""Columns that every row has: where it comes from, its key, and the value as it stood in Kafka.

With JSON columns `_value` is kept only where those columns do not hold the whole value: the text is not one JSON object
with fields of the declared types, or is not UTF-8. Such rows have null in every JSON column; `WHERE _value IS NOT NULL`
finds them.
"""

ILLEGAL_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Parquet columns of a Delta table may not have (Delta protocol, column mapping off)."""

LEAVES = frozenset(
    "string long integer short byte float double boolean binary date timestamp timestamp_ntz".split(),
)
"""Types, beside decimal, array, map and struct, that both from_json and Delta know; as Spark spells them in JSON."""


NUL_IN_JSON = r"(?<!\\)(?:\\\\)*\\u0000"
"""How a JSON text says NUL: an odd number of backslashes before u0000."""

FIRST_YEAR, LAST_YEAR = 1, 9999
"""Years that every store and every reader of it can say."""


def record_schema() -> StructType:
    """`RECORD_COLUMNS` with their types. Needs no running Spark."""
    from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType, TimestampType

    types = (IntegerType(), LongType(), TimestampType(), BinaryType(), BinaryType())
    return StructType([StructField(name, kind) for name, kind in zip(RECORD_COLUMNS, types, strict=True)])


def result_schema(columns: str | StructType | None) -> StructType:
    """Schema of the result table: the values' columns, if any, and `RECORD_COLUMNS`. Text needs a running Spark.

    Args:
        columns: the values' fields, as such or as Spark DDL ("user string, amount double"); None keeps values as bytes
            only.

    Raises:
        OptionRefused: the DDL cannot be read, or there is a name or a type that the table cannot hold.
    """
    from pyspark.sql.types import StructType

    record = record_schema()
    return record if columns is None else StructType(json_schema(columns).fields + record.fields)


def json_schema(columns: str | StructType) -> StructType:
    """Read the DDL of the JSON fields. Needs a running Spark, whose parser it is; raises as `result_schema` does."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if isinstance(columns, StructType):
        return checked(columns)
    try:
        schema = StructType.fromDDL(columns)
    except PySparkException as error:
        reason = str(error).splitlines()[0]
        raise OptionRefused(
            f"columns {columns!r} is not Spark DDL ({reason}). Write: user string, amount double"
        ) from None
    if not isinstance(schema, StructType) or not schema.fields:
        raise OptionRefused(f"columns {columns!r} names no column. Write: user string, amount double")
    return checked(schema)


def checked(schema: StructType) -> StructType:
    """The values' columns as the table has them: `nullable`, and none of them one of Ratchet's or there twice.

    Raises:
        OptionRefused: one cannot be a column.
    """
    taken = dict.fromkeys(RECORD_COLUMNS, "the name is one of Ratchet's own")
    for field in schema.fields:
        # Delta compares names without case; so must this.
        if reason := taken.get(field.name.lower(), ""):
            raise OptionRefused(f"column {field.name!r}: {reason}. Rename it in the events, or leave it out of columns")
        taken[field.name.lower()] = "there are two of that name (the table does not tell cases apart)"
    return nullable(schema)


def nullable(schema: StructType) -> StructType:
    """The same columns with null allowed everywhere: an event may miss any field, whatever the DDL says.

    Raises:
        OptionRefused: one has a name or a type that a table cannot hold.
    """
    from pyspark.sql.types import StructField, StructType

    for field in schema.fields:
        if not field.name or ILLEGAL_IN_NAMES.search(field.name):
            raise OptionRefused(
                f"column {field.name!r}: a name may not be empty or have any of ' ,;{{}}()=', tab, newline"
            )
    return StructType([StructField(field.name, _nullable(field.dataType, field.name)) for field in schema.fields])


def _nullable(data_type: DataType, where: str) -> DataType:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(data_type, StructType):
        return nullable(data_type)
    if isinstance(data_type, ArrayType):
        return ArrayType(_nullable(data_type.elementType, where))
    if isinstance(data_type, MapType):
        return MapType(_nullable(data_type.keyType, where), _nullable(data_type.valueType, where))
    if isinstance(data_type, DecimalType) or data_type.jsonValue() in LEAVES:
        return data_type
    raise OptionRefused(f"column {where!r}: the result table cannot hold type {data_type.simpleString()}. Use string")


def rows(records: DataFrame, columns: str | StructType | None, *, narrow: bool = False) -> DataFrame:
    """Turn the records of Spark's Kafka source into rows of the result table.

    Field names are compared with their case. A field that `columns` does not name is not kept; a field that an event
    does not have is null, and so is every JSON column of a record without a value.

    Args:
        records: what Spark's Kafka source read.
        columns: see `result_schema`.
        narrow: see `ResultStore.narrow`; values with what such a store cannot hold count as not parsed.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType

    record = [
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        F.col("key").alias("_key"),
    ]
    if columns is None:
        return records.select(*record, F.col("value").alias("_value"))
    schema = json_schema(columns)
    text = F.col("value").cast("string")
    # from_json reads the first JSON document of a text and ignores what follows. As the only element of an array
    # the value has to be whole: '{"a":1} x' and '{"a":1}{"a":2}' break the array, '{"a":1},{"a":2}' makes it longer.
    # The session reads all or nothing (spark.sql.json.enablePartialResults is off): a field of the wrong type makes
    # the result null instead of dropping the field.
    parsed = F.from_json(F.concat(F.lit("["), text, F.lit("]")), ArrayType(schema), {"allowSingleQuotes": "false"})
    # Invalid UTF-8 would come out of the parser with replacement characters, so that text counts as not parsed.
    whole = F.is_valid_utf8(text) & (F.size("parsed") == 1) & F.col("parsed")[0].isNotNull()
    if narrow:
        whole = whole & ~text.rlike(NUL_IN_JSON)
        sayable = _sayable(F.col("parsed")[0], schema)
        whole = whole if sayable is None else whole & sayable
    judged = records.withColumn("parsed", parsed).withColumn("event", F.when(whole, F.col("parsed")[0]))
    return judged.select(
        *[F.col("event").getField(field.name).alias(field.name) for field in schema.fields],
        *record,
        F.when(F.col("event").isNull(), F.col("value")).alias("_value"),
    )


def _sayable(value: Column, data_type: DataType) -> Column | None:
    """Whether all dates and times in the value lie in the years that every store can say; None: there can be none."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DateType, MapType, StructType, TimestampNTZType, TimestampType

    found: list[Column | None] = []
    if isinstance(data_type, DateType | TimestampType | TimestampNTZType):
        found = [F.year(value).between(FIRST_YEAR, LAST_YEAR)]
    elif isinstance(data_type, StructType):
        found = [_sayable(value.getField(field.name), field.dataType) for field in data_type.fields]
    elif isinstance(data_type, MapType):
        found = [_sayable(F.map_values(value), ArrayType(data_type.valueType))]  # JSON's keys are text
    elif isinstance(data_type, ArrayType) and _sayable(F.lit(None), data_type.elementType) is not None:
        element = data_type.elementType

        def all_sayable(each: Column) -> Column:
            sayable = _sayable(each, element)
            return F.lit(True) if sayable is None else sayable

        found = [F.forall(value, all_sayable)]
    judged = [F.coalesce(sayable, F.lit(True)) for sayable in found if sayable is not None]
    return reduce(lambda one, other: one & other, judged) if judged else None
