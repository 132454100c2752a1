"""What a record's verdict must be: the rule of deduplication, written a second time.

It shares no code with the worker, so that verify does not repeat a mistake of the worker.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.tables.identity import (
    MAX_IDENTITY_BYTES,
    PRODUCER_HEADER,
    SEQUENCE_MAX,
    Identity,
    SequenceForm,
    SequenceSource,
)

Headers = list[tuple[str, bytes | None]]

_DECIMAL = re.compile(rb"-?[0-9]+", re.ASCII)

_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
"""An escape in a JSON string; the group is a half of a surrogate pair without the other, which is no character."""


_OF_A_LETTER = b"ratchet-replayed-from:"
"""An identity that begins so is the name of a dead letter, from which the record was replayed."""


@dataclass(frozen=True, slots=True)
class RecordView:
    """A record as read from Kafka; also what a user's extractor is called with."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class Rule:
    """Finds identity and sequence of a record.

    Raises:
        SettingsError: the user's extractor cannot be imported.
    """

    def __init__(self, identity: Identity, sequence: SequenceSource, form: SequenceForm = SequenceForm.GUESS) -> None:
        self._identity = identity
        self._sequence = sequence
        self._form = form
        self._function = _imported(sequence.name) if sequence.kind == "function" else None

    def judge(self, record: RecordView) -> tuple[bytes, int] | None:
        """Identity and sequence; None where the record is invalid. A replayed record may be judged by its letter."""
        if letter := _letter_of(record):
            return letter, 0
        identity = self._identity_of(record)
        sequence = self._sequence_of(record)
        if identity is None or len(identity) > MAX_IDENTITY_BYTES:
            return None
        if sequence is None or not 0 <= sequence <= SEQUENCE_MAX:
            return None
        return identity, sequence

    def _identity_of(self, record: RecordView) -> bytes | None:
        if self._identity == Identity.PARTITION:
            return b""
        if self._identity == Identity.KEY:
            return record.key
        return _only(record.headers, PRODUCER_HEADER) or None

    def _sequence_of(self, record: RecordView) -> int | None:
        if self._function is not None:
            return _called(self._function, record)
        if self._sequence.kind == "field":
            return _field(record.value, self._sequence.name.split("."))
        return _number(_only(record.headers, self._sequence.name), self._form)


def _letter_of(record: RecordView) -> bytes:
    letter = _only(record.headers, "ratchet-replayed-from")
    return _OF_A_LETTER + letter if letter and len(letter) <= MAX_IDENTITY_BYTES - len(_OF_A_LETTER) else b""


def is_kept(record: RecordView) -> bool:
    """Whether it is a dead letter where another record is a duplicate: it was replayed, and is judged by the rule."""
    headers = record.headers
    return any(name == "ratchet-replays" for name, _ in headers) and not _letter_of(record)


def _only(headers: Headers, name: str) -> bytes | None:
    """The header's value; None where it is missing, null, or there more than once."""
    values = [value for header, value in headers if header == name]
    return values[0] if len(values) == 1 else None


def _number(text: bytes | None, form: SequenceForm) -> int | None:
    if text is None:
        return None
    is_text = form is SequenceForm.TEXT or (form is SequenceForm.GUESS and _DECIMAL.fullmatch(text))
    if is_text:
        return _decimal(text)
    return int.from_bytes(text, "big", signed=True) if len(text) == 8 else None


def _decimal(text: bytes) -> int | None:
    if not _DECIMAL.fullmatch(text):
        return None
    digits = text.lstrip(b"-").lstrip(b"0") or b"0"
    if len(digits) > 19:  # 2^63 has 19; Python refuses to convert very long ones
        return None
    return -int(digits) if text.startswith(b"-") else int(digits)


def _field(value: bytes | None, path: list[str]) -> int | None:
    if value is None:
        return None
    try:
        # Bytes that are not UTF-8 elsewhere in the value do not matter: they pass through as they are.
        text = value.decode("utf-8", "surrogateescape")
        found: Any = json.loads(text, parse_int=_integer, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    if "\\u" in text and any(escape[1] for escape in _ESCAPE.finditer(text)):
        return None
    for part in path:
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    if isinstance(found, str):
        return _decimal(found.encode("utf-8", "replace"))
    return found if type(found) is int else None


def _integer(text: str) -> int | None:
    """None where it is too long to be a sequence: Python refuses to convert it, and elsewhere it does not matter."""
    return _decimal(text.encode())


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _called(function: Callable[[RecordView], object], record: RecordView) -> int | None:
    try:
        found = function(record)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever a user's function raises, sys.exit() included, the record has no sequence
        return None
    return int.__int__(found) if isinstance(found, int) and not isinstance(found, bool) else None


def _imported(name: str) -> Callable[[RecordView], object]:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"sequence: function:{name} cannot be imported: {error}") from error
    if not callable(found):
        raise SettingsError(f"sequence: function:{name} is not a function")
    return found  # type: ignore[no-any-return]
