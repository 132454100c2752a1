"""Decoding of Protobuf in the executors: untrusted bytes become the values of columns.

Every length is checked against the available bytes before its use, and no message of a plan contains itself, so that
the length of a value bounds work and memory. Fields without a column are skipped. pyspark sends this module
by value.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

MALFORMED = (ValueError, IndexError, struct.error, OverflowError)
"""Exceptions that a `Read` function raises for bytes that do not match its plan."""

Convert = Callable[[Any], Any]
"""Function from a wire value (unsigned 64-bit number, or bytes) to a column's value."""

Read = Callable[[bytes], dict[str, Any]]
"""Function from the bytes of a message to its values."""

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)

TAG_MOST, TAG_BYTES_MOST = 0xFFFFFFFF, 5
"""Greatest key of a field, and the greatest length of a key in bytes. A key has 29 bits of the field's number and 3 of
its wire type, as in Google's parsers."""

MAX_GROUPS = 64
"""Maximum depth of nested groups to skip."""

WIRE = {
    "fixed64": FIXED64,
    "sfixed64": FIXED64,
    "double": FIXED64,
    "fixed32": FIXED32,
    "sfixed32": FIXED32,
    "float": FIXED32,
    "string": BYTES,
    "bytes": BYTES,
    "message": BYTES,
}
"""Wire type by the type of a field; all other types have VARINT."""


def decode(plan: Any, restricted_values: int) -> Callable[[bytes, int], Any]:
    """Return the function that reads a value; see `task.Decode`.

    Args:
        plan: see `protobuf.Reading`.
        restricted_values: if set, text with NUL counts as malformed; if 2, NaN and infinity do too.
    """
    read = message(plan, restricted_values)

    def whole(value: bytes, at: int) -> Any:
        try:
            return read(value[at:])
        except MALFORMED:
            return None

    return whole


def message(plan: Any, restricted_values: int) -> Read:
    """Return the decoder for a plan ("message", plans of fields by number, values of absent fields by column)."""
    fields = {
        number: (name, many, others, _kind(kind, restricted_values), WIRE.get(kind[0], VARINT))
        for number, (name, many, others, kind) in plan[1].items()
    }
    whole = {number for number, field in plan[1].items() if field[3][0] == "message" and not field[1]}
    maps = [number for number, field in plan[1].items() if field[1] == "map"]
    refused = {number for number, field in plan[1].items() if field[3][0] == "refused"}
    absent: Mapping[str, Any] = plan[2]

    def read(data: bytes) -> dict[str, Any]:
        found: dict[str, Any] = {
            name: [] if value == [] else {} if value == {} else value for name, value in absent.items()
        }
        parts: dict[str, tuple[Convert, list[bytes]]] = {}
        at, end = 0, len(data)
        while at < end:
            tag, at = _tag(data, at)
            number, wire = tag >> 3, tag & 7
            if number not in fields:
                if number == 0:
                    raise ValueError("a field with the number 0")
                at = _skip_field(data, at, number, wire, 0)
                continue
            name, many, others, convert, expected = fields[number]
            if number in refused:
                convert(None)
            for other in others:  # the last field of a oneof counts
                found[other] = None
                parts.pop(other, None)
            if many and wire == BYTES != expected:
                packed, at = _bytes(data, at)
                inside = 0
                while inside < len(packed):
                    raw, inside = _raw(packed, inside, expected)
                    found[name].append(convert(raw))
                continue
            if wire != expected:
                raise ValueError("a field with another wire type than the schema declares")
            raw, at = _raw(data, at, wire)
            if number in whole:
                parts.setdefault(name, (convert, []))[1].append(raw)
            elif many == "map":
                key, value = convert(raw)
                found[name][key] = value
            elif many:
                found[name].append(convert(raw))
            else:
                found[name] = convert(raw)
        for name, (convert, pieces) in parts.items():
            found[name] = convert(b"".join(pieces))  # a message that comes twice is merged, which is the same
        for number in maps:
            name = fields[number][0]
            found[name] = list(found[name].items())
        return found

    return read


def _kind(kind: Any, restricted_values: int) -> Convert:
    name, column = kind[0], kind[1]
    if name == "refused":
        return _refused(column)
    if name == "message":
        return _of_message(kind, restricted_values)
    if name == "enum":
        names: Mapping[int, str] = kind[2]

        def symbol(raw: int) -> str:
            number = _signed(raw, 64)
            if number not in names:
                raise ValueError("a number without a name in the enum")
            return names[number]

        return symbol
    number = _number(name)
    if number is not None:
        return _fitted(number, column, kind[2:], restricted_values == 2)
    return _text(column, restricted_values)


