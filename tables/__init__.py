"""The last sequence of every identity: verdicts, pushed and persisted, changelog, RocksDB."""

from tables._spec import (
    MAX_IDENTITY_BYTES,
    PRODUCER_HEADER,
    SEQUENCE_HEADER,
    SEQUENCE_MAX,
    Identity,
    SequenceSource,
)

__all__ = [
    "MAX_IDENTITY_BYTES",
    "PRODUCER_HEADER",
    "SEQUENCE_HEADER",
    "SEQUENCE_MAX",
    "Identity",
    "SequenceSource",
]
