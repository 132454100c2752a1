"""Logging: structlog for ours, and what the libraries say through the same handler, on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import structlog

NOISY: Final = ("aiokafka", "faust", "mode", "kafka", "aiohttp.access")
"""Libraries whose info lines tell of every heartbeat; their warnings and errors are kept."""


def configure(level: str) -> None:
    """Set up logging for this process. level: "debug", "info", "warning" or "error"."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    # A plain traceback: one that shows local variables would show passwords.
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
