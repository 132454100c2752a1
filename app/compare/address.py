"""Addresses of topics and tables, as `ratchet verify --from SOURCE --to TARGET` takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.stores.location import TableAddress

Kind = Literal["kafka", "postgresql", "mysql", "delta", "iceberg", "duckdb", "parquet", "csv"]

KINDS: Final[dict[str, Kind]] = {
    "kafka": "kafka",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "delta": "delta",
    "iceberg": "iceberg",
    "duckdb": "duckdb",
    "parquet": "parquet",
    "csv": "csv",
}

WITH_TABLE: Final[dict[Kind, str]] = {
    "postgresql": "postgresql://USER@HOST/DATABASE?table=T",
    "mysql": "mysql://USER@HOST/DATABASE?table=T",
    "duckdb": "duckdb:FILE?table=T",
}
"""Form of an address with the table's name in the address's query, by kind."""

FORMS: Final = (
    "kafka:TOPIC, postgresql://USER@HOST/DATABASE?table=T, mysql://USER@HOST/DATABASE?table=T, delta:PATH, "
    "iceberg:NAMESPACE.TABLE, duckdb:FILE?table=T, parquet:PATH or csv:PATH"
)


@dataclass(frozen=True, slots=True)
class Address:
    """Address of one side of a comparison.

    kind: type of the topic or table
    place: topic, path, identifier or database url without `table`
    table: name of the table; empty if `place` names it
    """

    kind: Kind
    place: str
    table: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address.

        Raises:
            SettingsError: the text is not an address.
        """
        scheme = text.partition(":")[0].lower()
        try:
            found = TableAddress.parse(text)
        except OptionRefused as error:
            raise SettingsError(f"{_shown(text)!r}: {error}") from None
        kind = KINDS.get(scheme)
        if found is None or kind is None:
            raise SettingsError(f"{_shown(text)!r} is not an address; write {FORMS}")
        place = found.place.removeprefix("//") if kind == "kafka" else found.place
        if kind in WITH_TABLE and not found.table:
            raise SettingsError(f"{_shown(text)!r} names no table; write {WITH_TABLE[kind]}")
        if not place:
            raise SettingsError(f"{text!r} names no topic or table; write {FORMS}")
        return cls(kind, place, found.table)

    @property
    def is_topic(self) -> bool:
        """Return True if the address is a Kafka topic."""
        return self.kind == "kafka"

    def __str__(self) -> str:
        """Return the address without a password."""
        place = TableAddress(self.kind, self.place).without_password()
        scheme = "" if self.kind in ("postgresql", "mysql") else f"{self.kind}:"
        return f"{scheme}{place}" + (f"?table={self.table}" if self.table else "")


def _shown(text: str) -> str:
    """Return a text without a possible password in it."""
    before, at, after = text.rpartition("@")
    return f"{before.partition('://')[0]}://...@{after}" if at else text


def table_names(table: str) -> tuple[str, ...]:
    """Split `schema.table` at its dots. A dot between double quotes belongs to a name.

    Raises:
        SettingsError: a quote is not closed, or a name is empty.
    """
    names: list[str] = []
    rest = table
    while True:
        if rest.startswith('"'):
            name, quote, rest = rest[1:].partition('"')
            if not quote or (rest and not rest.startswith(".")):
                raise SettingsError(
                    f"table {table!r}: a quoted name must end at a dot or at the end. Correct the quotes"
                )
            point, rest = rest[:1], rest[1:]
        else:
            name, point, rest = rest.partition(".")
        if not name:
            raise SettingsError(f"table {table!r}: a part of the name is empty. Correct the dots")
        names.append(name)
        if not point:
            return tuple(names)
