"""Extra of kafka-ratchet that installs a missing package, by the package's import name."""

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
"""Extra by import name, for the packages of the worker and of commands that send requests to workers."""


OTHER_EXTRAS: Final = dict.fromkeys(
    ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.exporter.otlp"), "otel"
)
"""Extra by import name, for the packages of `telemetry = "otel"`.

SDK and exporter are listed too, because other libraries install the API without them.
"""


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return a sentence with the command that installs a missing package; None if no extra has the package."""
    return sink.missing_extra(error, WORKER_EXTRAS | sink.SINK_EXTRAS | OTHER_EXTRAS)


def has_worker() -> bool:
    """Return True if the extra `worker` is installed."""
    # A loaded module may have no spec: Faust replaces its own in sys.modules.
    return all(
        name in sys.modules or find_spec(name) for name in ("aiohttp", "aiokafka", "faust", "numba", "rocksdict")
    )
