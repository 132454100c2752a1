"""Rule of deduplication, written a second time for verify.

It shares no code with the worker's rule, so that verify does not repeat the worker's mistakes.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.identity import (
    MAX_IDENTITY_BYTES,
    PRODUCER_HEADER,
    SEQUENCE_MAX,
    Identity,
    IdentityPart,
    SequenceForm,
    SequenceSource,
    path_names,
)
from kafka_ratchet.rule.nesting import decoded, is_too_deep

Headers = list[tuple[str, bytes | None]]

_DECIMAL = re.compile(rb"-?[0-9]+", re.ASCII)

_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
"""Pattern of an escape in a JSON string. The group matches a lone surrogate, which is no character."""


_NUMBER = re.compile(rb"0|[1-9][0-9]*", re.ASCII)
_OF_A_LETTER = b"ratchet-replayed-from:"
"""Prefix of the identity that a re-sent dead letter has instead of its own."""


@dataclass(frozen=True, slots=True)
class RecordView:
    """Record as read from Kafka; also the argument of a user's extractor."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    is_append_time: bool = False
    """True if the broker has replaced the event's own timestamp (message.timestamp.type=LogAppendTime)."""


class Rule:
    """Rule of one stream, which reads identity and sequence from records.

    Raises:
        SettingsError: the user's extractor cannot be imported.
    """

    def __init__(
        self,
        identity: Identity,
        sequence: SequenceSource,
        form: SequenceForm = SequenceForm.GUESS,
        dead_letters: tuple[str, str, str] | None = None,
    ) -> None:
        """Import the user's extractors, if any.

        dead_letters: (application, name, id) of the stream's dead-letter topic, needed to recognise re-sent dead
        letters. None: re-sent dead letters are treated like any other record
        """
        self._identity = identity
        self._dead_letters = dead_letters
        self._sequence = sequence
        self._form = form
        self._function = _imported("sequence", sequence.name) if sequence.kind == "function" else None
        self._functions = {
            part.name: _imported("identity", part.name) for part in identity.parts if part.kind == "function"
        }

    def identify(self, record: RecordView) -> tuple[bytes, int] | None:
        """Return identity and sequence of a record; None if the record is invalid.

        A re-sent dead letter of this stream has an identity made from the dead letter, and the sequence 0.
        """
        if letter := self._letter_of(record):
            return letter, 0
        identity = self.identity_of(record)
        sequence = self._sequence_of(record)
        if identity is None or len(identity) > MAX_IDENTITY_BYTES:
            return None
        if sequence is None or not 0 <= sequence <= SEQUENCE_MAX:
            return None
        return identity, sequence

    @property
    def guessed_header(self) -> str | None:
        """Return the name of the header with the sequence, if the form of the sequence is guessed; else None."""
        is_guessed = self._sequence.kind == "header" and self._form is SequenceForm.GUESS
        return self._sequence.name if is_guessed else None

    def is_kept(self, record: RecordView) -> bool:
        """Return True if the record, as a duplicate, becomes a dead letter again instead of being dropped.

        This applies to a re-sent dead letter with an identity and sequence of its own.
        """
        return was_replayed(record) and not self._letter_of(record)

    def _letter_of(self, record: RecordView) -> bytes:
        """Return the identity of a re-sent dead letter of this stream; b"" for any other record."""
        letter = _only(record.headers, "ratchet-replayed-from")
        if not letter or self._dead_letters is None:
            return b""
        parts = letter.split(b"/")
        own = [each.encode() for each in self._dead_letters]
        if parts[:-2] not in (own, own[1:]):  # without the application, as earlier versions have named it
            return b""
        partition, offset = parts[-2:]
        if not (_NUMBER.fullmatch(partition) and _NUMBER.fullmatch(offset)) or len(partition) > 10 or len(offset) > 19:
            return b""
        content = b"".join(b"-" if part is None else b"%d:" % len(part) + part for part in (record.key, record.value))
        name = b"/".join([*own[1:], partition, offset])
        return _OF_A_LETTER + name + b"/" + hashlib.blake2b(content, digest_size=16).hexdigest().encode()

    def identity_of(self, record: RecordView) -> bytes | None:
        """Return the identity in a record; None if it is missing or unreadable."""
        parts = [self._part_of(part, record) for part in self._identity.parts]
        if len(parts) == 1:
            return parts[0]
        whole = b""
        for part in parts:
            if part is None or len(part) > MAX_IDENTITY_BYTES:
                return None
            low, high = len(part) % 128, len(part) // 128
            whole += (bytes([low + 128, high]) if high else bytes([low])) + part
        return whole

    def _part_of(self, part: IdentityPart, record: RecordView) -> bytes | None:
        if part.kind == "partition":
            return b""
        if part.kind == "key":
            return record.key
        if part.kind == "field":
            return _id(_found(record.value, path_names(part.name))) or None
        if part.kind == "function":
            return _id(_called(self._functions[part.name], record)) or None
        return _only(record.headers, part.name or PRODUCER_HEADER) or None

    def _sequence_of(self, record: RecordView) -> int | None:
        if self._sequence.kind == "none":
            return 0
        if self._function is not None:
            found = _called(self._function, record)
            return int.__int__(found) if isinstance(found, int) and not isinstance(found, bool) else None
        if self._sequence.kind == "field":
            return _field(record.value, path_names(self._sequence.name))
        return _number(_only(record.headers, self._sequence.name), self._form)


