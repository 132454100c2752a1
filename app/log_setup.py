"""Logging to stderr: structlog for our lines, and the same handler for those of the libraries."""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import Any, Final

import structlog

from kafka_ratchet.spark_sink.secrets import HidingFormatter

NOISY: Final = ("aiokafka", "faust", "mode", "kafka", "aiohttp.access")
"""Libraries whose info lines tell of every heartbeat; their warnings and errors are kept."""


_NO_ANSWER: Final = re.compile(
    r"^Unable connect to node|^Unable to (update|request) metadata|NodeNotReadyError|KafkaConnectionError"
    r"|Connect call failed|Connection refused|NoBrokersAvailable|RequestTimedOutError"
)
"""What aiokafka says of one failed try, some forty times a second and worker while Kafka is away."""

SAY_EVERY_S: Final = 60.0

log = structlog.get_logger(__name__)


class KafkaAway(logging.Filter):
    """Puts one line of ours, now and then, in the place of the libraries' lines about a broker that does not answer.

    Everything else that they say passes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said_at = float("-inf")
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written as it is."""
        if record.name.partition(".")[0] not in NOISY:
            return True
        text = record.getMessage()
        if not _NO_ANSWER.search(text):
            return True
        if time.monotonic() - self._said_at < SAY_EVERY_S:
            self._left_out += 1
            return False
        self._said_at = time.monotonic()
        left_out, self._left_out = self._left_out, 0
        log.warning("a Kafka broker does not answer; trying again", reason=text, left_out=left_out)
        return False


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
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler.setFormatter(HidingFormatter(formatter))
    if level != "debug":
        handler.addFilter(KafkaAway())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
