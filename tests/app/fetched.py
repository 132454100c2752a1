"""Records as a lane gets them, for tests of what stands above the tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from kafka_ratchet.rule.identity import PRODUCER_HEADER, SEQUENCE_HEADER
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch


def named_batch(rows: Iterable[tuple[bytes, int]], partition: int = 0) -> RecordBatch:
    """One record for each producer and sequence."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for delta, (name, sequence) in enumerate(rows):
        headers = [(PRODUCER_HEADER, name), (SEQUENCE_HEADER, b"%d" % sequence)]
        builder.append(delta, 1_700_000_000_000, None, b"", headers)
    names: dict[str, Any] = {"sequence_header": SEQUENCE_HEADER.encode(), "identity_header": PRODUCER_HEADER.encode()}
    return read_chunk("events", partition, 0, bytes(builder.build()), [], **names)
