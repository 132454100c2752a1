"""Names and types of MySQL for the columns of a result."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.stores.mysql.connection import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

MAX_NAME = 64
"""Characters that MySQL allows in a name."""

KEY_COLUMN = "ratchet_key_"
"""How the column begins that stands for a key; its text is no part of the table for readers."""

TOKEN = "ratchet_token"  # noqa: S105 - a column
"""Column of staging tables: which attempt of which task has written the row."""

JSON, UTC = "JSON", "UTC"
"""What a column's comment says where the type alone does not: text that is JSON; times of day in UTC."""

PLAIN = {
    "string": "longtext",
    "long": "bigint",
    "integer": "int",
    "short": "smallint",
    "byte": "smallint",
    "float": "double",  # of MySQL's float a reader gets six digits
    "double": "double",
    "boolean": "tinyint(1)",
    "binary": "longblob",
    "date": "date",
    "timestamp": f"datetime(6) {UTC}",  # MySQL's timestamp ends in 2038
    "timestamp_ntz": "datetime(6)",
}
"""Spark's types, as it spells them in JSON, and MySQL's, with the comment behind them."""

DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
WIDTH = re.compile(r"^((?:small|big)?int)\(\d+\)")
"""MariaDB says how wide whole numbers are shown, MySQL no longer does."""


class Column(NamedTuple):
    """A column of the result table."""

    name: str
    type: str
    """With the comment behind it, where that is one of ours."""


def column_types(schema: StructType) -> list[Column]:
    """The table's columns; arrays, maps and structs become text that is JSON.

    Raises:
        OptionRefused: a name or a type has no counterpart.
    """
    columns = [Column(_column_name(field.name), _type(field.name, field.dataType)) for field in schema.fields]
    if len({column.name.lower() for column in columns}) < len(columns):
        raise OptionRefused(
            f"two columns have one name ({', '.join(column.name for column in columns)}): MySQL does not tell cases "
            "apart"
        )
    return columns


def spark_schema(columns: list[Column]) -> StructType:
    """Spark's columns for those of a table; the other way round than `column_types`.

    Raises:
        OptionRefused: a type stands for several of Spark's.
    """
    from pyspark.sql.types import DecimalType, StructField, StructType

    spark = {mysql: name for name, mysql in PLAIN.items() if name not in {"byte", "float"}}
    described: list[StructField] = []
    for column in columns:
        digits = DECIMAL.fullmatch(column.type)
        if digits:
            described.append(StructField(column.name, DecimalType(int(digits[1]), int(digits[2]))))
        elif column.type in spark:
            field = {"name": column.name, "type": spark[column.type], "nullable": True, "metadata": {}}
            described.append(StructField.fromJson(field))
        else:
            raise OptionRefused(
                f"columns: the table has column {column.name!r} of type {column.type}, which does not say what is in "
                "it. Write the columns down"
            )
    return StructType(described)


def described(name: str, column_type: str, comment: str) -> Column:
    """A column as information_schema has it."""
    plain = WIDTH.sub(r"\1", column_type.lower())
    return Column(name, f"{plain} {comment}" if comment in {JSON, UTC} else plain)


def definition(column: Column, collation: str) -> str:
    """A column for CREATE or ALTER TABLE. The type is one of ours, as is what stands behind it."""
    plain, _, comment = column.type.partition(" ")
    collated = f" CHARACTER SET utf8mb4 COLLATE {collation}" if plain == "longtext" else ""
    return f"{quoted(column.name)} {plain}{collated} NULL" + (f" COMMENT '{comment}'" if comment else "")


INTEGERS = ("smallint", "int", "bigint")
WIDENINGS = "smallint, int and bigint become larger ones of these, and decimal gets more digits"


def widens(before: str, after: str) -> bool:
    """Whether each value of the first type is one of the second, and `MODIFY COLUMN` knows it."""
    if before in INTEGERS and after in INTEGERS:
        return INTEGERS.index(before) < INTEGERS.index(after)
    old, new = DECIMAL.fullmatch(before), DECIMAL.fullmatch(after)
    if old and new:
        digits, places, more_digits, more_places = map(int, (*old.groups(), *new.groups()))
        return more_places >= places and more_digits - more_places >= digits - places
    return False


def names(columns: list[Column], of: str = "") -> str:
    """Their names, quoted, with commas between; of a table that the statement calls so."""
    return ", ".join((of and f"{of}.") + quoted(column.name) for column in columns)


def key_expression(key: tuple[str, ...], of: str = "") -> str:
    """What stands for the values of these columns: 32 bytes that are the same for the same values, null included.

    A text has no length that an index could hold, and an index takes null for no value. Each column is hashed by
    itself, as bytes, so that no collation is asked and no two lists of values look the same.
    """
    each = [
        f"IFNULL(CONCAT(X'76', SHA2(CAST({(of and f'{of}.') + quoted(name)} AS BINARY), 256)), X'6e')" for name in key
    ]
    return f"UNHEX(SHA2(CONCAT({', '.join(each)}), 256))"


def table_parts(table: str, database: str) -> tuple[str, str]:
    """`table` or `database.table` as its parts; without one, the database of the url.

    Raises:
        OptionRefused: that is no name of a table, or there is no database.
    """
    first, dot, second = table.partition(".")
    found = (first, second) if dot else (database, first)
    if not found[0]:
        raise OptionRefused(
            f"table {table!r}: no database is named. Write database.table, or end the url with /database"
        )
    for part in found:
        if not _is_name(part) or "." in part or len(part) > MAX_NAME - len("_rejects"):
            raise OptionRefused(
                f"table {table!r}: write table or database.table, each of 1 to {MAX_NAME - len('_rejects')} "
                "characters of up to U+FFFF, and no space at the end"
            )
    return found


def _column_name(name: str) -> str:
    if not _is_name(name) or name.lower().startswith(KEY_COLUMN) or name.lower() == TOKEN:
        raise OptionRefused(
            f"column {name!r}: MySQL has names of 1 to {MAX_NAME} characters of up to U+FFFF, without NUL and without "
            f"a space at the end, and {KEY_COLUMN}... and {TOKEN} are Ratchet's own"
        )
    return name


def _is_name(name: str) -> bool:
    if not name or len(name) > MAX_NAME or name.endswith(" "):
        return False
    return all("\0" < character <= "\uffff" and not "\ud800" <= character <= "\udfff" for character in name)


def _type(name: str, data_type: DataType) -> str:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(data_type, DecimalType):
        return f"decimal({data_type.precision},{data_type.scale})"
    if isinstance(data_type, ArrayType | MapType | StructType):
        return f"longtext {JSON}"
    plain = PLAIN.get(str(data_type.jsonValue()))
    if plain is None:
        raise OptionRefused(f"column {name!r}: MySQL cannot hold type {data_type.simpleString()}. Use string")
    return plain


def comment_literal(text: str) -> str:
    """A text for COMMENT, which takes no hexadecimal digits; sql_mode is known, so that a backslash is an escape."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
