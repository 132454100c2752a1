"""The request with a batch in it, against aiokafka's own."""

from __future__ import annotations

import pytest
from aiokafka.protocol.produce import ProduceRequest

from kafka_ratchet.transport.client.produce import BatchRequest


@pytest.mark.parametrize("version", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("batch", [b"", b"\0" * 4, b"a batch", bytes(range(256)) * 300])
def test_the_bytes_are_those_that_aiokafka_writes(version: int, batch: bytes) -> None:
    versions = {0: (0, version)}
    theirs = ProduceRequest("id", -1, 30_000, [("topic", [(7, batch)])]).prepare(versions)
    ours = BatchRequest("id", 30_000, "topic", 7, memoryview(bytearray(batch))).prepare(versions)
    assert type(ours) is type(theirs)
    assert ours.encode() == theirs.encode()
    assert ours.build_request_header(5, "me").encode() == theirs.build_request_header(5, "me").encode()
