"""SQL, in each store's dialect, that merges a commit's row into its key's totals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kafka_ratchet.spark_sink.rows.aggregates import ADDED, ENDINGS
from kafka_ratchet.spark_sink.rows.distinct import HASHES, SCALE
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode

if TYPE_CHECKING:
    from typing import LiteralString

Sql = TypeVar("Sql")

ADD: Final = "{target} + {source}"

# If either is null the comparison is, and then the ELSE has it; nulls of the source are never taken.
LEAST: Final = "CASE WHEN {target} IS NULL OR {below} < {than} THEN {source} ELSE {target} END"
GREATEST: Final = "CASE WHEN {target} IS NULL OR {below} > {than} THEN {source} ELSE {target} END"

AVERAGE: Final = (
    "CASE WHEN ({count}) > 0 THEN CAST({total} AS DOUBLE PRECISION) / CAST({count} AS DOUBLE PRECISION) END"
)

DISTINCT: Final = (
    f"CASE WHEN {{size}} < {HASHES} THEN CAST({{size}} AS BIGINT) "
    f"ELSE CAST(floor(CAST({SCALE!r} AS DOUBLE PRECISION) / CAST({{last}} AS DOUBLE PRECISION)) AS BIGINT) END"
)


class Dialect(Generic[Sql]):
    """Parts of the SQL that differ from store to store."""

    union: LiteralString
    """SQL template for the sorted list of the `HASHES` smallest different elements of {target} and {source}."""
    size: LiteralString
    """SQL template for the length of the list {hashes}."""
    last: LiteralString
    """SQL template for element number `HASHES` of the list {hashes}; null if the list is shorter."""

    def compose(self, template: LiteralString, **parts: Sql) -> Sql:
        """Return a template with its named placeholders replaced by SQL."""
        raise NotImplementedError

    def target(self, column: str) -> Sql:
        """Return a column of the table's row as SQL."""
        raise NotImplementedError

    def source(self, column: str) -> Sql:
        """Return a column of the commit's row as SQL."""
        raise NotImplementedError

    def addition(self, column: str) -> LiteralString:
        """Return the SQL template that adds {source} to {target}, two values of a column."""
        return ADD

    def ordered(self, column: str, value: Sql) -> Sql:
        """Return SQL that compares as Spark does: text by its bytes, and NaN above every other number."""
        return value


def changes(write_mode: WriteMode, dialect: Dialect[Sql], merged: Mapping[str, Sql] | None = None) -> Mapping[str, Sql]:
    """Return SQL for the new value of each column after the key, for an existing key.

    Args:
        write_mode: a write mode of totals.
        dialect: SQL dialect of the store.
        merged: SQL of new lists of hashes by column, if the store computes them itself; numbers of different values are
            then computed from these lists.
    """
    new: dict[str, Sql] = {}
    for each in write_mode.aggregates:
        if each.rule == "average":
            total, count = new[each.of], new[each.of + ENDINGS["filled"]]
            new[each.name] = dialect.compose(AVERAGE, total=total, count=count)
            continue
        if each.rule == "distinct":
            hashes = new[each.of + ENDINGS["hashes"]]
            size, last = (dialect.compose(template, hashes=hashes) for template in (dialect.size, dialect.last))
            new[each.name] = dialect.compose(DISTINCT, size=size, last=last)
            continue
        target, source = dialect.target(each.name), dialect.source(each.name)
        if merged is not None and each.name in merged:
            new[each.name] = merged[each.name]
            continue
        if each.rule == "hashes":
            new[each.name] = dialect.compose(dialect.union, target=target, source=source)
            continue
        if each.rule in ADDED:
            new[each.name] = dialect.compose(dialect.addition(each.name), target=target, source=source)
            continue
        below, than = dialect.ordered(each.name, source), dialect.ordered(each.name, target)
        template = LEAST if each.rule == "least" else GREATEST
        new[each.name] = dialect.compose(template, target=target, source=source, below=below, than=than)
    return new


class PlainDialect(Dialect[str]):
    """Dialect that writes SQL as plain text, with the aliases `target` and `source`."""

    def compose(self, template: LiteralString, **parts: str) -> str:
        """See `Dialect`."""
        return template.format(**parts)

    def target(self, column: str) -> str:
        """See `Dialect`."""
        return f"target.{_quoted(column)}"

    def source(self, column: str) -> str:
        """See `Dialect`."""
        return f"source.{_quoted(column)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
