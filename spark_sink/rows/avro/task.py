"""Decoding of Avro in the executors: untrusted bytes become values, or are found malformed.

Every length, count and index is checked against the available bytes before its use. No type of a plan takes zero bytes,
so that the length of a value bounds work and memory. pyspark sends this module by value; executors need pyarrow and
nothing of this package.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator
from decimal import Context, Decimal
from typing import Any

from kafka_ratchet.spark_sink.rows.decoded import chunks, row_batch

Read = Callable[[bytes, int], tuple[Any, int]]
"""Function from bytes and a position to the value there and the position after it."""

MILLISECONDS = 1000
"""Microseconds of a millisecond."""

MALFORMED = (ValueError, IndexError, struct.error, OverflowError, RecursionError)
"""Exceptions that a `Read` function raises for bytes that do not match its plan."""

DAYS = (-719_162, 2_932_896)
"""First and last day of a table, 0001-01-01 and 9999-12-31, in days since 1970. Not every reader of a table supports
years beyond."""

MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""First and last microsecond of `DAYS`, in microseconds since 1970."""

MAX_DECIMAL_BYTES = 64
"""Maximum bytes of a decimal: 38 digits need 16. More bytes could only repeat the sign."""

EXACT = Context(prec=38)
"""Context for decimals; the default context would round to 28 digits."""


