"""The changelog entry by which a person's decision forgets every identity: `ratchet resume --forget`.

One entry, however many identities there are: whoever reads the changelog drops all identities when it comes to it. A
null for each would need a transaction of any size, and nulls are compacted away after a day. This entry stays: only the
next of its kind replaces it, and compaction keeps its place behind everything that it forgets.

    b"f"      a version byte
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kafka_ratchet.tables.map.entries import ENTRY_PREFIX
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.record_batch import RecordBatch

KEY: Final = b"f"
ENTRY: Final = (KEY, b"\1")


def remaining(batch: RecordBatch) -> RecordBatch | None:
    """A batch of the changelog without this entry and the identities before it; None where it is not there."""
    lengths, keys = batch.columns[records.KEY_LENGTH], batch.columns[records.KEY]
    named = np.flatnonzero(lengths > 0)
    first = np.zeros(batch.count, np.uint8)
    first[named] = batch.data[keys[named]]
    said = np.flatnonzero((lengths == len(KEY)) & (first == KEY[0]))
    if not len(said):
        return None
    keep = first != ENTRY_PREFIX
    keep[said[-1] :] = True
    keep[said] = False
    return batch.only(keep)
