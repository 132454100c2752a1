"""Rules of a Delta table's owner for every writer, such as CHECK constraints.

Unless delta-spark writes the files, the job adds its files to the log itself and evaluates no SQL expressions over
their rows. So it adds nothing to a table with such a rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.files.bucket import Folder

if TYPE_CHECKING:
    from deltalake import DeltaTable

CONSTRAINT = "delta.constraints."
"""Prefix of the table properties that define CHECK constraints."""

INVARIANT = "delta.invariants"
"""Metadata key of a column with the column's invariant."""

COMPUTED = ("delta.generationExpression", "delta.identity.")
"""Prefixes of metadata keys of columns with values that the writer has to compute."""

APPEND_ONLY = "delta.appendOnly"
"""Table property that forbids changing and deleting rows."""

CHANGE_DATA = "delta.enableChangeDataFeed"
"""Table property that makes each writer store the changed rows as well."""

FOLLOWED = frozenset(
    {
        "appendOnly",
        "checkConstraints",
        "deletionVectors",
        "domainMetadata",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "columnMapping",
        "changeDataFeed",
    }
)
"""Writer features that this check admits: the job supports them, or other checks refuse the use of them."""


GENERATED = "delta.generationExpression"
"""Metadata key of a generated column with its expression."""

CHECKED_BY_SPARK = frozenset({"generatedColumns"})
"""Writer features that the job supports only if delta-spark writes the files."""


def require_no_rules(table: DeltaTable, folder: Folder, merges: bool, *, by_spark: bool = False) -> None:
    """Refuse a table with a rule that this writer does not check.

    Args:
        table: the table at its newest version.
        folder: the table's folder.
        merges: True if the write mode changes existing rows.
        by_spark: True if delta-spark writes the files, and so checks constraints, invariants and generated columns.

    Raises:
        OptionRefused: the table has such a rule; the error names it.
    """
    properties = table.metadata().configuration
    rules = [] if by_spark else _checked_by_spark(table)
    rules += [
        f"{key} of column {field.name}"
        for field in table.schema().fields
        for key in sorted(field.metadata)
        if key.startswith(COMPUTED) and not (by_spark and key == GENERATED)
    ]
    if rules:
        raise OptionRefused(
            f"{folder}: the table has {', '.join(rules)}, which Ratchet does not check when it writes. Nothing was "
            "added and no offset moved. Drop the rule and run the job again, or choose another path"
        )
    if merges and properties.get(APPEND_ONLY, "false").lower() == "true":
        raise OptionRefused(
            f"{folder}: the table has the property {APPEND_ONLY} = 'true', and upserts and totals change its rows. "
            "Nothing was added and no offset moved. Remove the property, or choose another path"
        )
    if merges and by_spark and properties.get(CHANGE_DATA, "false").lower() == "true":
        raise OptionRefused(
            f"{folder}: the table has the property {CHANGE_DATA} = 'true', and engine spark writes no change data when "
            "it merges rows. Nothing was added and no offset moved. Leave engine out"
        )
    followed = FOLLOWED | CHECKED_BY_SPARK if by_spark else FOLLOWED
    unknown = sorted(set(table.protocol().writer_features or ()) - followed)
    if unknown:
        raise OptionRefused(
            f"{folder}: the table has the writer feature {', '.join(unknown)}, which Ratchet does not support. Nothing "
            "was added and no offset moved. Drop the feature, or choose another path"
        )


def _checked_by_spark(table: DeltaTable) -> list[str]:
    """List the rules of a table that delta-spark checks: constraints and invariants."""
    found = [
        f"the constraint {name.removeprefix(CONSTRAINT)} CHECK ({text})"
        for name, text in sorted(table.metadata().configuration.items())
        if name.startswith(CONSTRAINT)
    ]
    return found + [
        f"the invariant {field.metadata[INVARIANT]} of column {field.name} ({INVARIANT})"
        for field in table.schema().fields
        if INVARIANT in field.metadata
    ]
