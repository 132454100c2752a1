"""Columns of the result table, and the conversion of Kafka records into its rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, cast

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.ddl import MAX_DIGITS, TYPES, Path, read_ddl, read_paths
from kafka_ratchet.spark_sink.rows.decoded import NO_VALUE, NOT_PARSED, PARSED
from kafka_ratchet.spark_sink.spark.dialect import is_valid_utf8

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, DecimalType, StructType

RECORD = ("_kafka_partition", "_kafka_offset")
"""Columns that identify the record of a row or a reject."""

RECORD_COLUMNS = (*RECORD, "_kafka_timestamp", "_kafka_key", "_kafka_value")
"""Columns of every row about its record: partition, offset, timestamp, key, and the value as in Kafka.

With JSON columns, `_kafka_value` is kept only for a value that does not parse: the text is not one JSON object with
fields of the declared types, or is not UTF-8. Such rows have null in every JSON column;
`WHERE _kafka_value IS NOT NULL` finds them. With `keep_value`, `_kafka_value` is always kept.
"""

REJECT_REASON = "_reason"
"""Column of the rejects of a job that judges a raw topic itself: the reason for the rejection. It is a worker's reason
from `ratchet-reason`, or `NOT_PARSED_REASON` for a new record with a value that does not fit the columns."""
NOT_PARSED_REASON = "value-not-parsed"
"""Reason for a value that does not parse. A worker forwards such a record without looking at its value."""

STATE = "_ratchet_state"
"""Column of the rows while they are read; no table has it. Values: `PARSED`, `NOT_PARSED` or `NO_VALUE`."""

DELETED = "_ratchet_deleted"
"""Column of rows before their commit to a table with a key; no table has it. True deletes the row of the key."""

ILLEGAL_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Parquet columns of a Delta table may not have. (Delta protocol, without column mapping.)"""

LEAVES = frozenset(TYPES.values())
"""Simple types known to from_json and to Delta, by Spark's names in JSON: all but decimal, array, map and struct."""


NUL_IN_JSON = r"(?<!\\)(?:\\\\)*\\u0000"
"""Pattern of NUL in a JSON text: an odd number of backslashes before u0000."""

LOCAL_TIME = r"^\s*[+-]?[0-9]{4,6}-[0-9]{1,2}(?:-[0-9]{1,2}(?:[T ][0-9]{1,2}(?::[0-9]{1,2}){0,2}(?:\.[0-9]*)?)?)?\s*$"
"""Pattern of times without a zone."""

CLOSES_EARLY = r"\}\s*,\s*null\s*\]"
"""Pattern of malformed texts that would look whole: `rows` parses each text within an array, and these texts close that
array early. Few other texts match the pattern."""

HOUR_FIRST = r"(?:T(?:GMT)*+[0-9]|[0-9](?:[0-9]|GMT)*+:)"
"""Pattern of the beginning of a time without a day, which Spark takes for a time of today. Spark ignores each GMT in
the text. Java's loops over a choice overflow the stack at long texts unless the loops are possessive (`*+`)."""

MISREAD = {
    # Seconds that overflow 64 bits as microseconds; times without a day, maybe after characters that Spark trims.
    "timestamp": (
        r"^-?(?:[0-9]{14,}|9(?:2[3-9]|[3-9][0-9])[0-9]{10})$|^(?:[\x00-\x20\x7f]|GMT)*+" + HOUR_FIRST,
        r'[0-9]{13}|"(?:[\x00-\x20\x7f]|\\[bfnrt]|GMT)*+' + HOUR_FIRST + r"|\\u00",
    ),
    # Days since 1970, in digits of any script; four to six digits of ASCII are a year.
    "date": (r"^[+-]?(?![0-9]{4,6}$)\p{Nd}+$", r'"[+-]?(?![0-9]{4,6}")\p{Nd}+"|\\u'),
    # Spark takes the comma in "1,5" for a thousands mark, and the whole for 15.
    "decimal": (r",", r'"(?=[^"]*\p{Nd})[-+.eE\p{Nd}]*,[-+.,eE\p{Nd}]*"|\\u'),
}
"""Two patterns for each type with values that Spark misreads. The first matches a misread value. The second matches
every JSON text with such a value, and few other texts."""

NUMBER_IN_JSON = r'(?s)\G((?:[^"0-9-]|-(?![0-9])|"(?:[^"\\]|\\.)*+")*+)(-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)'
"""Pattern of a number in a JSON text, with all text since the number before it. Texts in quotes are passed over."""

