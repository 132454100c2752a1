"""Names and types of PostgreSQL for the columns of a result, and the address of the database."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.extras import require_package
from kafka_ratchet.spark_sink.stores.evolution import is_larger

if TYPE_CHECKING:
    from psycopg import sql
    from pyspark.sql.types import DataType, StructType

MAX_NAME_BYTES = 63
"""PostgreSQL cuts longer identifiers off without an error (NAMEDATALEN)."""

CONNECT_TIMEOUT_S = 10
"""How long a connection may take, in seconds, where the url says nothing: libpq waits for a silent host for minutes."""

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
"""Spark's types, as it spells them in JSON, and PostgreSQL's, as format_type spells them."""


NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")


class Column(NamedTuple):
    """A column of the result table."""

    name: str
    type: str


def column_types(schema: StructType) -> list[Column]:
    """The table's columns; arrays, maps and structs become jsonb.

    Raises:
        OptionRefused: a name or a type has no counterpart.
    """
    columns = [Column(_column_name(field.name), _type(field.name, field.dataType)) for field in schema.fields]
    if len({column.name for column in columns}) < len(columns):
        raise OptionRefused(f"two columns have one name ({', '.join(column.name for column in columns)})")
    return columns


def spark_schema(columns: list[Column]) -> StructType:
    """Spark's columns for those of a table; the other way round than `column_types`.

    Raises:
        OptionRefused: a type stands for several of Spark's.
    """
    from pyspark.sql.types import DecimalType, StructField, StructType

    spark = {postgres: name for name, postgres in PLAIN.items() if name != "byte"}
    described: list[StructField] = []
    for column in columns:
        digits = NUMERIC.fullmatch(column.type)
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


INTEGERS = ("smallint", "integer", "bigint")
WIDENINGS = (
    "smallint, integer and bigint become larger ones of these, real double precision, and numeric gets more digits"
)


def widens(before: str, after: str) -> bool:
    """Whether each value of the first type is one of the second, and `ALTER COLUMN ... TYPE` knows it."""
    return is_larger(before, after, INTEGERS) or (before, after) == ("real", "double precision")


def names(columns: list[Column]) -> sql.Composed:
    """Their names, quoted, with commas between."""
    from psycopg import sql

    return sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)


def table_parts(table: str) -> list[str]:
    """`table` or `schema.table` as its parts.

    Raises:
        OptionRefused: that is no name of a table.
    """
    parts = table.split(".")
    for part in parts:
        # "%" would be read as a placeholder in statements that have parameters.
        if not part or len(part.encode()) > MAX_NAME_BYTES or "\0" in part or "%" in part or len(parts) > 2:
            raise OptionRefused(
                f"table {table!r}: write table or schema.table, each of 1 to {MAX_NAME_BYTES} bytes, without '%'"
            )
    return parts


def conninfo(url: str, password: str | None) -> tuple[str, str]:
    """The address for libpq, and what may be shown of it.

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


def _type(name: str, data_type: DataType) -> str:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(data_type, DecimalType):
        return f"numeric({data_type.precision},{data_type.scale})"
    if isinstance(data_type, ArrayType | MapType | StructType):
        return "jsonb"
    plain = PLAIN.get(str(data_type.jsonValue()))
    if plain is None:
        raise OptionRefused(f"column {name!r}: PostgreSQL cannot hold type {data_type.simpleString()}. Use string")
    return plain
