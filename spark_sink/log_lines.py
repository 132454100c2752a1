"""Log lines as JSON: one object a line, for those who collect logs. Text is what logging's own formatter makes."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import time
from collections.abc import Mapping
from numbers import Integral
from typing import Any, Literal

from kafka_ratchet.spark_sink.secrets import hidden

LogFormat = Literal["text", "json"]


def process_name() -> str:
    """Which process writes: host:pid. Asked at each line, because a process may fork."""
    return f"{socket.gethostname()}:{os.getpid()}"


def json_line(fields: Mapping[str, object]) -> str:
    """One line of JSON. Secrets are hidden in the values; what JSON has no form for becomes text."""
    return json.dumps({name: _plain(value) for name, value in fields.items()}, allow_nan=False)


def _plain(value: Any) -> Any:
    """The value as JSON has it. Hidden here: in the whole line, *** could take the place of a key or a number."""
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
    """Records of logging as JSON lines: timestamp (ISO 8601, UTC), level, event, logger, worker, then `facts`."""

    def __init__(self, facts: Mapping[str, object]) -> None:
        super().__init__()
        self._facts = dict(facts)

    def format(self, record: logging.LogRecord) -> str:
        """One record as a line; a traceback is text in its field `exception`."""
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
