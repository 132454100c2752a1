"""State that was written when identities were a producer, a key or a partition goes on, with the same bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import PRODUCER_HEADER, SEQUENCE_HEADER, Identity, SequenceSource
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.encoding import encode_entries
from tests.tables.fetched_records import Sent, fetched, judged, stored

READ = reader_for(SequenceSource.parse(f"header:{SEQUENCE_HEADER}"))
FOUR = struct.pack(">q", 4)


@pytest.mark.parametrize(
    ("word", "name"),
    [("producer", b"shop"), ("key", b"shop"), ("key", b""), ("partition", b""), ("producer", b"\xff\0")],
)
def test_state_without_an_owner_entry_goes_on(tmp_path: Path, word: str, name: bytes) -> None:
    written = encode_entries([(PROGRESS, Progress(5, 5, 0, 0).pack()), (b"i" + name, FOUR)], 1 << 20)
    state = SequencePartition(tmp_path / "0", "changelog", 0, Identity.parse(word), 1 << 20)
    state.open()
    state.restoring()
    state.apply(read_chunk("changelog", 0, 0, stored(written, 0), []))
    assert state.restored()
    headers = [((PRODUCER_HEADER, name), (SEQUENCE_HEADER, b"%d" % sequence)) for sequence in (4, 5)]
    batch = fetched([Sent(name, b"", each) for each in headers], 5)
    assert judged(state, batch, READ)[0].tolist() == [1, 0]
    assert list(state.known.map.changed_entries()) == [(b"i" + name, struct.pack(">q", 5))]
    state.close()
