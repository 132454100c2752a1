"""Records as a lane gets them: encoded by aiokafka, read by the transport."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from numpy.typing import NDArray

from kafka_ratchet.rule.extraction import Reader
from kafka_ratchet.rule.identity import PRODUCER_HEADER, SEQUENCE_HEADER
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.table import Sequences
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.batch.record_batch import RecordBatch


class Sent(NamedTuple):
    """A record as a program sends it."""

    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[str, bytes | None], ...] = ()


def named(producer: bytes, *sequences: int) -> list[Sent]:
    """Records of one producer, in the headers that `producers` sets."""
    return [
        Sent(headers=((PRODUCER_HEADER, producer), (SEQUENCE_HEADER, sequence.to_bytes(8, "big"))))
        for sequence in sequences
    ]


def judged(
    table: SequencePartition | Sequences, batch: RecordBatch, read: Reader
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Verdicts and reasons, as the deduplicating agent asks for them."""
    partition = table.partition(batch.partition) if isinstance(table, Sequences) else table
    return partition.judge(batch, *read(batch))


def fetched(
    records: Sequence[Sent],
    start: int = 0,
    topic: str = "events",
    partition: int = 0,
    sequence_header: bytes = SEQUENCE_HEADER.encode(),
    identity_header: bytes = PRODUCER_HEADER.encode(),
) -> RecordBatch:
    """These records as the one batch of a fetch."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for delta, record in enumerate(records):
        builder.append(delta, 1_700_000_000_000, record.key, record.value, list(record.headers))
    data = bytearray(builder.build()) if records else bytearray()
    if records:
        struct.pack_into(">q", data, 0, start)
    return read_chunk(
        topic, partition, start, bytes(data), [], sequence_header=sequence_header, identity_header=identity_header
    )


def stored(batches: Iterable[EncodedBatch], start: int) -> bytes:
    """These batches as a broker stores them: one after the other, each with the offset it got."""
    log = bytearray()
    for encoded in batches:
        data = bytearray(encoded.seal(1, 0, 0))
        struct.pack_into(">q", data, 0, start)
        start += encoded.count
        log += data
    return bytes(log)
