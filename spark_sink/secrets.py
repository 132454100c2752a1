"""Secret values that no output may contain: passwords, keys, urls with a password.

This is a safety net: no message of Ratchet contains them on purpose. Code that reads such a value calls `keep`; all
printed, logged or raised text goes through `hidden`. A library's error text may quote any of its arguments.
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
"""Minimum length of a hidden value. Shorter values occur in ordinary words, and hiding them would make every text
unreadable."""

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
"""Client options with ordinary words as values (PLAIN, ratchet). These values are not replaced in written text, and no
message of Ratchet quotes them."""

_kept: dict[str, None] = {}


def keep(values: Iterable[str | None]) -> None:
    """Remember values that must not be written, and the passwords of urls among them."""
    for value in values:
        if value is None:
            continue
        for text in (value, _password(value)):
            if text is not None and len(text) >= LEAST:
                # In the forms of a message, a repr, JSON and a url.
                spellings = (text, repr(text)[1:-1], json.dumps(text)[1:-1], quote(text, safe=""), unquote(text))
                _kept.update(dict.fromkeys(each for each in spellings if len(each) >= LEAST))


def of_client(options: Mapping[str, object]) -> Iterator[str]:
    """Yield the values of Kafka client options that no output may contain: all but those of `WORDS`.

    The options have librdkafka's or Java's names.
    """
    for name, value in options.items():
        if isinstance(value, str) and name not in WORDS:
            yield value


def of_registry(options: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of a schema registry's options that no output may contain.

    An address is among them only if it contains a password.
    """
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
    """Return the text with *** in place of every kept value."""
    for value in sorted(_kept, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


class HidingFormatter(logging.Formatter):
    """Formatter that hides kept values in the text of another formatter, tracebacks included."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as text."""
        return hidden(self._inner.format(record))


def hide_in_tracebacks() -> None:
    """Hide kept values also in tracebacks that end this process or a thread."""

    def write_hidden(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error or kind(), trace)
            return
        sys.stderr.write(hidden("".join(traceback.format_exception(kind, error, trace))))

    sys.excepthook = write_hidden
    threading.excepthook = lambda args: write_hidden(args.exc_type, args.exc_value, args.exc_traceback)


def _password(value: str) -> str | None:
    try:
        return urlsplit(value).password
    except ValueError:
        return None
