"""Option `partition_by`: the columns, days or hours that separate a table's files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from kafka_ratchet.spark_sink.errors import OptionRefused

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Unit = Literal["", "day", "hour"]

OF_TIME = re.compile(r"(?P<unit>day|hour)\((?P<column>.+)\)", re.DOTALL)

MAX_FIELDS = 5
"""Maximum number of fields. Each field multiplies the number of files of a commit."""

PLAIN_TYPES = frozenset({"string", "boolean", "byte", "short", "integer", "long", "date"})
"""Spark's names of the types that partitions can have: equal values have equal text everywhere."""


class PartitionField(NamedTuple):
    """Partition field of a table: a column, or the days or hours of a time column, in UTC."""

    column: str
    unit: Unit = ""

    def __str__(self) -> str:
        return f"{self.unit}({self.column})" if self.unit else self.column

    @property
    def name(self) -> str:
        """Return the name of the partition: the column's name, with the unit as suffix if there is one."""
        return f"{self.column}_{self.unit}" if self.unit else self.column


def partition_fields(texts: Sequence[str]) -> tuple[PartitionField, ...]:
    """Parse the texts of `partition_by`: names of columns, `day(column)`, `hour(column)`.

    Raises:
        OptionRefused: there are too many fields, two fields of one column, or a field without a column.
    """
    fields = []
    for text in texts:
        found = OF_TIME.fullmatch(text)
        unit: Unit = "" if found is None else "day" if found["unit"] == "day" else "hour"
        fields.append(PartitionField(text if found is None else found["column"], unit))
    columns = [field.column for field in fields]
    if len(fields) > MAX_FIELDS or "" in columns:
        raise OptionRefused(f"partition_by {list(texts)}: name 1 to {MAX_FIELDS} columns")
    if len(set(columns)) < len(columns):
        raise OptionRefused(
            f"partition_by {list(texts)}: a column is named twice. Name it once; a partition by hour includes the day"
        )
    return tuple(fields)


def require_columns_of(fields: Sequence[PartitionField], schema: StructType) -> None:
    """Check that the table has the partition columns, with types that partitions can have.

    Raises:
        OptionRefused: a column is missing, or has another type.
    """
    types = {field.name: field.dataType.jsonValue() for field in schema.fields}
    for field in fields:
        found = types.get(field.column)
        if found is None:
            raise OptionRefused(
                f"partition_by {str(field)!r}: the result has no column {field.column!r} (it has: {', '.join(types)})"
            )
        if field.unit and found != "timestamp":
            remedy = "Leave the day out" if found == "date" else "Name a column of times, such as _kafka_timestamp"
            raise OptionRefused(f"partition_by {str(field)!r}: column {field.column} is {found}. {remedy}")
        if not field.unit and found not in PLAIN_TYPES:
            more = f"Write day({field.column}) or hour({field.column})" if found == "timestamp" else "Choose another"
            raise OptionRefused(
                f"partition_by {str(field)!r}: column {field.column} is {found}, but partitions need text, whole "
                f"numbers, booleans or dates. {more}"
            )
        if field.unit and field.name in types:
            raise OptionRefused(
                f"partition_by {str(field)!r}: the partition would be named {field.name}, but the result has a "
                "column of that name. Rename the column"
            )
    if fields and not types.keys() - {field.column for field in fields if not field.unit}:
        raise OptionRefused(f"{option_text(fields)}: the result has no other columns. Remove a field from partition_by")


def option_text(fields: Sequence[object]) -> str:
    """Return the option `partition_by` as text for messages."""
    return f"partition_by {[str(field) for field in fields]}" if fields else "no partition_by"
