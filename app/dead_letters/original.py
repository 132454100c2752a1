"""Input records of dead letters, restored from the letters to be sent to the input again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from kafka_ratchet.app.dead_letters.letters import letter_at
from kafka_ratchet.errors import RecordTooLarge
from kafka_ratchet.tables.replays import FOR_ALL, REPLAYED_FOR, REPLAYED_FROM, REPLAYS
from kafka_ratchet.transport.batch import kernels
from kafka_ratchet.transport.batch.encoding import BATCH_WRITTEN, EncodedBatch, finish, varint
from kafka_ratchet.transport.batch.record_batch import RecordBatch, read_varint
from kafka_ratchet.transport.delivery import LETTER_EVENT

MARKS: Final = frozenset(name.encode() for name in (REPLAYS, REPLAYED_FROM, REPLAYED_FOR, LETTER_EVENT))


class OriginalRecord(NamedTuple):
    """Input record of a dead letter, to be sent again.

    body: key, value and headers, in Kafka's encoding of a record.
    where: topic, partition and offset of the dead letter, for messages.
    """

    body: bytes
    timestamp_ms: int
    where: str


def original_of(
    batch: RecordBatch, index: int, letter: str | None, timestamp_ms: int, *, to_all: bool = False
) -> OriginalRecord:
    """Return the input record of a dead letter, byte for byte, with the headers of a replay.

    Args:
        batch: batch of the dead-letter topic with the letter.
        index: position of the letter in the batch.
        letter: name of the letter, for a header that lets the worker recognise a second replay. None: no such header,
            and the worker judges the record by its sequence.
        timestamp_ms: timestamp of the record, in ms.
        to_all: True: all agents get the record if the letter names no agents.
    """
    begin, at = int(batch.columns[kernels.BODY, index]), int(batch.columns[kernels.HEADERS, index])
    said = letter_at(batch, index)
    headers = list(_raw_headers(batch.header_bytes(index)))
    kept = [raw for name, raw in headers[: len(headers) - said.appended] if name not in MARKS]
    kept.append(_header(REPLAYS, str(said.replays + 1).encode()))
    kept += [] if said.event is None else [_header(LETTER_EVENT, said.event)]
    if letter is not None:
        kept.append(_header(REPLAYED_FROM, letter.encode()))
        agents = FOR_ALL if said.agents is None and to_all else said.agents
        kept += [] if agents is None else [_header(REPLAYED_FOR, agents)]
    body = batch.data[begin:at].tobytes() + varint(len(kept)) + b"".join(kept)
    return OriginalRecord(
        body, timestamp_ms, f"{batch.topic}, partition {batch.partition}, offset {batch.offsets[index]}"
    )


def _header(name: str, value: bytes) -> bytes:
    return varint(len(name)) + name.encode() + varint(len(value)) + value


def _raw_headers(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name and the encoded bytes of each header. A name may be no UTF-8 text."""
    count, at = read_varint(body, 0)
    for _ in range(count):
        begin = at
        length, at = read_varint(body, at)
        name, at = body[at : at + length], at + length
        length, at = read_varint(body, at)
        at += max(length, 0)
        yield name, body[begin:at]


def encode(originals: list[OriginalRecord], limit: int) -> Iterator[EncodedBatch]:
    """Yield record batches with the records in their order, each record with its own timestamp.

    Args:
        originals: records for one partition
        limit: maximum number of bytes of a batch, max.message.bytes of the topic

    Raises:
        RecordTooLarge: a record does not fit the limit even when compressed.
    """
    waiting: list[OriginalRecord] = []
    size = kernels.HEADER_SIZE
    for each in originals:
        takes = len(each.body) + kernels.RECORD_OVERHEAD
        if waiting and size + takes > min(limit, BATCH_WRITTEN):
            yield _batch(waiting, limit)
            waiting, size = [], kernels.HEADER_SIZE
        waiting.append(each)
        size += takes
    if waiting:
        yield _batch(waiting, limit)


def _batch(originals: list[OriginalRecord], limit: int) -> EncodedBatch:
    times = [each.timestamp_ms for each in originals]
    records = bytearray(kernels.HEADER_SIZE)
    for delta, each in enumerate(originals):
        head = b"\0" + varint(each.timestamp_ms - times[0]) + varint(delta)
        records += varint(len(head) + len(each.body)) + head + each.body
    for compression in ("none", "zstd"):
        encoded = finish(np.frombuffer(records, np.uint8), len(originals), times[0], max(times), compression)
        if len(encoded.buffer) <= limit:
            return encoded
    raise RecordTooLarge(
        f"{originals[0].where}: with the headers of a replay the record of this dead letter takes "
        f"{len(encoded.buffer)} bytes, and max.message.bytes of the input is {limit}. Raise max.message.bytes of the "
        "input by a few hundred bytes"
    )
