"""Publishing of a file block by block; `kafka_ratchet.producers.publish` publishes record by record."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kafka_ratchet.errors import RecordTooLarge, SourceError
from kafka_ratchet.producers import FileSource, Published
from kafka_ratchet.producers.formats import may_have_hole
from kafka_ratchet.producers.headers import NOTHING_YET
from kafka_ratchet.producers.publish import too_large
from kafka_ratchet.transport.publishing.encode import Records
from kafka_ratchet.transport.publishing.lines import BLANK, ODD, RECORD, find_lines
from kafka_ratchet.transport.publishing.producer import BatchProducer
from kafka_ratchet.transport.transactions.crash_points import crash_point

BEGINS, LENGTH, BEHIND, KIND, KEY, KEY_LENGTH = range(6)
"""Rows of the array that `find_lines` returns."""


class _Read(NamedTuple):
    records: Records | None
    """Records of the block; None if it has none."""
    last: tuple[int, int] | None
    """Byte offsets in the file where the last record's line begins and ends; None: no record."""
    text: bytes
    """Bytes of the block up to the first unreadable line."""
    bad: SourceError | None
    """Error for the unreadable line after the records, if any."""


def publish_blocks(
    source: FileSource,
    producer: BatchProducer,
    *,
    from_start: bool = False,
    on_records: Callable[[int, int], None] | None = None,
) -> Published:
    """Publish a file in blocks, and wait for all acknowledgements.

    `source.blocks_of` must not be None.

    Args:
        source: the file that the producer was made with.
        producer: producer that sends the blocks.
        from_start: True publishes from the beginning; the producer must have the same setting.
        on_records: function called for each block sent, with its last sequence and its number of records.

    Raises:
        SourceError: a line cannot be read. Everything before it is published and acknowledged.
        RecordTooLarge: a record is larger than the client or the topic allows.
        TransportError: Kafka has refused a record for good.
    """
    resumed_after = producer.resumed_after
    published = 0
    try:
        first = 0 if from_start else resumed_after + 1
        for offset, text in source.read_blocks(first, producer.block_bytes):
            read = read_block(source, offset, text)
            source.track_block(offset, read.text, read.last)  # first: it may be acknowledged as soon as it is sent
            crash_point("block-read")
            if read.records is not None:
                _send(source, producer, offset, read)
                crash_point("block-sent")
                published += len(read.records.sequences)
                if on_records and read.last is not None:
                    on_records(read.last[0], len(read.records.sequences))
            if read.bad is not None:
                raise read.bad
        producer.flush()
    except SourceError:
        producer.flush()
        raise
    except RecordTooLarge as error:
        raise too_large(source, producer, error) from error
    return Published(published, NOTHING_YET if from_start else resumed_after, producer.resume_from())


def _send(source: FileSource, producer: BatchProducer, offset: int, read: _Read) -> None:
    """Send the records of a block that begins at `offset`; after a refusal, return the source to that record."""
    assert read.records is not None  # noqa: S101 - the caller's condition
    try:
        producer.send_block(read.records)
    except RecordTooLarge as error:
        if error.sequence is not None:
            end = read.text.find(b"\n", error.sequence - offset) + 1
            source.behind = offset + (end or len(read.text))  # `origin` names the record before this
        raise


def read_block(source: FileSource, offset: int, text: bytes) -> _Read:
    """Return the records of a block, with the same content as from `source.read`.

    Args:
        source: source of the block
        offset: offset of its first byte
        text: whole lines
    """
    format, key = source.blocks_of or ("lines", None)
    lines = find_lines(text, format == "ndjson", key)
    try:
        text.decode()
    except UnicodeDecodeError:
        lines[KIND] = ODD  # `parse_at` finds the bad ones among them
    if may_have_hole(text):
        lines[KIND] = ODD
    keys: dict[int, bytes] = {}
    bad = None
    for row in np.flatnonzero(lines[KIND] == ODD).tolist():
        begins, behind = int(lines[BEGINS, row]), int(lines[BEHIND, row])
        try:
            parsed = source.parse_at(offset + begins, text[begins:behind])
        except SourceError as error:
            text, lines, bad = text[:begins], lines[:, :row], error
            break
        lines[KIND, row] = BLANK if parsed is None else RECORD
        if parsed is not None and parsed.key is not None:
            keys[row] = parsed.key
    data = where_keys = np.frombuffer(text, np.uint8)
    if keys:  # after the text: an escaped key does not stand in it
        lengths = np.fromiter(map(len, keys.values()), np.int64, len(keys))
        lines[KEY_LENGTH, list(keys)] = lengths
        lines[KEY, list(keys)] = len(text) + np.cumsum(lengths) - lengths
        where_keys = np.frombuffer(b"".join((text, *keys.values())), np.uint8)
    found = np.compress(lines[KIND] == RECORD, lines, axis=1)
    if not found.shape[1]:
        return _Read(None, None, text, bad)
    records = Records(
        offset + found[BEGINS], (where_keys, found[KEY], found[KEY_LENGTH]), (data, found[BEGINS], found[LENGTH])
    )
    return _Read(records, (offset + int(found[BEGINS, -1]), offset + int(found[BEHIND, -1])), text, bad)