WITH_EXPONENT = r"^[+-]?([0-9]*)\.?([0-9]*)[eE](-?)\+?([0-9]{1,4})$"
"""Pattern of a number with an exponent that a decimal can have: whole digits, fraction, sign and exponent."""

FIRST_YEAR, LAST_YEAR = 1, 9999
"""Years that every store supports, and every reader of a store."""

FAR_YEAR = 290_000
"""Greatest year, before or after Christ, of times that every store can hold. DuckDB reads the ends of its types as
infinity."""


SHORT_KEYS = 3
"""Value of `ResultStore.restricted_values` for a store with an index, which allows no key above `LONGEST_KEY` bytes."""

LONGEST_KEY = 2_400
"""Maximum bytes of all texts and binary values of a key. PostgreSQL's index takes 2,704 bytes of all values."""

FINITE_TOO = 2
"""Value of `ResultStore.restricted_values` for a store without NaN and infinity."""


def record_schema() -> StructType:
    """Return `RECORD_COLUMNS` with their types. Needs no running Spark."""
    from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType, TimestampType

    types = (IntegerType(), LongType(), TimestampType(), BinaryType(), BinaryType())
    return StructType([StructField(name, kind) for name, kind in zip(RECORD_COLUMNS, types, strict=True)])


def rejects_schema(*, judged: bool) -> StructType:
    """Return the columns of the rejects table.

    Args:
        judged: True if the job deduplicates a raw topic, so that rejects have a reason.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    record = record_schema()
    return StructType([*record.fields, StructField(REJECT_REASON, StringType())]) if judged else record


def result_schema(columns: str | StructType | None) -> StructType:
    """Return the schema of the result table: the values' columns, if any, and `RECORD_COLUMNS`.

    Args:
        columns: the values' fields, as a schema or as Spark DDL ("user string, amount double"); None keeps values as
            bytes only.

    Raises:
        OptionRefused: the DDL cannot be read, or the table cannot hold a name or a type.
    """
    from pyspark.sql.types import StructType

    record = record_schema()
    return record if columns is None else StructType(json_schema(columns).fields + record.fields)


def json_schema(columns: str | StructType) -> StructType:
    """Return the fields of the JSON values, from a schema or from DDL.

    Needs no running Spark; raises as `result_schema` does.
    """
    return checked(read_ddl(columns) if isinstance(columns, str) else columns)


def value_schema(columns: StructType, paths: Mapping[str, Path]) -> StructType:
    """Return the schema of the JSON fields that the columns read.

    A field with a path of several names is inside objects of these names.

    Args:
        columns: the table's columns.
        paths: path of each column that reads a field of another name.

    Raises:
        OptionRefused: two columns read the same field, fields that differ in case only, or an object and a field within
            it.
    """
    from pyspark.sql.types import StructField, StructType

    whole: dict[Path, str] = {}
    spelled: dict[Path, Path] = {}
    for field in columns.fields:
        path = paths.get(field.name, (field.name,))
        for depth in range(1, len(path) + 1):
            same = spelled.setdefault(tuple(name.lower() for name in path[:depth]), path[:depth])
            if same != path[:depth]:
                raise OptionRefused(
                    f"column {field.name} reads field {'.'.join(path[:depth])}, and another column reads "
                    f"{'.'.join(same)}: Spark ignores upper and lower case in names. Leave one out"
                )
        for other, column in whole.items():
            if other == path[: len(other)] or path == other[: len(path)]:
                shorter = path if len(path) < len(other) else other
                raise OptionRefused(
                    f"columns {column} and {field.name} both read field {'.'.join(shorter)}. Leave one out, or name "
                    "the fields within it one by one (FROM)"
                )
        whole[path] = field.name

    def tree(prefix: Path) -> StructType:
        fields: dict[str, DataType] = {}
        for path, column in whole.items():
            if path[: len(prefix)] == prefix and path[len(prefix)] not in fields:
                is_leaf = len(path) == len(prefix) + 1
                fields[path[len(prefix)]] = columns[column].dataType if is_leaf else tree(path[: len(prefix) + 1])
        return StructType([StructField(name, data_type) for name, data_type in fields.items()])

    return tree(())


def checked(schema: StructType) -> StructType:
    """Return the values' columns as nullable columns of the table, with unique and unreserved names.

    Raises:
        OptionRefused: a field cannot be a column.
    """
    taken = dict.fromkeys((*RECORD_COLUMNS, STATE, DELETED), "the name is one of Ratchet's own")
    for field in schema.fields:
        # Delta compares names without case; so must this.
        if reason := taken.get(field.name.lower(), ""):
            raise OptionRefused(f"column {field.name!r}: {reason}. Rename it in the events, or leave it out of columns")
        taken[field.name.lower()] = "there are two of that name (the table ignores upper and lower case)"
    return nullable(schema)


def nullable(schema: StructType) -> StructType:
    """Return the same columns with null allowed everywhere, because an event may miss any field.

    Raises:
        OptionRefused: a field has a name or a type that a table cannot hold.
    """
    from pyspark.sql.types import StructField, StructType

    for field in schema.fields:
        if not field.name or ILLEGAL_IN_NAMES.search(field.name):
            raise OptionRefused(
                f"column {field.name!r}: a name must not be empty, and must not contain any of ' ,;{{}}()=', tab, "
                "newline"
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


def rows(
    records: DataFrame,
    columns: str | StructType | None,
    *,
    restricted_values: int = False,
    keep_value: bool = False,
    original: str = "value",
    paths: Mapping[str, Path] | None = None,
) -> DataFrame:
    """Turn records into rows of the result table, with a last column `STATE`.

    Field names are compared with their case. A field that `columns` does not name is not kept. A column is null if the
    event lacks the field. All JSON columns are null if the record has no value, or a value that does not parse.

    Args:
        records: records of Spark's Kafka source.
        columns: see `result_schema`.
        restricted_values: see `ResultStore.restricted_values`. A value that the store cannot hold counts as not parsed.
        keep_value: True keeps `_kafka_value` in every row, even if the columns hold the whole value.
        original: column with the whole value, if the column `value` has only the part to parse.
        paths: paths of columns for fields within objects, see `value_schema`.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, StringType

    record = [
        F.col("partition").alias("_kafka_partition"),
        F.col("offset").alias("_kafka_offset"),
        F.col("timestamp").alias("_kafka_timestamp"),
        F.col("key").alias("_kafka_key"),
    ]
    value = F.col("value")
    if columns is None:
        state = F.when(value.isNull(), NO_VALUE).otherwise(PARSED)
        return records.select(*record, value.alias("_kafka_value"), state.alias(STATE))
    table = json_schema(columns)
    if paths is None:
        paths = read_paths(columns) if isinstance(columns, str) else {}
    schema = value_schema(table, paths)
    text = value.cast("string")
    # from_json reads the first JSON document of a text and ignores what follows. As the first of two elements of an
    # array the value has to be whole: '{"a":1} x' and '{"a":1}{"a":2}' break the array, '{"a":1},{"a":2}' makes it
    # longer, '{"a":1}] x' shorter. Only '{"a":1},null] x' does not; alone in an array it makes two elements.
    # The session reads all or nothing (spark.sql.json.enablePartialResults is off): a field of the wrong type makes
    # the result null instead of dropping the field.
    wanted = ArrayType(_read_as(schema))
    strict = {"allowSingleQuotes": "false"}
    parsed = F.from_json(F.concat(F.lit("["), text, F.lit(",null]")), wanted, strict)
    alone = F.from_json(F.concat(F.lit("["), text, F.lit("]")), ArrayType(StringType()), strict)
    is_one = (F.size("parsed") == 2) & F.get("parsed", F.lit(1)).isNull()
    is_one = is_one & F.when(text.rlike(CLOSES_EARLY), F.size(alone) == 1).otherwise(True)
    # `get`, not `[0]`: of an empty value the array has no element, and in ANSI mode (the default since Spark 4) that
    # ends the job. A test of the size first does not help: Spark computes twice-needed expressions ahead.
    first = F.get("parsed", F.lit(0))
    # Invalid UTF-8 would come out of the parser with replacement characters, so that text counts as not parsed.
    whole = is_valid_utf8(value) & is_one & first.isNotNull()
    whole = whole & ~text.rlike(NUL_IN_JSON) if restricted_values else whole
    fits = _every(first, schema, _unchanged(restricted_values, text))
    whole = whole if fits is None else whole & fits
    judged = records.withColumn("parsed", parsed)
    if misread := _leaves(schema, MISREAD.keys(), lambda leaf: leaf):
        judged = judged.withColumn("texts", _texts(text, schema))
        as_meant = _every(F.col("texts"), misread, _as_meant)
        whole = whole if as_meant is None else whole & as_meant
    # This cast cannot fail, whatever the session does about failures, because `_every` has checked the value.
    judged = judged.withColumn("event", F.when(whole, first.cast(schema)))
    event, kept = F.col("event"), F.col(original)
    return judged.select(
        *[
            reduce(lambda within, name: within.getField(name), paths.get(name, (name,)), event).alias(name)
            for name in table.names
        ],
        *record,
        (kept if keep_value else F.when(event.isNull(), kept)).alias("_kafka_value"),
        F.when(kept.isNull(), NO_VALUE).when(event.isNull(), NOT_PARSED).otherwise(PARSED).alias(STATE),
    )


