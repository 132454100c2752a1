"""Digests of Arrow rows, 64 bits each: equal rows have equal digests, whichever stores they were read from.

pyspark sends this module by value; executors need NumPy and pyarrow, and nothing of this package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

NULL = 0x9AE16A3B2F90404F
"""Digest of null, in each column."""


def row_digests(columns: Sequence[Any]) -> Any:
    """Return a digest for each row, as a NumPy array of signed 64-bit numbers.

    Equal values have equal digests. These values count as equal too: a number in different widths, NaN and NaN, 0 and
    -0, and maps with the same entries in another order.

    Args:
        columns: `pyarrow.Array`s of the same length. Only digests of columns in the same order can be compared.
    """
    import numpy as np

    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found = _mixed(found * np.uint64(0x9E3779B97F4A7C15) + _digests(column))
    return found.view(np.int64)


def _mixed(numbers: Any) -> Any:
    """Mix numbers so that each bit depends on all bits (the last steps of splitmix64)."""
    import numpy as np

    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _digests(column: Any) -> Any:
    import numpy as np

    found = _of_values(column)
    if column.null_count:
        found = np.where(column.is_null().to_numpy(zero_copy_only=False), np.uint64(NULL), found)
    return found


def _of_values(column: Any) -> Any:
    """Return digests of the values in a column; a null may have any digest."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _of_values(column.dictionary_decode())
    if pa.types.is_struct(kind):
        names = sorted(range(kind.num_fields), key=lambda n: kind.field(n).name)
        return row_digests([pc.struct_field(column, [n]) for n in names]).view(np.uint64)
    if pa.types.is_map(kind):
        return _of_lists(column, row_digests([column.keys, column.items]).view(np.uint64), by_place=False)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_lists(column, _digests(column.values), by_place=True)
    if pa.types.is_floating(kind):
        numbers = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        return _mixed(numbers.view(np.uint64))
    if pa.types.is_decimal(kind):
        wide = pc.fill_null(column.cast(pa.decimal128(38, kind.scale)), 0)
        halves = np.frombuffer(wide.buffers()[1], np.uint64)[2 * wide.offset : 2 * (wide.offset + len(wide))]
        return _mixed(halves[::2] + _mixed(halves[1::2]))
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    if pa.types.is_integer(column.type):
        return _mixed(pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64))
    coded = column.cast(pa.large_binary()).dictionary_encode()
    each = [hashlib.blake2b(value, digest_size=8).digest() for value in coded.dictionary.to_pylist()]
    if not each:
        return np.zeros(len(column), np.uint64)
    return np.frombuffer(b"".join(each), np.uint64)[pc.fill_null(coded.indices, 0).to_numpy()]


def _of_lists(column: Any, items: Any, *, by_place: bool) -> Any:
    """Return the digests of lists, from the digests of all items. With `by_place`, the order of the items counts."""
    import numpy as np

    ends = column.offsets.to_numpy().astype(np.int64)
    # Items before the first list and after the last belong to other slices of the same array.
    items = items[ends[0] : ends[-1]]
    ends = ends - ends[0]
    sizes = np.diff(ends)
    if by_place:
        places = (np.arange(len(items), dtype=np.int64) - np.repeat(ends[:-1], sizes)).view(np.uint64)
        items = _mixed(items + places * np.uint64(0xD6E8FEB86659FD93))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(items, dtype=np.uint64)))
    return _mixed(sums[ends[1:]] - sums[ends[:-1]] + sizes.view(np.uint64))