def was_replayed(record: RecordView) -> bool:
    """Return True if a record has the headers of a re-sent dead letter."""
    return any(name == "ratchet-replays" for name, _ in record.headers)


def only_header(headers: Headers, name: str) -> bytes | None:
    """Return a header's value; None if the header is missing, null, or repeated."""
    return _only(headers, name)


def _only(headers: Headers, name: str) -> bytes | None:
    """Return a header's value; None if the header is missing, null, or repeated."""
    values = [value for header, value in headers if header == name]
    return values[0] if len(values) == 1 else None


def _number(text: bytes | None, form: SequenceForm) -> int | None:
    if text is None:
        return None
    is_text = form is SequenceForm.TEXT or (form is SequenceForm.GUESS and _DECIMAL.fullmatch(text))
    if is_text:
        return _decimal(text)
    order: Literal["little", "big"] = "little" if form is SequenceForm.LITTLE_ENDIAN else "big"
    return int.from_bytes(text, order, signed=True) if len(text) == 8 else None


def _decimal(text: bytes) -> int | None:
    if not _DECIMAL.fullmatch(text):
        return None
    digits = text.lstrip(b"-").lstrip(b"0") or b"0"
    if len(digits) > 19:  # 2^63 has 19; Python refuses to convert very long ones
        return None
    return -int(digits) if text.startswith(b"-") else int(digits)


class _Digits(str):
    """Text of a whole number in a JSON value.

    It is not converted, since Python refuses very long numbers.
    """

    __slots__ = ()


def _field(value: bytes | None, path: Sequence[str]) -> int | None:
    found = _found(value, path)
    return _decimal(found.encode("utf-8", "replace")) if isinstance(found, str) else None


def _id(found: object) -> bytes | None:
    """Convert a field's value or a function's result to the bytes of an identity.

    Returns:
        bytes; None if the value is neither bytes nor text
    """
    if isinstance(found, bytes):
        return memoryview(found).tobytes()
    if not isinstance(found, str):
        return None
    try:
        text = str.encode(found)  # a user's subclass may override methods
    except UnicodeEncodeError:
        return None
    return b"0" if isinstance(found, _Digits) and text == b"-0" else text


def _found(value: bytes | None, path: Sequence[str]) -> object:
    """Return the object at a path of a JSON value, with whole numbers as `_Digits`; None if it is missing."""
    if value is None or is_too_deep(value):
        return None
    try:
        # Bytes outside UTF-8 elsewhere in the value do not matter: they pass through unchanged.
        text = value.decode("utf-8", "surrogateescape")
        found: Any = decoded(_parse, text)
    except ValueError:
        return None
    if "\\u" in text and any(escape[1] for escape in _ESCAPE.finditer(text)):
        return None
    for part in path:
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found


def _parse(text: str) -> object:
    """Parse JSON text, with whole numbers as `_Digits`."""
    return json.loads(text, parse_int=_Digits, parse_constant=_no_constant)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _called(function: Callable[[RecordView], object], record: RecordView) -> object:
    try:
        return function(record)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever a user's function raises, sys.exit() included, the record has nothing of it
        return None


def _imported(setting: str, name: str) -> Callable[[RecordView], object]:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"{setting}: function:{name} cannot be imported: {error}") from error
    if not callable(found):
        raise SettingsError(f"{setting}: function:{name} is not a function. Name a function as function:MODULE:NAME")
    return found  # type: ignore[no-any-return]
