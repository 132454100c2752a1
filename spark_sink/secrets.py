"""Values that are never written: passwords, keys, urls with a password. A safety net: no message of ours has them.

Whoever reads such a value from settings or environment calls `keep`; what is printed, logged or raised to the top goes
through `hidden`. A library's error text may quote any of its arguments.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final
from urllib.parse import quote, unquote, urlsplit

HIDDEN: Final = "***"
LEAST: Final = 8
"""Shorter values are part of ordinary words; to replace them would make every text unreadable."""

WORDS: Final = frozenset(
    {
        "client.id",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.username",
        "security.protocol",
        "ssl.endpoint.identification.algorithm",
    }
)
"""Client options whose values are words of every text (PLAIN, ratchet), and are therefore not looked for in what is
written. No message of ours quotes them either."""

_kept: dict[str, None] = {}


def keep(values: Iterable[str | None]) -> None:
    """Remember values that must not be written, and the password in those that are urls."""
    for value in values:
        if value is None:
            continue
        for text in (value, _password(value)):
            if text is not None and len(text) >= LEAST:
                # As they stand in a message, in a repr, in JSON and in a url.
                spellings = (text, repr(text)[1:-1], json.dumps(text)[1:-1], quote(text, safe=""), unquote(text))
                _kept.update(dict.fromkeys(each for each in spellings if len(each) >= LEAST))


def of_client(options: Mapping[str, object]) -> Iterator[str]:
    """Those values of client options that must not be written, in librdkafka's names or in Java's."""
    for name, value in options.items():
        if isinstance(value, str) and name not in WORDS:
            yield value


def of_registry(options: Mapping[str, str]) -> Iterator[str]:
    """Those values of a schema registry's options that must not be written: the addresses only where they say who."""
    for name, value in options.items():
        if name != "url":
            yield value
            yield from value.split(":", 1)[1:] if name == "basic.auth.user.info" else ()
            continue
        for url in value.split(","):
            password = _password(url.strip())
            if password is not None:
                yield from (value, url.strip(), password)


def hidden(text: str) -> str:
    """The text with *** in the place of every value that was kept."""
    for value in sorted(_kept, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


class HidingFormatter(logging.Formatter):
    """What another formatter makes of a record, hidden. A traceback is part of it."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """One record as text."""
        return hidden(self._inner.format(record))


def hide_in_tracebacks() -> None:
    """What ends this process, or one of its threads, is written hidden too."""

    def said(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error or kind(), trace)
            return
        sys.stderr.write(hidden("".join(traceback.format_exception(kind, error, trace))))

    sys.excepthook = said
    threading.excepthook = lambda told: said(told.exc_type, told.exc_value, told.exc_traceback)


def _password(value: str) -> str | None:
    try:
        return urlsplit(value).password
    except ValueError:
        return None
