"""Names and types of MySQL for the columns of a result table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.stores.evolution import is_larger
from kafka_ratchet.spark_sink.stores.mysql.connection import quoted
from kafka_ratchet.spark_sink.stores.sql_types import Column, DatabaseTypes, type_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MAX_NAME = 64
"""Maximum number of characters in a name of MySQL."""

KEY_COLUMN = "ratchet_key_"
"""Name prefix of the generated column that represents a key; readers can ignore the column."""

TOKEN = "ratchet_token"  # noqa: S105 - a column
"""Column of staging tables with the token of the task's attempt."""

JSON, UTC = "JSON", "UTC"
"""Comments of columns with an ambiguous type: text that contains JSON; times in UTC."""

PLAIN = {
    "string": "longtext",
    "long": "bigint",
    "integer": "int",
    "short": "smallint",
    "byte": "smallint",
    "float": "double",  # a reader gets only six digits of MySQL's float
    "double": "double",
    "boolean": "tinyint(1)",
    "binary": "longblob",
    "date": "date",
    "timestamp": f"datetime(6) {UTC}",  # MySQL's timestamp ends in 2038
    "timestamp_ntz": "datetime(6)",
}
"""Types of MySQL with their comments, by Spark's type names in JSON."""

TYPES = DatabaseTypes("MySQL", PLAIN, "decimal", f"longtext {JSON}", frozenset({"byte", "float"}))

WIDTH = re.compile(r"^((?:small|big)?int)\(\d+\)")
"""Pattern of an integer's display width, which MariaDB still reports and MySQL does not."""


def column_types(schema: StructType) -> list[Column]:
    """Return the table's columns in MySQL's types; arrays, maps and structs become text with JSON.

    Raises:
        OptionRefused: MySQL does not support a column's name or type.
    """
    columns = [Column(_column_name(field.name), type_of(field.name, field.dataType, TYPES)) for field in schema.fields]
    if len({column.name.lower() for column in columns}) < len(columns):
        raise OptionRefused(
            f"two of the columns {', '.join(column.name for column in columns)} have the same name: MySQL ignores "
            "upper and lower case. Rename one of them"
        )
    return columns


def described(name: str, column_type: str, comment: str) -> Column:
    """Return the column that information_schema describes by this name, type and comment."""
    plain = WIDTH.sub(r"\1", column_type.lower())
    return Column(name, f"{plain} {comment}" if comment in {JSON, UTC} else plain)


def definition(column: Column, collation: str) -> str:
    """Return the SQL definition of a column for CREATE or ALTER TABLE.

    The type and its comment come from this module.
    """
    plain, _, comment = column.type.partition(" ")
    collated = f" CHARACTER SET utf8mb4 COLLATE {collation}" if plain == "longtext" else ""
    return f"{quoted(column.name)} {plain}{collated} NULL" + (f" COMMENT '{comment}'" if comment else "")


INTEGERS = ("smallint", "int", "bigint")
WIDENINGS = "smallint and int become larger integers, and decimal gets more digits"


def widens(before: str, after: str) -> bool:
    """Return whether `MODIFY COLUMN` can change the first type to the second without loss."""
    return is_larger(before, after, INTEGERS)


def names(columns: Iterable[str], of: str = "") -> str:
    """Return column names as SQL: quoted, and separated by commas.

    Args:
        columns: names of the columns.
        of: alias of their table, to precede each name; empty: none.
    """
    return ", ".join((of and f"{of}.") + quoted(column) for column in columns)


def key_expression(key: tuple[str, ...], of: str = "") -> str:
    """Return the SQL expression that identifies the values of a key: 32 bytes, equal for equal values including null.

    A unique index over the columns themselves would limit the length of texts and allow several rows with null. Each
    column is hashed alone, as bytes, so that no collation matters and different lists of values cannot look the same.
    """
    each = [
        f"IFNULL(CONCAT(X'76', SHA2(CAST({(of and f'{of}.') + quoted(name)} AS BINARY), 256)), X'6e')" for name in key
    ]
    return f"UNHEX(SHA2(CONCAT({', '.join(each)}), 256))"


def table_parts(table: str, database: str) -> tuple[str, str]:
    """Split `table` or `database.table` into database and table; the default is the database of the url.

    Raises:
        OptionRefused: the text is not a table name, or no database is named.
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
            f"column {name!r}: MySQL does not allow this name, or Ratchet uses it. Rename the column: 1 to {MAX_NAME} "
            f"characters up to U+FFFF, no NUL, no space at the end, not {TOKEN}, and not {KEY_COLUMN} at the beginning"
        )
    return name


def _is_name(name: str) -> bool:
    if not name or len(name) > MAX_NAME or name.endswith(" "):
        return False
    return all("\0" < character <= "\uffff" and not "\ud800" <= character <= "\udfff" for character in name)


def comment_literal(text: str) -> str:
    """Return a text as SQL for COMMENT, which does not accept hexadecimal digits.

    The job sets sql_mode itself, so a backslash is known to be an escape.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
