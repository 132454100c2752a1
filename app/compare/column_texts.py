"""Texts of whole columns, equal to the texts that module `values` makes of single values.

Most values are converted all at once, and unusual ones one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from kafka_ratchet.app.compare.side import RequestedValues, Rows
from kafka_ratchet.app.compare.values import (
    NULL,
    SEPARATOR,
    TEXT_MOST,
    Kind,
    bounded,
    converter,
    escaped,
    identity_of,
)

Column: TypeAlias = list[Any] | pa.Array
"""Values of a column: a list, or an array of Arrow."""

NUMERIC: Final = ("any", "number", "untyped", "text")
"""Types that write a whole number as its digits."""

DIGITS: Final = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?$"
"""Pattern of a number without an exponent."""

MINUS_ZERO: Final = r"^-[0.]+$"

DIGITS_MOST: Final = 28
"""Maximum number of characters of a number with plain digits, not counting zeros at its end."""

FLOAT_MOST: Final = 15
"""Maximum number of characters of a number such that a double holds all of its digits."""

STRUCTURED: Final = r"^[{\[]"
"""Pattern of the first character of a text that may be JSON."""

NUMBER_LIKE: Final = r"^[-+.0-9]"

TIME: Final = (
    r"^[1-8][0-9]{3}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3])(?::[0-5][0-9])?)?$"
)
"""Pattern of times that Arrow and Python parse equally, in any zone."""

ZONE: Final = r":.*(?:Z|[+-][0-9]{2}(?::[0-9]{2})?)$"

UTC_TIME: Final = pa.timestamp("us", "UTC")

EARLIEST: Final = pa.scalar(datetime.min.replace(tzinfo=UTC), UTC_TIME)
LATEST: Final = pa.scalar(datetime.max.replace(tzinfo=UTC), UTC_TIME)
"""Earliest and latest time that Python can hold, in UTC."""


def rows_of(columns: Sequence[Column], wanted: RequestedValues) -> Rows:
    """Return the identity and content texts of rows.

    Args:
        columns: values of the rows, one column for each of `wanted.places`.
        wanted: places and types of these columns.
    """
    count = len(columns[0])
    try:
        made = [texts_of(column, kind) for column, (_, kind) in zip(columns, wanted.parts, strict=True)]
    except UnicodeEncodeError:  # a lone surrogate, which JSON allows and Arrow does not
        both = wanted.texts()
        lists = [column if isinstance(column, list) else values_of(column) for column in columns]
        pairs = [both(values) for values in zip(*lists, strict=True)]
        return Rows([identity for identity, _ in pairs], [content for _, content in pairs])
    by, compared = made[: len(wanted.by)], made[len(wanted.by) :]
    if len(by) == 1:
        identities = _replaced(by[0], r"\x00", lambda text: identity_of((text,)) or "")
    else:
        identities = _joined([_part(each) for each in by])
    if not compared:
        return Rows(identities, pa.repeat(pa.scalar(""), count))
    return Rows(identities, _joined([pc.fill_null(_part(each), NULL) for each in compared]))


def texts_of(column: Column, kind: Kind) -> pa.Array:
    """Return the text of each value, as `converter(kind)` makes it.

    Raises:
        UnicodeEncodeError: a text has a lone surrogate.
    """
    return _of_list(column, kind) if isinstance(column, list) else _of_array(column, kind)


def values_of(column: pa.Array) -> list[Any]:
    """Return the values of an array.

    Nanoseconds become microseconds, which Python can hold. A map, at any depth, becomes an object with the last value
    of a repeated key.
    """
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    elif pa.types.is_time64(column.type):
        column = column.cast(pa.time64("us"), safe=False)
    convert = _objects(column.type)
    values = list(column.to_pylist())
    return values if convert is None else [None if each is None else convert(each) for each in values]


def _objects(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts maps in a value to objects; None for a type without maps."""
    types = pa.types
    if types.is_map(type_) and not types.is_nested(type_.key_type):
        item = _or_null(_objects(type_.item_type))
        return lambda value: {key: item(each) for key, each in value}
    if types.is_struct(type_):
        fields = {field.name: _objects(field.type) for field in type_}
        if not any(fields.values()):
            return None
        converts = {name: _or_null(convert) for name, convert in fields.items()}
        return lambda value: {name: converts[name](each) for name, each in value.items()}
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        if (convert := _objects(type_.value_type)) is None:
            return None
        each_of = _or_null(convert)
        return lambda value: [each_of(each) for each in value]
    return None


