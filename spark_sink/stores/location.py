"""Where results are: a kind of store, and what it is reached by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TableLocation:
    """Where the results are. Each kind of store takes the fields that it needs."""

    kind: str = "delta"
    """A name in `registry.STORES`."""
    path: str = ""
    """Folder or file; empty where the kind of store has neither."""
    table: str = "results"
    """Not for delta, where the folder is the table."""
    url: str = field(default="", repr=False)
    """For a database; may have a password in it."""
    password: str | None = field(default=None, repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How a bucket is reached, see `bucket.OPTIONS`."""
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the catalog of store iceberg; empty: a SQLite file in the folder."""

    def __str__(self) -> str:
        return self.path or self.table
