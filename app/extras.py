"""The extra that brings a missing package, for every command."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

from kafka_ratchet.spark_sink import extras as sink

WORKER_EXTRAS: Final = dict.fromkeys(
    (
        "aiohttp",
        "aiohttp_jinja2",
        "aiokafka",
        "cramjam",
        "crc32c",
        "faust",
        "jinja2",
        "markupsafe",
        "mode",
        "numba",
        "numpy",
        "prometheus_client",
        "rocksdict",
        "uvloop",
        "yarl",
    ),
    "worker",
)
"""Extra by import name: packages of the worker, and of commands that ask workers."""


OTHER_EXTRAS: Final = dict.fromkeys(
    ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.exporter.otlp"), "otel"
)
"""The API may be there alone: other libraries bring it."""


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return how to install a missing package; None if no extra has it."""
    return sink.missing_extra(error, WORKER_EXTRAS | sink.SINK_EXTRAS | OTHER_EXTRAS)


def has_worker() -> bool:
    """Return True if the extra `worker` is installed."""
    # A loaded module may have no spec: Faust replaces its own in sys.modules.
    return all(
        name in sys.modules or find_spec(name) for name in ("aiohttp", "aiokafka", "faust", "numba", "rocksdict")
    )
