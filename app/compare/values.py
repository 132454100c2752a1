"""Texts of values: equal values have equal texts, whichever topic, file or database holds them."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any, Final, Literal
from uuid import UUID

Kind = Literal[
    "any",
    "text",
    "untyped",
    "padded",
    "number",
    "float64",
    "float32",
    "timestamp",
    "date",
    "day",
    "time",
    "boolean",
    "uuid",
]
"""Name of the type that one side declares for a value.

any: no declared type; each value has a type of its own. untyped: text of a CSV file, which may be a number. text: text,
even if it looks like a number. padded: text that the database fills up with spaces. day: date as part of an identity;
two times of one day are different values, although they are equal as `date`.
"""

TEXT_MOST: Final = 256
"""Maximum number of characters of a value's text; a longer value becomes its beginning and a digest."""

BEGINNING: Final = 64
"""Number of characters kept from the beginning of a value longer than `TEXT_MOST`."""

PLAIN_DIGITS: Final = 40
"""Maximum number of digits in the text of a whole number; a longer one is written with an exponent."""

NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?\Z", re.ASCII)

LEADING_ZERO: Final = re.compile(r"[+-]?0\d|\+")
"""Pattern of the beginning of digits that count as text, such as 00501, since a number would lose the zeros."""

MIDNIGHT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]00:00(?::00(?:\.0+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?\Z", re.ASCII)

DATE_OF_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d", re.ASCII)

SEPARATOR: Final = "\x1f"
"""Character between several parts of an identity (ASCII's unit separator)."""

NULL: Final = "\\N"
"""Text of null among compared values. No other value has this text, because backslashes in values are doubled."""

NO_FIELDS: Final = "\\U"
"""Content of a record without fields, because its value is not in the topic's format. No other content equals it."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def text_of(value: Any) -> str | None:
    """Return the text of a value; None for null.

    Equal numbers have the same text (5, 5.0 and 5.00), times are in UTC, and objects have sorted names.
    """
    if value is None or isinstance(value, str):
        return value if value is None or not value.startswith(("{", "[")) else _json_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(Decimal(repr(value)))
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, bytes | bytearray | memoryview):
        found = _decoded(bytes(value))
        return text_of(found) if isinstance(found, str) else "\\x" + found.hex()
    if isinstance(value, datetime):
        return _time_text(value)
    if isinstance(value, time):
        return _clock_text(value)
    if isinstance(value, date | UUID):
        return str(value)
    if isinstance(value, timedelta):
        return _number(Decimal(value // timedelta(microseconds=1)) / 1_000_000)
    if not isinstance(value, dict | list | tuple | set | frozenset):
        return str(value)  # an address, a range
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _clock_text(value: time) -> str:
    """Return a time of day without zeros at the end of its fraction."""
    text = value.replace(tzinfo=None).isoformat()
    zone = value.isoformat()[len(text) :]
    return (text.rstrip("0") if value.microsecond else text) + zone


def _number(value: Decimal) -> str:
    if not value.is_finite():
        return "NaN" if value.is_nan() else "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "0"
    plain = value.normalize() if len(value.as_tuple().digits) <= 28 else value
    if value == value.to_integral_value() and value.adjusted() < PLAIN_DIGITS:
        return str(int(value))
    text = f"{plain:f}" if -PLAIN_DIGITS < plain.adjusted() < PLAIN_DIGITS else str(plain)
    return text.rstrip("0").rstrip(".") if "." in text and "E" not in text else text


def _decoded(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _time_text(value: datetime) -> str:
    try:
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:  # in UTC it is before the first year, or after the last
        return value.isoformat()
    text = moment.replace(tzinfo=None).isoformat(timespec="microseconds")
    return text.rstrip("0").rstrip(".") + "Z"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, str | bool) or value is None:
        return value
    return text_of(value)


def _json_text(value: str) -> str:
    """Return JSON text with sorted names, and other text unchanged."""
    try:
        return text_of(json.loads(value, parse_float=Decimal)) or value
    except (ValueError, RecursionError):
        return value


def converter(kind: Kind) -> Callable[[Any], str | None]:
    """Return the function that converts values to text for comparison as one type; see `common`."""
    if kind == "any":
        return text_of
    convert = {
        "text": _as_text,
        "untyped": _as_untyped,
        "padded": _as_padded,
        "number": _as_number,
        "float64": _as_float64,
        "float32": _as_float32,
        "timestamp": _as_timestamp,
        "date": _as_date,
        "day": _as_day,
        "time": _as_time,
        "boolean": _as_boolean,
        "uuid": _as_uuid,
    }[kind]

    def text(value: Any) -> str | None:
        if isinstance(value, bytes):
            value = _decoded(value)
        return None if value is None else convert(value)

    return text


def _decimal(value: Any) -> Decimal | None:
    if isinstance(value, bool):
        return Decimal(int(value))
    if isinstance(value, int | Decimal):
        return Decimal(value)
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, str) and NUMBER.match(value):
        try:
            return Decimal(value)
        except InvalidOperation:
            return None
    return None


def _as_text(value: Any) -> str | None:
    return None if value == "" else text_of(value)  # a CSV file cannot tell it from null


def _as_untyped(value: Any) -> str | None:
    if value == "" or (isinstance(value, str) and LEADING_ZERO.match(value)):
        return _as_text(value)
    found = _decimal(value) if not isinstance(value, bool) else None
    return text_of(value) if found is None else _number(found)


def _as_padded(value: Any) -> str | None:
    return text_of(value.rstrip(" ") if isinstance(value, str) else value)


def _as_number(value: Any) -> str | None:
    found = _decimal(value)
    return text_of(value) if found is None else _number(found)


def _as_float64(value: Any) -> str | None:
    if isinstance(value, float):
        text = repr(value)
        if value and "e" not in text and "n" not in text:  # else an exponent, infinity, or no number
            return text.removesuffix(".0")
    found = _decimal(value)
    if found is None:
        return text_of(value)
    rounded = float(found)
    return _number(Decimal(repr(rounded))) if math.isfinite(rounded) else _number(found)


def _as_float32(value: Any) -> str | None:
    found = _decimal(value)
    if found is None:
        return text_of(value)
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", float(found)))
    except OverflowError:
        return _number(found)
    return f"{rounded:.9g}"


def _as_timestamp(value: Any) -> str | None:
    if isinstance(value, datetime):
        return _time_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _time_of_number(value) or text_of(value)
    if isinstance(value, str):
        try:
            return _time_text(datetime.fromisoformat(value))
        except ValueError:
            return text_of(value)
    return text_of(value)


def _time_of_number(value: int) -> str | None:
    """Return the text of a time given in milliseconds since 1970.

    A number beyond the year 9999 counts as microseconds or nanoseconds, which change data capture writes.
    """
    for unit in (timedelta(milliseconds=1), timedelta(microseconds=1)):
        with suppress(OverflowError):
            return _time_text(EPOCH + value * unit)
    with suppress(OverflowError):
        return _time_text(EPOCH + timedelta(microseconds=value // 1000))
    return None


def _as_date(value: Any) -> str | None:
    is_time = isinstance(value, datetime) or (isinstance(value, str) and DATE_OF_TIME.match(value) is not None)
    if is_time and (time_text := _as_timestamp(value)) is not None:
        return time_text[:10]  # the day in UTC, as in `_as_timestamp`
    if isinstance(value, int) and not isinstance(value, bool):
        return _date_of_number(value) or text_of(value)
    return text_of(value)


def _date_of_number(value: int) -> str | None:
    """Return the text of a date given as a number.

    The number is in days since 1970, or in milliseconds up to a midnight in UTC.
    """
    with suppress(OverflowError):
        return str(EPOCH.date() + timedelta(days=value))
    found = _time_of_number(value)
    return found[:10] if found is not None and MIDNIGHT.match(found) else None


def _as_day(value: Any) -> str | None:
    is_time = isinstance(value, datetime) or (isinstance(value, str) and DATE_OF_TIME.match(value) is not None)
    if is_time and not MIDNIGHT.match(str(value)):
        return text_of(value)
    return _as_date(value)


def _as_time(value: Any) -> str | None:
    if isinstance(value, timedelta) and value < timedelta():
        return f"-{_as_time(-value)}"
    if isinstance(value, timedelta):
        minutes, rest = divmod(value, timedelta(minutes=1))
        clock = time(0, 0, rest.seconds, rest.microseconds)
        return f"{minutes // 60:02}:{minutes % 60:02}{_clock_text(clock)[5:]}"
    if isinstance(value, str):
        try:
            return _clock_text(time.fromisoformat(value))
        except ValueError:
            return text_of(value)
    return text_of(value)


def _as_uuid(value: Any) -> str | None:
    if isinstance(value, str):
        try:
            return str(UUID(value))
        except ValueError:
            return text_of(value)
    return text_of(value)


def _as_boolean(value: Any) -> str | None:
    if value in (0, 1):
        return "true" if value else "false"
    if isinstance(value, str) and value.lower() in ("true", "false", "t", "f", "1", "0"):
        return "true" if value.lower() in ("true", "t", "1") else "false"
    return text_of(value)


def bounded(text: str) -> str:
    """Return a short text unchanged, and a long one as its beginning and a digest."""
    if len(text) <= TEXT_MOST:
        return text
    return f"{text[:BEGINNING]}... ({len(text)} characters, {_digest(text)})"


def identity_of(parts: Sequence[str | None]) -> str | None:
    """Return the text of an identity from its parts; None if a part is null."""
    if len(parts) == 1:
        return None if parts[0] is None else bounded(_whole(parts[0]))
    if None in parts:
        return None
    return SEPARATOR.join(escaped(bounded(part or "")) for part in parts)


def content_of(parts: Sequence[str | None]) -> str:
    """Return one text for all compared values, including nulls."""
    return SEPARATOR.join(NULL if part is None else escaped(bounded(part)) for part in parts)


def shown_identity(text: str) -> str:
    """Return an identity as text for display."""
    return " / ".join(_unescaped(part) for part in text.split(SEPARATOR)) if SEPARATOR in text else text


def content_parts(text: str) -> list[str | None]:
    """Split a text made by `content_of` into the compared values."""
    return [None if part == NULL else _unescaped(part) for part in text.split(SEPARATOR)]


def _whole(text: str) -> str:
    """Escape NUL and lone surrogates, which databases cannot store.

    A text with escapes gets a digest at its end.
    """
    if "\0" in text or not text.isascii():
        kept = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
        return text if kept == text else f"{kept} ({_digest(text)})"
    return text


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def escaped(text: str) -> str:
    """Escape a text for joining with other parts."""
    return _whole(text.replace("\\", "\\\\").replace(SEPARATOR, "\\u001f"))


def _unescaped(text: str) -> str:
    return text.replace("\\u001f", SEPARATOR).replace("\\\\", "\\") if "\\" in text else text


def common(source: Kind, target: Kind) -> Kind:
    """Return the type for comparing both sides: the target's type if it declares one, else the source's."""
    for kind in (target, source):
        if kind not in ("any", "untyped"):
            return kind
    return "untyped" if "untyped" in (source, target) else "any"


def exact(kind: Kind) -> Kind:
    """Return the type for comparing a part of an identity exactly.

    This type neither rounds nor changes digits in text. Otherwise two identities, such as 7 and 007, would become one.
    """
    if kind in ("number", "float64", "float32"):
        return "any"
    if kind == "date":
        return "day"
    return "text" if kind == "untyped" else kind
