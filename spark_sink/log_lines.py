"""Log lines as JSON, one object a line, for log collectors.

logging's own formatter makes text lines.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any, Final, Literal

from kafka_ratchet.spark_sink.secrets import hidden

LogFormat = Literal["text", "json"]
FIRST_LINE_S: Final = 3.0
"""Seconds of work until its first log line. Without a line, a user would soon doubt that the command still runs."""
NEXT_LINE_S: Final = 30.0
"""Seconds between two lines about one piece of work."""


def process_name() -> str:
    """Return the name of this process, host:pid. Call it for each line, because a process may fork."""
    return f"{socket.gethostname()}:{os.getpid()}"


def json_line(fields: Mapping[str, object]) -> str:
    """Encode fields as one line of JSON, with secrets hidden; values unknown to JSON become text."""
    return json.dumps({name: _plain(value) for name, value in fields.items()}, allow_nan=False)


def _plain(value: Any) -> Any:
    """Convert a value for JSON, and hide secrets in it.

    In the whole line, a secret could also match a key or a number.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):  # NumPy's as well
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {hidden(str(name)): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return hidden(str(value))


class JsonFormatter(logging.Formatter):
    """Formatter of log records as JSON lines.

    The fields are timestamp (ISO 8601, UTC), level, event, logger, worker, then the constant fields `facts`.
    """

    def __init__(self, facts: Mapping[str, object]) -> None:
        super().__init__()
        self._facts = dict(facts)

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as a line; a traceback is text in its field `exception`."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "timestamp": f"{seconds}.{int(record.created % 1 * 1_000_000):06}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            "worker": process_name(),
            **self._facts,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_line(fields)


@contextmanager
def announced(work: str, say: Callable[[str], None], first_s: float = FIRST_LINE_S) -> Iterator[None]:
    """Log that the block is slow: after a few seconds, then every half minute until it ends.

    Args:
        work: noun phrase that names the work, with the reason why it may take long.
        say: function that writes a line; called from another thread.
        first_s: seconds until the first line.
    """
    has_ended = threading.Event()
    began = time.monotonic()

    def watch() -> None:
        pause_s = first_s
        while not has_ended.wait(pause_s):
            say(f"{work}; {time.monotonic() - began:.0f} s so far")
            pause_s = NEXT_LINE_S

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()  # a process that forks afterwards must have no other thread