def _read_as(data_type: DataType) -> DataType:
    """Return the type for from_json that changes no value of a column.

    from_json would round the excess places of a decimal, and would turn the byte 200 into -56. A decimal gets as many
    places as its digits leave room for; `_has_more` finds the numbers with more. Within an array, a malformed time
    without a zone would end the job.
    """
    from pyspark.sql.types import (
        ArrayType,
        ByteType,
        DecimalType,
        MapType,
        ShortType,
        StringType,
        StructField,
        StructType,
        TimestampNTZType,
    )

    if isinstance(data_type, StructType):
        return StructType([StructField(field.name, _read_as(field.dataType)) for field in data_type.fields])
    if isinstance(data_type, ArrayType):
        return ArrayType(_read_as(data_type.elementType))
    if isinstance(data_type, MapType):
        return MapType(data_type.keyType, _read_as(data_type.valueType))  # JSON's keys are text
    if isinstance(data_type, DecimalType):
        # As many places as the digits before the point leave room for.
        return DecimalType(MAX_DIGITS, MAX_DIGITS - (data_type.precision - data_type.scale))
    if isinstance(data_type, TimestampNTZType):
        return StringType()
    return ShortType() if isinstance(data_type, ByteType) else data_type


def _leaves(data_type: DataType, names: Collection[str], replaced: Callable[[DataType], DataType]) -> DataType | None:
    """Return a type that keeps only some of its simple types, each replaced; None: no such type is within.

    Args:
        data_type: type of a column, or of several as a struct.
        names: Spark's names of the simple types to keep.
        replaced: function that returns the replacement of a simple type.
    """
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(data_type, StructType):
        within = [(field.name, _leaves(field.dataType, names, replaced)) for field in data_type.fields]
        found = [StructField(name, each) for name, each in within if each is not None]
        return StructType(found) if found else None
    if isinstance(data_type, ArrayType):
        element = _leaves(data_type.elementType, names, replaced)
        return None if element is None else ArrayType(element)
    if isinstance(data_type, MapType):
        value = _leaves(data_type.valueType, names, replaced)
        return None if value is None else MapType(data_type.keyType, value)
    return replaced(data_type) if data_type.typeName() in names else None


