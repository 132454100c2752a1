"""Packages that a plain installation lacks, and the extra of kafka-ratchet that brings each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SINK_EXTRAS: Final = {
    "deltalake": "spark",
    "duckdb": "duckdb",
    "pandas": "spark",
    "psycopg": "postgres",
    "py4j": "spark",
    "pyarrow": "spark",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "sqlalchemy": "iceberg",
}
"""Extra by import name, of what the job needs."""


def missing_extra(error: ModuleNotFoundError, extras: Mapping[str, str] = SINK_EXTRAS) -> str | None:
    """The sentence that says how to install what could not be imported.

    None where no extra brings it: then it is a mistake in the code, or in the user's, and its traceback is needed.
    """
    # A module within a package that is installed has a dot in its name, and no extra brings it.
    extra = extras.get(error.name or "")
    if extra is None:
        return None
    return f"this needs the package {error.name}, which is not installed: pip install 'kafka-ratchet[{extra}]'"