def _or_null(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return lambda value: value if value is None or convert is None else convert(value)


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, pa.scalar(SEPARATOR))


def _part(texts: pa.Array) -> pa.Array:
    """Escape and shorten texts, so that they can be joined to the text of an identity or content."""
    return _replaced(texts, r"[\x00\x1f\\]", lambda text: escaped(bounded(text)))


def _replaced(texts: pa.Array, special: str, convert: Callable[[str], str]) -> pa.Array:
    """Return the texts, with long ones and those that match `special` converted."""
    # In bytes: no text of fewer bytes has more characters.
    is_special = pc.or_(pc.match_substring_regex(texts, special), pc.greater(pc.binary_length(texts), TEXT_MOST))
    return _put(texts, is_special, lambda chosen: [convert(text) for text in texts.take(chosen).to_pylist()])


def _put(texts: pa.Array, chosen: pa.Array, convert: Callable[[pa.Array], list[str | None]]) -> pa.Array:
    """Return the texts, with those of chosen rows replaced.

    convert: function that gets the numbers of these rows, and returns their new texts
    """
    mask = pc.fill_null(chosen, fill_value=False)
    if not pc.any(mask).as_py():
        return texts
    return pc.replace_with_mask(texts, mask, pa.array(convert(pc.indices_nonzero(mask)), pa.string()))


def _singly(values: Sequence[Any], kind: Kind) -> list[str | None]:
    convert = converter(kind)
    return [convert(value) for value in values]


def _of_list(values: list[Any], kind: Kind) -> pa.Array:
    types = set(map(type, values)) - {type(None)}
    if types == {bytes}:
        return _of_bytes(values, kind)
    if types == {str}:
        return _of_strings(pa.array(values, pa.string()), kind)
    if types == {bool} and kind in ("any", "boolean"):
        return pa.array(values, pa.bool_()).cast(pa.string())
    if types == {int} and kind in (*NUMERIC, "float64"):
        try:
            return _of_array(pa.array(values, pa.int64()), kind)
        except (OverflowError, pa.ArrowInvalid):
            pass
    if types == {datetime} and kind in ("any", "timestamp"):
        times = pa.array(values, UTC_TIME)
        if pc.all(pc.and_(pc.greater_equal(times, EARLIEST), pc.less_equal(times, LATEST))).as_py():
            return _of_times(times)
    if types and types <= {int, Decimal} and kind in (*NUMERIC, "float64"):
        texts = pa.array([None if value is None else str(value) for value in values], pa.string())
        return _numbers(texts, kind, lambda chosen: _singly([values[each] for each in chosen.to_pylist()], kind))
    return pa.array(_singly(values, kind), pa.string())


def _of_bytes(values: list[bytes | None], kind: Kind) -> pa.Array:
    try:
        return _of_strings(pa.array(values, pa.binary()).cast(pa.string()), kind)
    except pa.ArrowInvalid:  # not UTF-8
        return pa.array(_singly(values, kind), pa.string())


