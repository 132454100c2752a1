"""Location of results: a kind of store and its address. An address of a table can also be one text."""

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
"""Kind of database server for each scheme of an address."""

TABLE_FILES: Final = frozenset({"duckdb"})
"""Schemes of files that contain several tables."""

ENGINE: Final = "spark"
"""Value of `TableLocation.engine` for the writer of the table format's own package for Spark."""


@dataclass(frozen=True)
class TableLocation:
    """Location of the results; each kind of store uses only the fields that it needs."""

    kind: str = "delta"
    """Kind of the store, a name in `registry.STORES`."""
    path: str = ""
    """Folder or file; empty: the kind of store uses neither."""
    table: str = "results"
    """Name of the table; store delta does not use it, because its folder is the table."""
    url: str = field(default="", repr=False)
    """Url of a database server, perhaps with a password."""
    password: str | None = field(default=None, repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of a bucket, see `bucket.OPTIONS`."""
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the catalog of store iceberg; empty: a SQLite file in the folder."""
    engine: str = ""
    """Engine that writes the files, `ENGINE`; empty: the store's own."""
    spark_name: str = ""
    """Name of the table in Spark's catalog, quoted; empty: the user named the table in another way."""

    def __str__(self) -> str:
        return self.path or self.table


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Address of a table, such as duckdb:FILE?table=T.

    Args:
        scheme: kind of store in lower case; for a server, one of the values of `SERVERS`.
        place: path, identifier, or a server's url; the option `table` is removed from it.
        table: name of the table; empty: the address contains none.
    """

    scheme: str
    place: str = field(repr=False)
    table: str = ""

    @classmethod
    def parse(cls, text: str) -> TableAddress | None:
        """Parse an address; None: the text has no scheme.

        Raises:
            OptionRefused: the address names several tables, has an unknown option, or its url cannot be read.
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
            raise OptionRefused(
                f"{scheme}: the address has unknown options: {', '.join(dict(left))}. The only option is table"
            )
        return cls(scheme, path, table)

    @classmethod
    def _of_server(cls, scheme: str, text: str) -> TableAddress:
        try:
            parts = urlsplit(text)
        except ValueError:  # its text may have the password
            raise OptionRefused(f"{scheme}: the url cannot be read. Check host, port and brackets") from None
        if parts.fragment or text.endswith("#"):
            raise OptionRefused(f"{scheme}: the address contains a #. Write %23 in its place")
        table, left = _table(parts.query, scheme)
        return cls(scheme, _url(scheme, parts, left), table)

    def without_password(self) -> str:
        """Return `place` for messages: the url of a server without user, password and options."""
        if self.scheme not in SERVERS:
            return self.place
        parts = urlsplit(self.place)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _table(query: str, scheme: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the table's name from a query string, and its other options.

    Raises:
        OptionRefused: the query names several tables.
    """
    options = parse_qsl(query, keep_blank_values=True)
    tables = [value for name, value in options if name == "table"]
    if len(tables) > 1:
        raise OptionRefused(f"{scheme}: the address names {len(tables)} tables: {', '.join(tables)}. Name only one")
    return "".join(tables), [each for each in options if each[0] != "table"]


def _url(scheme: str, parts: SplitResult, options: list[tuple[str, str]]) -> str:
    """Return the url of a server. A space is written as %20, because libpq does not decode a +."""
    query = urlencode(options, quote_via=quote)
    return f"{scheme}://{parts.netloc}{parts.path}{'?' if query else ''}{query}"
