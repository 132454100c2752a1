"""Names and types of MySQL for the columns of a result."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.stores.evolution import is_larger
from kafka_ratchet.spark_sink.stores.mysql.connection import quoted
from kafka_ratchet.spark_sink.stores.sql_types import Column, Types, type_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MAX_NAME = 64
"""Characters that MySQL allows in a name."""

KEY_COLUMN = "ratchet_key_"
"""Prefix of a column that stands for a key; readers need not know its text."""

TOKEN = "ratchet_token"  # noqa: S105 - a column
"""Column of staging tables for the token of the task's attempt."""

JSON, UTC = "JSON", "UTC"
"""Comments of columns with an ambiguous type: text for JSON; times of day in UTC."""

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
"""Types of Spark, by its names in JSON, with MySQL's types and their comments."""

TYPES = Types("MySQL", PLAIN, "decimal", f"longtext {JSON}", frozenset({"byte", "float"}))

WIDTH = re.compile(r"^((?:small|big)?int)\(\d+\)")
"""Pattern of a whole number's display width, which MariaDB has and MySQL no longer."""


def column_types(schema: StructType) -> list[Column]:
    """Return the table's columns; arrays, maps and structs become text with JSON.

    Raises:
        OptionRefused: a name or a type has no counterpart.
    """
    columns = [Column(_column_name(field.name), type_of(field.name, field.dataType, TYPES)) for field in schema.fields]
    if len({column.name.lower() for column in columns}) < len(columns):
        raise OptionRefused(
            f"two columns have one name ({', '.join(column.name for column in columns)}): MySQL does not tell cases "
            "apart"
        )
    return columns


def described(name: str, column_type: str, comment: str) -> Column:
    """Return a column as information_schema has it."""
    plain = WIDTH.sub(r"\1", column_type.lower())
    return Column(name, f"{plain} {comment}" if comment in {JSON, UTC} else plain)


def definition(column: Column, collation: str) -> str:
    """Return a column for CREATE or ALTER TABLE.

    The type and its comment come from this module.
    """
    plain, _, comment = column.type.partition(" ")
    collated = f" CHARACTER SET utf8mb4 COLLATE {collation}" if plain == "longtext" else ""
    return f"{quoted(column.name)} {plain}{collated} NULL" + (f" COMMENT '{comment}'" if comment else "")


INTEGERS = ("smallint", "int", "bigint")
WIDENINGS = "smallint, int and bigint become larger ones of these, and decimal gets more digits"


def widens(before: str, after: str) -> bool:
    """Return whether the second type has each value of the first, and `MODIFY COLUMN` can change it."""
    return is_larger(before, after, INTEGERS)


def names(columns: Iterable[str], of: str = "") -> str:
    """Join columns, quoted, with commas; of: the statement's name for their table."""
    return ", ".join((of and f"{of}.") + quoted(column) for column in columns)


def key_expression(key: tuple[str, ...], of: str = "") -> str:
    """Return the expression for these columns' values: 32 bytes, equal for equal values including null.

    No index could hold texts of any length, and an index takes null for no value. Each column is hashed alone, as
    bytes, so that no collation matters and no two lists of values look the same.
    """
    each = [
        f"IFNULL(CONCAT(X'76', SHA2(CAST({(of and f'{of}.') + quoted(name)} AS BINARY), 256)), X'6e')" for name in key
    ]
    return f"UNHEX(SHA2(CONCAT({', '.join(each)}), 256))"


def table_parts(table: str, database: str) -> tuple[str, str]:
    """Split `table` or `database.table`; the default is the database of the url.

    Raises:
        OptionRefused: the text is no name of a table, or there is no database.
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


def comment_literal(text: str) -> str:
    """Return a text for COMMENT, which takes no hexadecimal digits.

    sql_mode is known, so that a backslash is an escape.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
