"""The last sequence of every identity: verdicts, pushed and persisted, changelog, RocksDB.

A reader's way in: `_partition.py` (what a lane's transaction moves), `_map.py` and `_kernels.py` (the map in memory),
`_store.py` (the snapshot on disk), `_eviction.py` (who is forgotten), `_sequences.py` (where a sequence comes from).
"""

from tables._eviction import NULLS_LAST_S, Bounds
from tables._invalid_share import InvalidShare
from tables._kernels import DUPLICATE, FRESH, INVALID
from tables._map import LastSequence, LastSequences
from tables._partition import SequencePartition
from tables._sequences import REASONS, Record, reader_for
from tables._spec import (
    MAX_IDENTITY_BYTES,
    PRODUCER_HEADER,
    SEQUENCE_HEADER,
    SEQUENCE_MAX,
    Identity,
    SequenceForm,
    SequenceSource,
)
from tables._store import Evicted, Progress
from tables._stretches import STRETCH, Stretch
from tables._table import Sequences, SequenceTable
from tables._tally import Activity, Tally

__all__ = [
    "DUPLICATE",
    "FRESH",
    "INVALID",
    "MAX_IDENTITY_BYTES",
    "NULLS_LAST_S",
    "PRODUCER_HEADER",
    "REASONS",
    "SEQUENCE_HEADER",
    "SEQUENCE_MAX",
    "STRETCH",
    "Activity",
    "Bounds",
    "Evicted",
    "Identity",
    "InvalidShare",
    "LastSequence",
    "LastSequences",
    "Progress",
    "Record",
    "SequenceForm",
    "SequencePartition",
    "SequenceSource",
    "SequenceTable",
    "Sequences",
    "Stretch",
    "Tally",
    "reader_for",
]
