"""Byte spans of each record's identity, in the batch itself or in bytes made from it."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.record_batch import RecordBatch

ONCE: Final = np.empty(0, np.int64)
"""Times, where none is there more than once."""


class Identities(NamedTuple):
    """Identities of a batch, one per record.

    data: uint8[bytes], read-only: the passes are compiled for that.
    begins: int64[records], start of the identity in data.
    lengths: int64[records], length in bytes; negative where there is none.
    times: int64[records], number of occurrences; or `ONCE`.
    least: smallest length; a shorter identity is missing.
    """

    data: NDArray[np.uint8]
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    times: NDArray[np.int64] = ONCE
    least: int = 0

    def of(self, index: int) -> bytes:
        """Those bytes of a record; none where it has none."""
        start = int(self.begins[index])
        return self.data[start : start + max(0, int(self.lengths[index]))].tobytes()


def in_columns(batch: RecordBatch, identity: Identity) -> Identities:
    """Identities that stand in the batch's columns: the partition (the empty one), the key, one header.

    Raises:
        ValueError: this one has to be read from each record.
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
