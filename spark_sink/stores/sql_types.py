"""Columns of a result table in a database, and conversions from and to Spark's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.stores.evolution import DECIMAL

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


class Column(NamedTuple):
    """Column of a table in a database."""

    name: str
    type: str
    """Type of the column, as the database or the store describes it."""


class DatabaseTypes(NamedTuple):
    """Types of a database, and the types of Spark that they stand for."""

    database: str
    """Name of the database, for messages."""
    plain: Mapping[str, str]
    """Types of the database, by Spark's type names in JSON."""
    decimal: str
    """Type of decimals; precision and scale follow in brackets."""
    nested: str
    """Type of arrays, maps and structs."""
    borrowed: frozenset[str]
    """Types of Spark that the database stores as a larger type; reading returns the larger one."""


def type_of(name: str, data_type: DataType, types: DatabaseTypes) -> str:
    """Return the database's type for a type of Spark.

    Raises:
        OptionRefused: the database has no such type.
    """
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(data_type, DecimalType):
        return f"{types.decimal}({data_type.precision},{data_type.scale})"
    if isinstance(data_type, ArrayType | MapType | StructType):
        return types.nested
    plain = types.plain.get(str(data_type.jsonValue()))
    if plain is None:
        raise OptionRefused(
            f"column {name!r}: {types.database} cannot hold type {data_type.simpleString()}. Use string"
        )
    return plain


def spark_schema(columns: Sequence[Column], types: DatabaseTypes) -> StructType:
    """Return the columns of a table in Spark's types.

    Raises:
        OptionRefused: a column's type does not stand for exactly one type of Spark.
    """
    from pyspark.sql.types import DecimalType, StructField, StructType

    spark = {own: name for name, own in types.plain.items() if name not in types.borrowed}
    fields: list[StructField] = []
    for column in columns:
        digits = DECIMAL.fullmatch(column.type)
        if digits:
            fields.append(StructField(column.name, DecimalType(int(digits[1]), int(digits[2]))))
        elif column.type in spark:
            field = {"name": column.name, "type": spark[column.type], "nullable": True, "metadata": {}}
            fields.append(StructField.fromJson(field))
        else:
            raise OptionRefused(
                f"columns: the table has column {column.name!r} of type {column.type}, which does not stand for "
                "exactly one type of Spark. Set `columns` to the names and types of all columns"
            )
    return StructType(fields)
