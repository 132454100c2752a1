"""Packages that a plain installation lacks, and the extra of kafka-ratchet for each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from kafka_ratchet.spark_sink.errors import OptionRefused

SINK_EXTRAS: Final = {
    "attrs": "registry",
    "authlib": "registry",
    "cachetools": "registry",
    "certifi": "registry",
    "deltalake": "spark",
    "duckdb": "duckdb",
    "google": "registry",
    "google.protobuf": "registry",
    "httpx2": "registry",
    "jsonschema": "registry",
    "pandas": "spark",
    "psycopg": "postgres",
    "py4j": "spark",
    "pyarrow": "spark",
    "pyiceberg": "iceberg",
    "pymysql": "mysql",
    "pyspark": "spark",
    "referencing": "registry",
    "sqlalchemy": "iceberg",
}
"""Extra of kafka-ratchet that installs each package of the job, by the package's import name."""


def missing_extra(error: ModuleNotFoundError, extras: Mapping[str, str] = SINK_EXTRAS) -> str | None:
    """Return the message that tells how to install a missing package; None if no extra has the package.

    None means a fault in Ratchet's code or the user's, so the caller should show the traceback.
    """
    # A module within an installed package has a dot in its name, and no extra has it.
    extra = extras.get(error.name or "")
    if extra is None:
        return None
    return f"this needs the package {error.name}, which is not installed: {_install(extra)}"


def require_package(module: str, needed: str) -> None:
    """Check that a package is installed.

    Args:
        module: name of the package's module to import.
        needed: start of the message, which names the feature that needs the package.

    Raises:
        OptionRefused: the package is missing; the message tells how to install it.
    """
    try:
        import_module(module)
    except ImportError:
        raise OptionRefused(f"{needed}: {_install(SINK_EXTRAS[module.partition('.')[0]])}") from None


def _install(extra: str) -> str:
    return f"pip install 'kafka-ratchet[{extra}]'"