def _of_message(kind: Any, restricted_values: int) -> Convert:
    """Return the converter for a nested message: a plain one, a wrapper's value, a time, or an entry of a map."""
    column, within = kind[1], message(kind[2], restricted_values)
    if column == "struct":
        return within
    if column == "entry":
        value = kind[2][1][2][3]
        empty = _kind(value, restricted_values) if value[0] == "message" else None

        def entry(raw: bytes) -> tuple[Any, Any]:
            found = within(raw)
            absent = found["value"] is None and empty is not None
            return found["key"], empty(b"") if absent and empty is not None else found["value"]

        return entry
    if column == "wrapped":
        return lambda raw: within(raw)["value"]

    def time(raw: bytes) -> int:
        found = within(raw)
        seconds, nanos = found["seconds"], found["nanos"]
        if nanos % 1000 or not 0 <= nanos < 1_000_000_000 or not -62_135_596_800 <= seconds <= 253_402_300_799:
            raise ValueError("a time that is not a whole number of microseconds, or is outside the years 1 to 9999")
        return int(seconds * 1_000_000 + nanos // 1000)

    return time


def _refused(reason: str) -> Convert:
    def convert(raw: Any) -> Any:
        raise ValueError(reason)

    return convert


def _number(name: str) -> Convert | None:
    if name in {"float", "double"}:
        form = struct.Struct("<f" if name == "float" else "<d")
        return lambda raw: form.unpack(raw)[0]
    if name in {"sfixed32", "sfixed64", "fixed32", "fixed64"}:
        return lambda raw: int.from_bytes(raw, "little", signed=name[0] == "s")
    if name in {"sint32", "sint64"}:
        return lambda raw: (raw >> 1) ^ -(raw & 1)
    if name in {"int32", "int64"}:
        return lambda raw: _signed(raw, 64)
    if name == "bool":
        return lambda raw: raw != 0
    return (lambda raw: raw) if name in {"uint32", "uint64"} else None


def _fitted(number: Convert, column: str, bounds: tuple[Any, ...], finite: bool) -> Convert:
    """Return a converter that refuses numbers if the column cannot hold them unchanged."""
    if column == "boolean":
        return number
    if column in {"float", "double"}:
        form = struct.Struct("<f" if column == "float" else "<d")

        def real(raw: Any) -> float:
            value = number(raw)
            found: float = form.unpack(form.pack(value))[0]
            if (found != value and value == value) or (finite and not math.isfinite(found)):
                raise ValueError("a number that the column would round, or the store cannot hold")
            return found

        return real
    low, high = bounds

    def whole(raw: Any) -> Any:
        value = number(raw)
        if not low <= value <= high:
            raise ValueError("a number outside the range of its column")
        return Decimal(value) if column == "decimal" else value

    return whole


def _text(column: str, restricted_values: int) -> Convert:
    def text(raw: bytes) -> str:
        if restricted_values and b"\0" in raw:
            raise ValueError("text with NUL, which the store cannot hold")
        return raw.decode("utf-8")

    return text if column == "string" else lambda raw: raw


def _signed(raw: int, bits: int) -> int:
    return raw - (1 << bits) if raw >> (bits - 1) else raw


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        if shift > 63:
            raise ValueError("a number of more than ten bytes")
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            if found >> 64:
                raise ValueError("a number of more than 64 bits")
            return found, at
        shift += 7


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _varint(data, at)
    if size > len(data) - at:
        raise ValueError("a length beyond the end of the bytes")
    return data[at : at + size], at + size


def _tag(data: bytes, at: int) -> tuple[int, int]:
    """Read a field's number and wire type, encoded in at most five bytes."""
    tag, behind = _varint(data, at)
    if tag > TAG_MOST or behind - at > TAG_BYTES_MOST:
        raise ValueError("a field's number of more than 29 bits")
    return tag, behind


def _raw(data: bytes, at: int, wire: int) -> tuple[Any, int]:
    if wire == VARINT:
        return _varint(data, at)
    if wire == BYTES:
        return _bytes(data, at)
    size = 8 if wire == FIXED64 else 4
    if wire not in {FIXED64, FIXED32} or size > len(data) - at:
        raise ValueError("a length beyond the end of the bytes, or an unknown wire type")
    return data[at : at + size], at + size


def _skip_field(data: bytes, at: int, number: int, wire: int, depth: int) -> int:
    """Skip a field without a column; return the position after it."""
    if wire != GROUP:
        return _raw(data, at, wire)[1]
    if depth >= MAX_GROUPS:
        raise ValueError("groups nested too deep")
    while True:
        tag, at = _tag(data, at)
        if tag & 7 == END_GROUP:
            if tag >> 3 != number:
                raise ValueError("an end tag of another group")
            return at
        at = _skip_field(data, at, tag >> 3, tag & 7, depth + 1)
