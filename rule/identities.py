"""Location of each record's identity: in the bytes of the batch, or in bytes computed from the record."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.record_batch import RecordBatch

ONCE: Final = np.empty(0, np.int64)
"""Value of `Identities.times` if no identity occurs more than once."""


class Identities(NamedTuple):
    """Identities of a batch, one per record.

    Args:
        data: uint8[bytes] with the identities, read-only, because the passes are compiled for that.
        begins: int64[records], start of each identity in `data`.
        lengths: int64[records], bytes of each identity; negative: the record has none.
        times: int64[records], number of occurrences in the record; or `ONCE`.
        least: minimum length; a shorter identity counts as missing.
    """

    data: NDArray[np.uint8]
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    times: NDArray[np.int64] = ONCE
    least: int = 0

    def of(self, index: int) -> bytes:
        """Return the bytes of a record's identity; empty: the record has none."""
        start = int(self.begins[index])
        return self.data[start : start + max(0, int(self.lengths[index]))].tobytes()


def in_columns(batch: RecordBatch, identity: Identity) -> Identities:
    """Return the identities that the batch has columns for: keys or values of one header.

    If the partition is the identity, return an empty identity for each record.

    Raises:
        ValueError: the batch has no column for the identity; the caller has to read it from each record.
    """
    columns = batch.columns
    if identity == Identity.PARTITION:
        nothing = np.zeros(batch.count, np.int64)
        return Identities(batch.data, nothing, nothing)
    if identity == Identity.KEY:
        return Identities(batch.data, columns[records.KEY], columns[records.KEY_LENGTH])
    if identity.header is None:
        raise ValueError(f"identity {identity} has no column in the batch: read it from each record")
    header = columns[records.SECOND], columns[records.SECOND_LENGTH], columns[records.SECOND_TIMES]
    return Identities(batch.data, *header, least=1)
