"""Sets of row identities, for a repair that finds rows in files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.rows.digests import row_digests

if TYPE_CHECKING:
    import pyarrow as pa


def plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return dates and times as numbers, because Python's types have fewer years than the tables."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def tuples(table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return the rows as tuples of plain values."""
    return list(zip(*(plain(column).to_pylist() for column in table.columns), strict=True))


class Identities:
    """Set of row identities, to find these rows in batches.

    Args:
        found: table with each identity once, in the columns of the identity. Null counts as a value.
    """

    def __init__(self, found: pa.Table) -> None:
        import numpy as np

        self._names, self._found = found.column_names, set(tuples(found))
        self._digests = np.unique(row_digests([column.combine_chunks() for column in found.columns]))

    def __len__(self) -> int:
        return len(self._found)

    @property
    def names(self) -> list[str]:
        """Return the columns of the identity."""
        return list(self._names)

    def among(self, batch: pa.RecordBatch) -> Any:
        """Return a NumPy array of booleans: True for each row with one of these identities."""
        import numpy as np

        candidates = np.isin(row_digests([batch.column(name) for name in self._names]), self._digests)
        at = np.flatnonzero(candidates)
        if len(at):  # two identities may share a digest
            exact = tuples(batch.select(self._names).take(at))
            candidates[at] = [each in self._found for each in exact]
        return candidates
