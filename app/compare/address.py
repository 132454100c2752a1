"""Addresses of topics and tables, as `ratchet verify --from SOURCE --to TARGET` takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from kafka_ratchet.errors import SettingsError

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

TABLE_FILES: Final = frozenset[Kind](("duckdb",))
"""Kinds with several tables in one file."""

FORMS: Final = (
    "kafka:TOPIC, postgresql://USER@HOST/DATABASE?table=T, mysql://USER@HOST/DATABASE?table=T, delta:PATH, "
    "iceberg:NAMESPACE.TABLE, duckdb:FILE?table=T, parquet:PATH or csv:PATH"
)


@dataclass(frozen=True, slots=True)
class Address:
    """Address of one side of a comparison.

    kind: type of the topic or table
    place: topic, path, identifier or database url without `table`
    table: name of the table; empty where `place` names it
    """

    kind: Kind
    place: str
    table: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address.

        Raises:
            SettingsError: the text is none.
        """
        scheme, colon, rest = text.partition(":")
        kind = KINDS.get(scheme.lower())
        if not colon or kind is None:
            raise SettingsError(f"{_shown(text)!r} is no address; write {FORMS}")
        if kind in ("postgresql", "mysql"):
            return cls._of_server(kind, text)
        table = ""
        if kind in TABLE_FILES:
            rest, _, query = rest.partition("?")
            table = dict(parse_qsl(query)).get("table", "")
            if not table:
                raise SettingsError(f"{text!r} names no table; write duckdb:FILE?table=T")
        place = rest.removeprefix("//") if kind == "kafka" else rest
        if not place:
            raise SettingsError(f"{text!r} names nothing; write {FORMS}")
        return cls(kind, place, table)

    @classmethod
    def _of_server(cls, kind: Kind, text: str) -> Address:
        parts = urlsplit(text)
        options = parse_qsl(parts.query, keep_blank_values=True)
        table = next((value for name, value in options if name == "table"), "")
        if not table:
            raise SettingsError(f"{_shown(text)!r} names no table; write {kind}://USER@HOST/DATABASE?table=T")
        left = urlencode([(name, value) for name, value in options if name != "table"])
        scheme = "postgresql" if kind == "postgresql" else "mysql"
        return cls(kind, urlunsplit((scheme, parts.netloc, parts.path, left, "")), table)

    @property
    def is_topic(self) -> bool:
        """Return whether it is a topic of Kafka."""
        return self.kind == "kafka"

    def __str__(self) -> str:
        """Return the address without a password."""
        if self.kind in ("postgresql", "mysql"):
            parts = urlsplit(self.place)
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}?table={self.table}"
        return f"{self.kind}:{self.place}" + (f"?table={self.table}" if self.table else "")


def _shown(text: str) -> str:
    """Return a text without what may be a password."""
    before, at, after = text.rpartition("@")
    return f"{before.partition('://')[0]}://...@{after}" if at else text


def table_names(table: str) -> tuple[str, ...]:
    """Split `schema.table` at its points; names between double quotes may hold points.

    Raises:
        SettingsError: a quote is not closed, or a name is empty.
    """
    names: list[str] = []
    rest = table
    while True:
        if rest.startswith('"'):
            name, quote, rest = rest[1:].partition('"')
            if not quote or (rest and not rest.startswith(".")):
                raise SettingsError(f"table {table!r}: a quoted name does not end at a point or at the end")
            point, rest = rest[:1], rest[1:]
        else:
            name, point, rest = rest.partition(".")
        if not name:
            raise SettingsError(f"table {table!r}: a name is empty")
        names.append(name)
        if not point:
            return tuple(names)