def _texts(text: Column, schema: StructType) -> Column:
    """Return the misreadable values of a JSON text as texts; null if the text certainly lacks such values."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    texts = cast("StructType", _leaves(schema, MISREAD.keys(), lambda leaf: StringType()))
    present = [may_be for name, (_, may_be) in MISREAD.items() if _leaves(schema, {name}, lambda leaf: leaf)]
    exact = text
    if (places := _read_places(schema)) is not None:
        present.append(_may_have_more(places))
        # from_json would return a number with a point as text of a double, which has 17 digits at most.
        exact = F.regexp_replace(text, NUMBER_IN_JSON, '$1"$2"')
    return F.when(text.rlike("|".join(present)), F.from_json(exact, texts, {"allowSingleQuotes": "false"}))


def _as_meant(text: Column, data_type: DataType) -> Column | None:
    from pyspark.sql.types import DecimalType

    odd = MISREAD.get(data_type.typeName())
    if odd is None:
        return None
    as_meant = ~text.rlike(odd[0])
    return as_meant & ~_has_more(text, data_type.scale) if isinstance(data_type, DecimalType) else as_meant


def _read_places(schema: StructType) -> int | None:
    """Return the fewest places that `_read_as` gives to a decimal; None: the schema has no decimal."""
    found: list[int] = []

    def note(leaf: DataType) -> DataType:
        found.append(cast("DecimalType", _read_as(leaf)).scale)
        return leaf

    _leaves(schema, {"decimal"}, note)
    return min(found, default=None)


def _may_have_more(places: int) -> str:
    """Return a pattern of JSON texts with decimals of more places; few other texts match."""
    fraction = rf"\.\p{{Nd}}{{{places}}}0*+[\p{{Nd}}&&[^0]]"
    exponent = r'[\[:,"\s][-+.\p{Nd}]*+[eE]-\p{Nd}++[\s,\]}"]'
    return f"{fraction}|{exponent}"


def _has_more(number: Column, places: int) -> Column:
    """Return the condition that a decimal, as text, has more than some places."""
    from pyspark.sql import functions as F

    whole, fraction, sign, exponent = (F.regexp_extract(number, WITH_EXPONENT, group) for group in (1, 2, 3, 4))
    shift = F.concat(F.lit("0"), exponent).cast("int")
    digits = F.concat(whole, fraction)
    significant = F.regexp_replace(digits, "0+$", "")
    used = F.length(fraction) - F.length(digits) + F.length(significant) + F.when(sign == "-", shift).otherwise(-shift)
    plain = number.rlike(rf"^[^eE.]*\.\p{{Nd}}{{{places}}}0*[^0eE][^eE]*$")
    # An exponent of five digits is beyond every decimal, except for zero.
    scaled = ~number.rlike(WITH_EXPONENT) | ((significant != "") & (used > places))
    return F.when(number.rlike("[eE]"), scaled).otherwise(plain)


def _unchanged(restricted_values: int, text: Column) -> Callable[[Column, DataType], Column | None]:
    """Return the `test` for `_every` that a column holds a JSON value unchanged.

    Args:
        restricted_values: if set, dates and times must lie in the years of every store; with `FINITE_TOO`, numbers must
            be finite.
        text: the JSON text that the value comes from.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import (
        ByteType,
        DateType,
        DecimalType,
        DoubleType,
        FloatType,
        MapType,
        TimestampNTZType,
        TimestampType,
    )

    years = (FIRST_YEAR, LAST_YEAR) if restricted_values else (-FAR_YEAR, FAR_YEAR)

    def test(value: Column, data_type: DataType) -> Column | None:
        if isinstance(data_type, DateType | TimestampType):
            return F.year(value).between(*years)
        if isinstance(data_type, TimestampNTZType):  # still as text; the session's zone is UTC
            is_time = F.coalesce(F.year(F.try_to_timestamp(value)).between(*years), F.lit(False))
            return value.isNull() | (value.rlike(LOCAL_TIME) & is_time)
        if isinstance(data_type, FloatType | DoubleType):
            is_infinite = F.abs(value) == F.lit(float("inf"))
            if restricted_values == FINITE_TOO:
                return ~F.isnan(value) & ~is_infinite
            return ~is_infinite | text.rlike("(?i)inf")  # otherwise the number is too large
        if isinstance(data_type, ByteType):
            return value.between(-128, 127)
        if isinstance(data_type, DecimalType):
            return value % F.lit(Decimal(1).scaleb(-data_type.scale)) == 0  # no more places than the column has
        if isinstance(data_type, MapType):
            keys = F.map_keys(value)
            return F.size(F.array_distinct(keys)) == F.size(keys)
        return None

    return test


def _every(value: Column, data_type: DataType, test: Callable[[Column, DataType], Column | None]) -> Column | None:
    """Return the condition that a value and all values within it pass a test; None if nothing is tested.

    Null passes.

    Args:
        value: a value of the type `_read_as(data_type)`, or with text in place of its simple types.
        data_type: the column's type.
        test: returns the test for one value of a type, or None if every value passes.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    found = [test(value, data_type)]
    if isinstance(data_type, StructType):
        found += [_every(value.getField(field.name), field.dataType, test) for field in data_type.fields]
    elif isinstance(data_type, MapType):
        found += [_every(F.map_values(value), ArrayType(data_type.valueType), test)]
    elif isinstance(data_type, ArrayType) and _every(F.lit(None), data_type.elementType, test) is not None:
        element = data_type.elementType

        def passes(each: Column) -> Column:
            within = _every(each, element, test)
            return F.lit(True) if within is None else within

        found += [F.forall(value, passes)]
    tested = [F.coalesce(each, F.lit(True)) for each in found if each is not None]
    return reduce(lambda one, other: one & other, tested) if tested else None
