"""Batches of a producer, read back as a fetch reads them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.producers import partition_of
from kafka_ratchet.transport.batch import kernels
from kafka_ratchet.transport.batch.chunk import CODECS, TRANSACTIONAL, read_chunk
from kafka_ratchet.transport.batch.rows import spans
from kafka_ratchet.transport.publishing.encode import Encoder, Records

NAME = "Größe".encode()
Row = tuple[int, bytes | None, bytes | None]


def read(encoder: Encoder, rows: list[Row], partitions: int) -> dict[int, list[Row]]:
    records = Records(
        np.array([row[0] for row in rows], np.int64), spans([row[1] for row in rows]), spans([row[2] for row in rows])
    )
    found: dict[int, list[Row]] = {partition: [] for partition in range(partitions)}
    for number, outgoing in enumerate(encoder.encode(records)):
        sealed = bytes(outgoing.batch.seal(7, 0, number))
        assert not sealed[22] & TRANSACTIONAL
        headers: dict[str, Any] = {"sequence_header": b"ratchet-sequence", "identity_header": b"ratchet-producer"}
        batch = read_chunk("t", outgoing.partition, 0, sealed, [], **headers)
        assert batch.count == outgoing.batch.count
        columns = batch.columns
        for row in range(batch.count):
            parts = []
            for at in (kernels.FIRST, kernels.SECOND, kernels.KEY, kernels.VALUE):
                begin, length = int(columns[at, row]), int(columns[at + 1, row])
                parts.append(None if length < 0 else batch.data[begin : begin + length].tobytes())
            sequence, producer, key, value = parts
            assert producer == NAME
            assert sequence is not None
            found[outgoing.partition].append((int.from_bytes(sequence, "big"), key, value))
        assert found[outgoing.partition][-1][0] == outgoing.last
    return found


texts = st.none() | st.binary(max_size=200)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(texts, texts), min_size=1, max_size=40),
    st.integers(1, 9),
    st.sampled_from([*CODECS]),
    st.sampled_from([1000, 1_000_000]),
    st.integers(0, 2**63 - 1 - 200),
)
def test_each_record_in_its_partition_in_its_order(
    pairs: list[tuple[bytes | None, bytes | None]], partitions: int, compression: str, limit: int, first: int
) -> None:
    rows = [(first + 3 * number, key, value) for number, (key, value) in enumerate(pairs)]
    found = read(Encoder("t", NAME, partitions, limit, compression), rows, partitions)
    wanted: dict[int, list[Row]] = {partition: [] for partition in range(partitions)}
    for row in rows:
        wanted[partition_of(row[1], NAME, partitions)].append(row)
    assert found == wanted


def test_batches_stay_below_their_limit_and_a_record_that_does_not_fit_is_found() -> None:
    chance = random.Random(5)
    encoder = Encoder("t", NAME, 2, 5000, "none")
    values = [chance.randbytes(chance.choice([10, 100, encoder.most])) for _ in range(300)]
    records = Records(np.arange(300), spans([None] * 300), spans(values))
    assert encoder.fits(records) == 300
    batches = encoder.encode(records)
    assert max(len(each.batch.buffer) for each in batches) <= 5000
    assert sum(each.batch.count for each in batches) == 300
    values[200] += b"x" * (encoder.most + 1)
    records = Records(np.arange(300), spans([None] * 300), spans(values))
    assert encoder.fits(records) == 200
    assert len(records.first(200).sequences) == 200
    with pytest.raises(Exception, match=r"sequence 5: .* message\.max\.bytes"):
        raise encoder.too_large(5, 1000)