def decoding(
    plan: Any, prefix: bytes, restricted_values: int, keep_value: bool, schema: Any
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a task that turns records into rows.

    Args:
        plan: plan of the record, see `avro.AvroValues`.
        prefix: first bytes of every value, before Avro's own.
        restricted_values: see `ResultStore.restricted_values`.
        keep_value: see `columns.rows`.
        schema: `pyarrow.Schema` of the rows: the record's fields, then `RECORD_COLUMNS` and `columns.STATE`.

    Returns:
        A function from Arrow batches with the columns of `RECORD_COLUMNS` to batches of rows. All fields are null for a
        value that does not parse. For other values `_kafka_value` is null, unless `keep_value` is set.
    """

    def rows(batches: Iterable[Any]) -> Iterator[Any]:
        read = reader(plan, restricted_values)
        fields = [name for name, _ in plan[1]]
        for batch in batches:
            for chunk in chunks(batch):
                values = chunk.column(chunk.num_columns - 1).to_pylist()
                events = [None if value is None else whole(value, prefix, read) for value in values]
                yield row_batch(chunk, values, events, fields, keep_value, schema)

    return rows


def whole(value: bytes, prefix: bytes, read: Read) -> Any:
    """Decode a value that begins with a prefix; None if prefix or value are malformed."""
    return to_end(value, len(prefix), read) if value.startswith(prefix) else None


def to_end(value: bytes, at: int, read: Read) -> Any:
    """Decode a value with `read`; None if its bytes are malformed or bytes follow its end."""
    try:
        found, end = read(value, at)
    except MALFORMED:
        return None
    return found if end == len(value) else None


def decode(plan: Any, restricted_values: int) -> Callable[[bytes, int], Any]:
    """Return the function that decodes a value from a position on, by a plan; see `to_end` for the result."""
    read = reader(plan, restricted_values)
    return lambda value, at: to_end(value, at, read)


def reader(plan: Any, restricted_values: int, named: dict[str, Read] | None = None) -> Read:
    """Return the function that reads the values of a plan.

    Args:
        plan: tuple that begins with the name of a type, made by `avro` or `resolution`.
        restricted_values: if set, text with NUL counts as malformed; if 2, NaN and infinity do too.
        named: readers of named types, because a type may contain itself.
    """
    kind = plan[0]
    named = {} if named is None else named

    def inner(each: Any) -> Read:
        return reader(each, restricted_values, named)

    if kind == "record":
        return _record([(name, inner(each)) for name, each in plan[1]])
    if kind == "optional":
        return _optional(plan[1], inner(plan[2]))
    if kind == "array":
        return _array(inner(plan[1]))
    if kind == "map":
        return _map(_string(restricted_values), inner(plan[1]))
    if kind == "enum":
        return _enum(plan[1])
    if kind == "fixed":
        return _fixed(plan[1])
    if kind == "decimal":
        return _decimal(_bytes if plan[1] is None else _fixed(plan[1]), plan[2], plan[3])
    if kind == "string":
        return _string(restricted_values)
    if kind == "within":
        return _within(plan[1], plan[2], plan[3])
    if kind == "with":
        named.update({name: inner(each) for name, each in plan[1]})
        return inner(plan[2])
    if kind == "resolved":
        return _resolved([(name, inner(each)) for name, each in plan[1]], plan[2])
    if kind == "branches":
        return _branches([inner(each) for each in plan[1]])
    if kind == "fields":
        return _fields([inner(each) for each in plan[1]])
    if kind == "rescaled":
        return _decimal(_bytes if plan[1] is None else _fixed(plan[1]), plan[3], plan[4], plan[2])
    if kind == "symbols":
        return _enum(plan[1], known_only=True)
    if kind == "real":
        return _real(inner(plan[1]), plan[2] == "float")
    if kind == "named":
        return lambda data, at: named[plan[1]](data, at)
    if kind == "refused":
        return _refused(plan[1])
    plain: dict[str, Read] = {"long": _long, "bytes": _bytes, "boolean": _boolean, "null": _null}
    return plain[kind] if kind in plain else _float("<f" if kind == "float" else "<d", restricted_values == 2)


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Read a variable-length zig-zag number of 64 bits."""
    byte = data[at]
    at += 1
    if byte < 0x80:  # most are
        return (byte >> 1) ^ -(byte & 1), at
    found = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > 63:
            raise ValueError("a number of more than ten bytes")
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        shift += 7
    if found >> 64:
        raise ValueError("a number of more than 64 bits")
    return (found >> 1) ^ -(found & 1), at


def _within(low: int, high: int, factor: int) -> Read:
    def read(data: bytes, at: int) -> tuple[int, int]:
        found, at = _long(data, at)
        found *= factor
        if not low <= found <= high:
            raise ValueError("a number outside the range of its column")
        return found, at

    return read


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise ValueError("a boolean byte other than 0 and 1")
    return data[at] == 1, at + 1


def _float(form: str, finite: bool) -> Read:
    unpack, size = struct.Struct(form).unpack_from, struct.calcsize(form)

    def read(data: bytes, at: int) -> tuple[float, int]:
        found = unpack(data, at)[0]
        if finite and not math.isfinite(found):
            raise ValueError("NaN or infinity, which the store cannot hold")
        return found, at + size

    return read


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    if not 0 <= size <= len(data) - at:
        raise ValueError("a length beyond the end of the bytes")
    return data[at : at + size], at + size


def _fixed(size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        if size > len(data) - at:
            raise ValueError("a length beyond the end of the bytes")
        return data[at : at + size], at + size

    return read


def _string(restricted_values: int) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        text, at = _bytes(data, at)
        if restricted_values and b"\0" in text:
            raise ValueError("text with NUL, which the store cannot hold")
        return text.decode("utf-8"), at

    return read


def _decimal(read_bytes: Read, precision: int, scale: int, written: int | None = None) -> Read:
    """Return a reader of decimals for a column with `scale` decimal places.

    The bytes have `written` decimal places, at most `scale`. With None, the bytes have `scale` decimal places.
    """
    bound, factor = 10**precision, 10 ** (scale - (scale if written is None else written))

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        digits, at = read_bytes(data, at)
        if not 0 < len(digits) <= MAX_DECIMAL_BYTES:
            raise ValueError("bytes that are not a decimal")
        unscaled = int.from_bytes(digits, "big", signed=True) * factor
        if not -bound < unscaled < bound:
            raise ValueError("a decimal with more digits than declared")
        return EXACT.scaleb(Decimal(unscaled), -scale), at

    return read


def _enum(symbols: tuple[str | None, ...], *, known_only: bool = False) -> Read:
    def read(data: bytes, at: int) -> tuple[str | None, int]:
        index, at = _long(data, at)
        if index < 0 or (known_only and symbols[index] is None):
            raise ValueError("an index without a symbol in the enum")
        return symbols[index], at

    return read


def _optional(null: int, read_value: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch, at = _long(data, at)
        if branch == null:
            return None, at
        if branch != 1 - null:
            raise ValueError("an index without a branch in the union")
        return read_value(data, at)

    return read


def _record(fields: list[tuple[str, Read]]) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, read_field in fields:
            found[name], at = read_field(data, at)
        return found, at

    return read


def _null(data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _resolved(fields: list[tuple[str | None, Read]], defaults: tuple[tuple[str, Any], ...]) -> Read:
    """Return a reader of a record that skips fields without a column, and fills defaults."""

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = dict(defaults)
        for name, read_field in fields:
            value, at = read_field(data, at)
            if name is not None:
                found[name] = value
        return found, at

    return read


def _fields(fields: list[Read]) -> Read:
    def read(data: bytes, at: int) -> tuple[None, int]:
        for read_field in fields:
            _, at = read_field(data, at)
        return None, at

    return read


def _branches(branches: list[Read]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch, at = _long(data, at)
        if branch < 0:
            raise ValueError("an index without a branch in the union")
        return branches[branch](data, at)

    return read


def _refused(reason: str) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        raise ValueError(reason)

    return read


def _real(read_number: Read, single: bool) -> Read:
    """Return a reader of floating-point numbers; it refuses a number that the column would round."""
    form = struct.Struct("<f")

    def read(data: bytes, at: int) -> tuple[float, int]:
        number, at = read_number(data, at)
        found = float(number)
        if single and found == found:
            found = form.unpack(form.pack(found))[0]
        if found != number and number == number:
            raise ValueError("a number that the column would round")
        return found, at

    return read


def _blocks(data: bytes, at: int, read_item: Callable[[int], int]) -> int:
    """Read the blocks of an array or a map, and return the position after them.

    Each item takes at least one byte, which bounds the number of items.
    """
    while True:
        count, at = _long(data, at)
        if count == 0:
            return at
        if count < 0:  # the block's size in bytes follows, for readers that skip it
            count = -count
            size, at = _long(data, at)
            end: int | None = at + size
        else:
            end = None
        if count > len(data) - at:
            raise ValueError("a block of more items than bytes")
        for _ in range(count):
            at = read_item(at)
        if end is not None and at != end:
            raise ValueError("a block of another size than it states")


def _array(read_value: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found = []

        def item(at: int) -> int:
            value, at = read_value(data, at)
            found.append(value)
            return at

        at = _blocks(data, at, item)
        return found, at

    return read


def _map(read_key: Read, read_value: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[list[tuple[str, Any]], int]:
        found: dict[str, Any] = {}

        def item(at: int) -> int:
            key, at = read_key(data, at)
            if key in found:
                raise ValueError("a map with one key twice")
            found[key], at = read_value(data, at)
            return at

        at = _blocks(data, at, item)
        return list(found.items()), at

    return read
