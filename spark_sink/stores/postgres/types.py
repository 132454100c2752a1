"""Names and types of PostgreSQL for the columns of a result, and the address of the database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.extras import require_package
from kafka_ratchet.spark_sink.stores.evolution import is_larger
from kafka_ratchet.spark_sink.stores.sql_types import Column, Types, type_of

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    import psycopg
    from psycopg import sql
    from pyspark.sql.types import StructType

    Database: TypeAlias = psycopg.Connection[tuple[Any, ...]]

MAX_NAME_BYTES = 63
"""Longest name in bytes: PostgreSQL cuts longer ones off without an error (NAMEDATALEN)."""

CONNECT_TIMEOUT_S = 10
"""Seconds to wait for a connection, unless the url sets them: libpq waits for a silent host for minutes."""

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
"""Types of Spark, by its names in JSON, with PostgreSQL's, in the spelling of format_type."""

TYPES = Types("PostgreSQL", PLAIN, "numeric", "jsonb", frozenset({"byte"}))


def column_types(schema: StructType) -> list[Column]:
    """Return the table's columns; arrays, maps and structs become jsonb.

    Raises:
        OptionRefused: a name or a type has no counterpart.
    """
    columns = [Column(_column_name(field.name), type_of(field.name, field.dataType, TYPES)) for field in schema.fields]
    if len({column.name for column in columns}) < len(columns):
        raise OptionRefused(f"two columns have one name ({', '.join(column.name for column in columns)})")
    return columns


INTEGERS = ("smallint", "integer", "bigint")
WIDENINGS = (
    "smallint, integer and bigint become larger ones of these, real double precision, and numeric gets more digits"
)


def widens(before: str, after: str) -> bool:
    """Return whether the second type has each value of the first, and `ALTER COLUMN ... TYPE` can change it."""
    return is_larger(before, after, INTEGERS) or (before, after) == ("real", "double precision")


def names(columns: Iterable[str]) -> sql.Composed:
    """Join columns, quoted, with commas."""
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, columns))


def table_parts(table: str) -> list[str]:
    """Split `table` or `schema.table`.

    Raises:
        OptionRefused: the text is no name of a table.
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
    """Return the address for libpq, and its part for messages.

    Raises:
        OptionRefused: it cannot be read, or psycopg is not installed. The url is not shown: it may have a password.
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
        raise OptionRefused(f"column {name!r}: PostgreSQL has names of 1 to {MAX_NAME_BYTES} bytes, without NUL")
    return name
