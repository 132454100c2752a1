"""Names and types of PostgreSQL for a result table's columns, and the database's address."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.extras import require_package
from kafka_ratchet.spark_sink.stores.evolution import is_larger
from kafka_ratchet.spark_sink.stores.sql_types import Column, DatabaseTypes, type_of

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    import psycopg
    from psycopg import sql
    from pyspark.sql.types import StructType

    Database: TypeAlias = psycopg.Connection[tuple[Any, ...]]

MAX_NAME_BYTES = 63
"""Maximum bytes of a name: PostgreSQL cuts longer names without an error (NAMEDATALEN)."""

CONNECT_TIMEOUT_S = 10
"""Seconds to wait for a connection, unless the url states others: libpq would wait minutes for a silent host."""

PLAIN = {
    "string": "text",
    "long": "bigint",
    "integer": "integer",
    "short": "smallint",
    "byte": "smallint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
"""Types of PostgreSQL as format_type spells them, by Spark's type names in JSON."""

TYPES = DatabaseTypes("PostgreSQL", PLAIN, "numeric", "jsonb", frozenset({"byte"}))


def column_types(schema: StructType) -> list[Column]:
    """Return the table's columns in PostgreSQL's types; arrays, maps and structs become jsonb.

    Raises:
        OptionRefused: PostgreSQL does not support a column's name or type.
    """
    columns = [Column(_column_name(field.name), type_of(field.name, field.dataType, TYPES)) for field in schema.fields]
    if len({column.name for column in columns}) < len(columns):
        raise OptionRefused(
            f"two of the columns {', '.join(column.name for column in columns)} have the same name. Rename one of them"
        )
    return columns


INTEGERS = ("smallint", "integer", "bigint")
WIDENINGS = "smallint and integer become larger integers, real becomes double precision, and numeric gets more digits"


def widens(before: str, after: str) -> bool:
    """Return whether `ALTER COLUMN ... TYPE` can change the first type to the second without changing a value."""
    return is_larger(before, after, INTEGERS) or (before, after) == ("real", "double precision")


def names(columns: Iterable[str]) -> sql.Composed:
    """Return column names as SQL: quoted, and separated by commas."""
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, columns))


def table_parts(table: str) -> list[str]:
    """Split `table` or `schema.table` into its names.

    Raises:
        OptionRefused: the text is not a table name.
    """
    parts = table.split(".")
    for part in parts:
        # "%" would be read as a placeholder in statements with parameters.
        if not part or len(part.encode()) > MAX_NAME_BYTES or "\0" in part or "%" in part or len(parts) > 2:
            raise OptionRefused(
                f"table {table!r}: write table or schema.table, each of 1 to {MAX_NAME_BYTES} bytes, without '%'"
            )
    return parts


def conninfo(url: str, password: str | None) -> tuple[str, str]:
    """Return the url as an address for libpq, and the host and database in it for messages.

    Raises:
        OptionRefused: the url cannot be read, or psycopg is not installed. The message does not contain the url, which
            may have a password.
    """
    require_package("psycopg", "store postgres needs psycopg in the driver and in the executors")
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    if not url:
        raise OptionRefused("store postgres needs a url. Write: postgresql://user@host:5432/database")
    try:
        address = make_conninfo(url, **({} if password is None else {"password": password}))
        if "connect_timeout" not in conninfo_to_dict(address):
            address = make_conninfo(address, connect_timeout=CONNECT_TIMEOUT_S)
        parts = conninfo_to_dict(address)
    except psycopg.ProgrammingError:
        raise OptionRefused(
            "the url of the database cannot be read. Write: postgresql://user@host:5432/database"
        ) from None
    shown = f"{parts.get('host', 'this machine')}/{parts.get('dbname', parts.get('user', ''))}"
    return address, shown


def _column_name(name: str) -> str:
    if not name or len(name.encode()) > MAX_NAME_BYTES or "\0" in name:
        raise OptionRefused(
            f"column {name!r}: a name in PostgreSQL has 1 to {MAX_NAME_BYTES} bytes, without NUL. Rename the column"
        )
    return name
