"""The changelog entries of an operator's decision (`ratchet resume`), and the one that forgets every identity.

The latter is written with `--forget`. It is one entry, however many identities there are: whoever reads the changelog
drops all identities when it comes to it. A null for each would need a transaction of any size, and nulls are compacted
away after a day. This entry stays: only the next of its kind replaces it, and compaction keeps its place behind
everything that it forgets.

    b"f"      a version byte
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kafka_ratchet.tables.map.entries import ENTRY_PREFIX
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.owner import Owner

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


def entries_of_decision(
    progress: tuple[bytes, bytes], last: PolicyInterval | None, position: int, owner: Owner, *, forget: bool
) -> list[tuple[bytes, bytes | None]]:
    """Keys and values of the changelog entries by which an operator has a partition go on elsewhere.

    Args:
        progress: key and value of the progress entry
        last: the newest policy interval; None where there is none
        position: input offset to read next
        owner: with the decision in it
        forget: whether every identity before them is forgotten
    """
    entries: list[tuple[bytes, bytes | None]] = [progress]
    if last is not None:
        # Positions of a policy topic that is gone mean nothing: the next policy is taken as it is then.
        entries.append(PolicyInterval(last.number + 1, True, position, position, 0, 0).pack())
    if forget:
        entries.append(ENTRY)
    entries.append(owner.pack())  # the last: whoever knows the decision has seen all of it
    return entries
