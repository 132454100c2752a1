"""Location of results: a kind of store and its address; addresses of tables as one text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from kafka_ratchet.spark_sink.errors import OptionRefused

SERVERS: Final[Mapping[str, str]] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
"""Scheme of a server's url, by that of an address."""

TABLE_FILES: Final = frozenset({"duckdb"})
"""Schemes with several tables in one file."""


@dataclass(frozen=True)
class TableLocation:
    """Location of the results. Each kind of store takes the fields that it needs."""

    kind: str = "delta"
    """Name in `registry.STORES`."""
    path: str = ""
    """Folder or file; empty if the kind of store has neither."""
    table: str = "results"
    """Name of the table; unused by delta: its folder is the table."""
    url: str = field(default="", repr=False)
    """Url of a database; it may have a password."""
    password: str | None = field(default=None, repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of a bucket, see `bucket.OPTIONS`."""
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the catalog of store iceberg; empty: a SQLite file in the folder."""
    engine: str = ""
    """Writer of the files, see `delta.spark_writer.ENGINE`; empty: the store's own."""

    def __str__(self) -> str:
        return self.path or self.table


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Address of a table, such as duckdb:FILE?table=T.

    scheme: kind, in lower case; a server has one of `SERVERS`' values place: path, identifier, or url of a server
    without `table` table: name of the table; empty if the address has none
    """

    scheme: str
    place: str = field(repr=False)
    table: str = ""

    @classmethod
    def parse(cls, text: str) -> TableAddress | None:
        """Parse an address; None for a text without a scheme.

        Raises:
            OptionRefused: its query is ambiguous.
        """
        scheme, colon, rest = text.partition(":")
        scheme = scheme.lower()
        if not colon:
            return None
        if scheme in SERVERS:
            return cls._of_server(SERVERS[scheme], text)
        if scheme not in TABLE_FILES:
            return cls(scheme, rest)
        path, mark, query = rest.rpartition("?")
        if not mark:
            return cls(scheme, rest)
        table, left = _table(query, scheme)
        if left:
            raise OptionRefused(f"{scheme}: the address has the options {', '.join(dict(left))}; there is table alone")
        return cls(scheme, path, table)

    @classmethod
    def _of_server(cls, scheme: str, text: str) -> TableAddress:
        try:
            parts = urlsplit(text)
        except ValueError:  # its text may have the password
            raise OptionRefused(f"{scheme}: the url cannot be read. Check host, port and brackets") from None
        if parts.fragment or text.endswith("#"):
            raise OptionRefused(f"{scheme}: the address has a # in it. Write %23")
        table, left = _table(parts.query, scheme)
        return cls(scheme, _url(scheme, parts, left), table)

    def without_password(self) -> str:
        """Return the place for messages: a server without user, password and options."""
        if self.scheme not in SERVERS:
            return self.place
        parts = urlsplit(self.place)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _table(query: str, scheme: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the table's name, and the other options of a query."""
    options = parse_qsl(query, keep_blank_values=True)
    tables = [value for name, value in options if name == "table"]
    if len(tables) > 1:
        raise OptionRefused(f"{scheme}: the address names {len(tables)} tables: {', '.join(tables)}")
    return "".join(tables), [each for each in options if each[0] != "table"]


def _url(scheme: str, parts: SplitResult, options: list[tuple[str, str]]) -> str:
    """Return the url of a server. A space is %20: libpq takes a + as it is."""
    query = urlencode(options, quote_via=quote)
    return f"{scheme}://{parts.netloc}{parts.path}{'?' if query else ''}{query}"
