"""Limit to the depth of nested JSON, one for all runtimes.

`json` and `msgspec` stop where Python's stack ends, which depends on the version and on the caller. Every reader of a
record's value calls `is_too_deep` first, so that a record gets the same verdict everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Thread
from typing import Final, TypeVar

import numpy as np

NESTING_MOST: Final = 512
"""Maximum number of objects and lists open at once; a value with more is not read as JSON."""

SHALLOW_BYTES: Final = 2 * NESTING_MOST
"""Maximum bytes of a value surely not nested too deep, because each level takes two brackets."""

_STRINGS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1

Text = TypeVar("Text", bytes, memoryview, str)
Result = TypeVar("Result")


def is_too_deep(value: bytes) -> bool:
    """Return True if JSON text opens more than `NESTING_MOST` objects and lists at once."""
    if len(value) <= SHALLOW_BYTES or value.count(b"[") + value.count(b"{") <= NESTING_MOST:
        return False
    bare = np.frombuffer(_STRINGS.sub(b"", value), np.uint8)
    depths = np.cumsum(_STEPS[bare], dtype=np.int64)
    return bool(depths.max(initial=0) > NESTING_MOST)


def decoded(decode: Callable[[Text], Result], value: Text) -> Result:
    """Decode JSON text nested at most `NESTING_MOST` deep, even if little of the caller's stack is left.

    Raises:
        Exception: as `decode` does.
    """
    try:
        return decode(value)
    except RecursionError:
        return _on_another_stack(decode, value)


def _on_another_stack(decode: Callable[[Text], Result], value: Text) -> Result:
    results: list[Result] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(decode(value))
        except Exception as error:
            errors.append(error)

    thread = Thread(target=run, name="decode", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
