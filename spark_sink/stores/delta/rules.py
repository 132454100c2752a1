"""Rules of a Delta table that its owner has set for every writer, by their names.

This writer adds its files to the log itself, and does not evaluate SQL expressions over them. So it adds nothing to a
table with such a rule, whatever its rows are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.files.bucket import Folder

if TYPE_CHECKING:
    from deltalake import DeltaTable

CONSTRAINT = "delta.constraints."
"""Prefix of the properties for CHECK constraints."""

INVARIANT = "delta.invariants"
"""Key of a column's invariant in the metadata of its field."""

COMPUTED = ("delta.generationExpression", "delta.identity.")
"""Prefixes of the keys in a field's metadata that make the writer compute the column."""

APPEND_ONLY = "delta.appendOnly"
"""Property of a table that forbids changes and deletions of rows."""

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
"""Writer features that the job follows, or that this check or another one refuses in use."""


GENERATED = "delta.generationExpression"
"""Key of a column's expression in the metadata of its field."""

CHECKED_BY_SPARK = frozenset({"generatedColumns"})
"""Further writer features, which delta-spark follows where it writes the files."""


def require_no_rules(table: DeltaTable, folder: Folder, merges: bool, *, by_spark: bool = False) -> None:
    """Refuse a table with a rule that this writer does not check.

    Args:
        table: the table at its newest version.
        folder: the table's folder.
        merges: the write mode changes existing rows.
        by_spark: delta-spark writes the files, and checks constraints, invariants and generated columns.

    Raises:
        OptionRefused: the table has one; the error names it.
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
            "Nothing was added and no offset moved. Take the property away, or choose another path"
        )
    followed = FOLLOWED | CHECKED_BY_SPARK if by_spark else FOLLOWED
    unknown = sorted(set(table.protocol().writer_features or ()) - followed)
    if unknown:
        raise OptionRefused(
            f"{folder}: the table has the writer feature {', '.join(unknown)}, which Ratchet does not follow. Nothing "
            "was added and no offset moved. Drop the feature, or choose another path"
        )


def _checked_by_spark(table: DeltaTable) -> list[str]:
    """List the constraints and invariants of a table."""
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