def _of_array(column: pa.Array, kind: Kind) -> pa.Array:
    types = pa.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    type_ = column.type

    def singly(chosen: pa.Array) -> list[str | None]:
        return _singly(values_of(column.take(chosen)), kind)

    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return _of_strings(column.cast(pa.string()), kind)
    if types.is_binary(type_) or types.is_large_binary(type_):
        return _of_bytes(column.to_pylist(), kind)
    if types.is_integer(type_) and kind in NUMERIC:
        return column.cast(pa.string())
    if (types.is_integer(type_) or types.is_decimal128(type_) or types.is_float64(type_)) and (
        kind in (*NUMERIC, "float64")
    ):
        return _numbers(column.cast(pa.string()), kind, singly)
    if types.is_boolean(type_) and kind in ("any", "boolean"):
        return column.cast(pa.string())
    if types.is_date32(type_) and kind in ("any", "date", "day"):
        return column.cast(pa.string())
    if types.is_timestamp(type_) and kind in ("any", "timestamp"):
        return _of_times(column)
    return pa.array(_singly(values_of(column), kind), pa.string())


def _of_times(column: pa.Array) -> pa.Array:
    """Return texts of timestamps. Timestamps without a zone are in UTC already."""
    text = column.cast(pa.timestamp("us"), safe=False).cast(pa.string())  # with six digits behind the point
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(pc.replace_substring(text, " ", "T", max_replacements=1), "0"), ".")
    return pc.binary_join_element_wise(trimmed, "Z", "")


def _of_time_texts(texts: pa.Array, singly: Callable[[pa.Array], list[str | None]]) -> pa.Array:
    """Convert texts of times to one form.

    singly: function that gets the numbers of rows with other texts than `TIME` matches, and returns their converted
    texts
    """
    is_plain = pc.match_substring_regex(texts, TIME)
    plain = pc.if_else(is_plain, texts, pa.scalar(None, pa.string()))
    in_zone = pc.if_else(pc.match_substring_regex(plain, ZONE), plain, pc.binary_join_element_wise(plain, "Z", ""))
    try:
        times = in_zone.cast(UTC_TIME)
    except pa.ArrowInvalid:  # a day that no month has
        return pa.array(singly(pa.array(range(len(texts)), pa.int64())), pa.string())
    return _put(_of_times(times), pc.invert(is_plain), singly)


def _of_strings(texts: pa.Array, kind: Kind) -> pa.Array:
    def singly(chosen: pa.Array) -> list[str | None]:
        return _singly(texts.take(chosen).to_pylist(), kind)

    if kind in ("number", "float64"):
        return _numbers(texts, kind, singly)
    if kind == "timestamp":
        return _of_time_texts(texts, singly)
    if kind not in ("any", "text", "untyped"):
        return pa.array(_singly(texts.to_pylist(), kind), pa.string())
    special = pc.match_substring_regex(texts, STRUCTURED)
    if kind != "any":
        special = pc.or_(special, pc.equal(texts, ""))
    if kind == "untyped":
        plain = _are_plain(texts, DIGITS_MOST)
        special = pc.or_(special, pc.and_(pc.match_substring_regex(texts, NUMBER_LIKE), pc.invert(plain)))
        texts = pc.if_else(plain, _trimmed(texts), texts)
    return _put(texts, special, singly)


def _numbers(texts: pa.Array, kind: Kind, singly: Callable[[pa.Array], list[str | None]]) -> pa.Array:
    """Return texts of numbers without trailing zeros.

    singly: function that gets the numbers of rows with other characters than plain digits, and returns their texts
    """
    plain = _are_plain(texts, FLOAT_MOST if kind == "float64" else DIGITS_MOST)
    return _put(_trimmed(texts), pc.invert(plain), singly)


def _are_plain(texts: pa.Array, most: int) -> pa.Array:
    is_short = pc.less_equal(pc.binary_length(texts), most)
    has_digits = pc.and_(is_short, pc.match_substring_regex(texts, DIGITS))
    return pc.and_(has_digits, pc.invert(pc.match_substring_regex(texts, MINUS_ZERO)))


def _trimmed(texts: pa.Array) -> pa.Array:
    """Remove trailing zeros from texts with a decimal point."""
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    return pc.if_else(pc.match_substring(texts, "."), trimmed, texts)
