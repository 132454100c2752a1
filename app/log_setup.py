"""Logging to stderr: lines of Ratchet, by structlog, and lines of libraries, through the same handler."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import structlog
from structlog.typing import EventDict

from kafka_ratchet.spark_sink.log_lines import LogFormat, json_line, process_name
from kafka_ratchet.spark_sink.secrets import HidingFormatter, hidden
from kafka_ratchet.transport.correlation import correlation

NOISY: Final = ("aiokafka", "faust", "mode", "kafka", "aiohttp.access")
"""Libraries with info lines for every heartbeat; their warnings and errors are kept."""


_NO_ANSWER: Final = re.compile(
    r"^Unable connect to node|^Unable to (update|request) metadata|NodeNotReadyError|KafkaConnectionError"
    r"|Connect call failed|Connection refused|NoBrokersAvailable|RequestTimedOutError"
)
"""Pattern of aiokafka's lines about a failed attempt to reach Kafka.

While Kafka does not answer, aiokafka writes some forty of them a second in each worker.
"""

_REFUSED: Final = re.compile(r"AccessRefused: (?P<why>.*)", re.DOTALL)
"""Pattern of aiokafka's line about a refused connection: Kafka refuses this client, or the client refuses Kafka."""

SAY_EVERY_S: Final = 60.0

log = structlog.get_logger(__name__)


class KafkaAway(logging.Filter):
    """Log filter that writes one line a minute in place of libraries' lines about an unreachable broker.

    All other lines pass unchanged.
    """

    def __init__(self) -> None:
        super().__init__()
        self._log_times: dict[str, float] = {}
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is to be written unchanged."""
        if record.name.partition(".")[0] not in NOISY:
            return True
        text = record.getMessage()
        refused = _REFUSED.search(text)
        if refused is None and not _NO_ANSWER.search(text):
            return True
        happened = "a Kafka broker does not answer" if refused is None else "a Kafka broker cannot be used"
        if time.monotonic() - self._log_times.get(happened, float("-inf")) < SAY_EVERY_S:
            self._left_out += 1
            return False
        self._log_times[happened] = time.monotonic()
        left_out, self._left_out = self._left_out, 0
        reason = text if refused is None else refused["why"]
        log.warning(f"{happened}; trying again", reason=reason, left_out=left_out)
        return False


def configure(level: str, form: LogFormat = "text") -> None:
    """Set up logging for this process.

    Args:
        level: "debug", "info", "warning" or "error"
        form: "text", or "json" for one object per line, with the correlation fields
    """
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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_json_formatter(shared) if form == "json" else _text_formatter(shared))
    if level != "debug":
        handler.addFilter(KafkaAway())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(form == "json")
    if form == "json":
        _log_uncaught_errors()


def _text_formatter(shared: list[Any]) -> logging.Formatter:
    # A plain traceback: one that shows local variables would show passwords.
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    return HidingFormatter(formatter)


def _json_formatter(shared: list[Any]) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            _with_correlation,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _as_json,
        ],
    )


def _with_correlation(_: Any, __: str, event: EventDict) -> EventDict:
    """Order a log line's fields: time, level and event, then the correlation, then all others."""
    first = {name: event.pop(name, None) for name in ("timestamp", "level", "event")}
    belongs = {"logger": event["_record"].name, "worker": process_name(), **correlation()}
    return {**first, **{name: event.pop(name, value) for name, value in belongs.items()}, **event}


def _as_json(_: Any, __: str, event: EventDict) -> str:
    return json_line(event)


def _log_uncaught_errors() -> None:
    """Install hooks that write the uncaught errors of all threads as log lines."""

    def log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error or kind(), trace)
            return
        log.critical("uncaught error", exc_info=(kind, error, trace))

    sys.excepthook = log_uncaught
    threading.excepthook = lambda args: log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def say(sentence: str) -> None:
    """Write a sentence to standard error; with JSON logs, as a warning of the log."""
    _write(sentence, log.warning)


def say_error(sentence: str) -> None:
    """Write the reason of a command's end to standard error; with JSON logs, as an error of the log."""
    _write(sentence, log.error)


def _write(sentence: str, as_line: Callable[[str], object]) -> None:
    if any(isinstance(each.formatter, structlog.stdlib.ProcessorFormatter) for each in logging.getLogger().handlers):
        as_line(sentence)
    else:
        print(hidden(f"ratchet: {sentence}"), file=sys.stderr, flush=True)
