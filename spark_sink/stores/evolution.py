"""Evolution of an existing table to a job's columns (`evolve`): columns are added, types become wider."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from kafka_ratchet.spark_sink.errors import SchemaDiffers
from kafka_ratchet.spark_sink.stores.store import require_record_columns

Evolve = Literal["add"]

DECIMAL = re.compile(r"(?:decimal|numeric)\((\d+),(\d+)\)", re.IGNORECASE)
"""Pattern of a decimal's type name, with its digits and decimal places, in any store."""


class ColumnChange(NamedTuple):
    """Change to one column: the table lacks it, or has it with a narrower type."""

    column: str
    type: str
    """Type that the column has after the change."""
    is_new: bool


def changes(
    where: object,
    present: Mapping[str, str],
    expected: Mapping[str, str],
    widens: Callable[[str, str], bool],
    why_not: str,
) -> list[ColumnChange]:
    """Return the changes that give the table the job's columns, in the order of these columns.

    Args:
        where: the table, as messages name it.
        present: type of each column of the table, by name.
        expected: type of each column of the job, by name.
        widens: function that returns whether a column of the first type can become one of the second without changing a
            value.
        why_not: sentence about the possible changes of types, for messages.

    Raises:
        SchemaDiffers: the table has a column that the job does not have, or a column's type cannot become the job's.
    """
    require_record_columns(where, present)
    for column, found in present.items():
        if column not in expected:
            raise SchemaDiffers(
                f'{where}: column {column} is {found} in the table and absent in this job, and evolve = "add" removes '
                "no column. Add the column to the job, or choose another table"
            )
        if found != expected[column] and not widens(found, expected[column]):
            raise SchemaDiffers(
                f"{where}: column {column} is {found} in the table and {expected[column]} in this job, and evolve = "
                f'"add" cannot change the type: {why_not}. Give the job the table\'s type, or choose another table'
            )
    return [
        ColumnChange(column, wanted, column not in present)
        for column, wanted in expected.items()
        if present.get(column) != wanted
    ]


def is_larger(before: str, after: str, integers: Sequence[str]) -> bool:
    """Return whether the second type, integer or decimal, contains every value of the first.

    Args:
        before: type of the column in the table.
        after: type of the column in the job.
        integers: the store's names of integer types, the smallest first.
    """
    if before in integers and after in integers:
        return integers.index(before) < integers.index(after)
    old, new = DECIMAL.fullmatch(before), DECIMAL.fullmatch(after)
    if old is None or new is None:
        return False
    digits, places, more_digits, more_places = map(int, (*old.groups(), *new.groups()))
    return more_places >= places and more_digits - more_places >= digits - places
