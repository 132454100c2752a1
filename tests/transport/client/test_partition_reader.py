"""Bounded reader of a partition, against a cluster that answers from a list."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kafka_ratchet.errors import BrokerUnavailable, PositionLost
from kafka_ratchet.transport.batch.rows import encode_pairs
from kafka_ratchet.transport.client import partition_reader
from kafka_ratchet.transport.client.cluster import Cluster, FetchedPartition
from kafka_ratchet.transport.client.partition_reader import FetchOptions, PartitionAddress, PartitionReader

PLACE = PartitionAddress("t", 0, b"i" * 16)
FETCHING = FetchOptions("reader", 1 << 20, 0)


def fetched(offset: int, count: int, stable_end: int = 100) -> FetchedPartition:
    """Return an answer with records from an offset on; without any where there are none."""
    pairs: list[tuple[bytes, bytes | None]] = [(b"%d" % each, b"v") for each in range(count)]
    data = b"".join(bytes(each.as_fetched(offset)) for each in encode_pairs(pairs, 1 << 20)) if pairs else b""
    return FetchedPartition(data, [], stable_end, stable_end)


class Answers:
    """A cluster with prepared answers to fetches."""

    def __init__(self, *answers: FetchedPartition, first: int = 0) -> None:
        self.answers, self.first = iter(answers), first

    async def fetch(self, _topic: str, _partition: int, position: int, *_: Any, **__: Any) -> FetchedPartition:
        if position < self.first:
            raise PositionLost("deleted")
        return next(self.answers)

    async def offset(self, *_: Any) -> int:
        return self.first


def read(cluster: Answers, end: int, **options: bool) -> tuple[list[int], PartitionReader]:
    """Return the offsets read up to an end, and the reader."""
    reader = PartitionReader(cast("Cluster", cluster), PLACE, 0, FETCHING, skips_deleted=options.pop("skips", True))

    async def all_of() -> list[int]:
        return [int(offset) async for batch in reader.batches(end, **options) for offset in batch.offsets]

    return asyncio.run(all_of()), reader


def test_an_empty_answer_is_no_end() -> None:
    """A new leader may lag behind the end that was known before."""
    offsets, reader = read(Answers(fetched(0, 2), fetched(2, 0, 2), fetched(2, 1)), 3)
    assert (offsets, reader.position) == ([0, 1, 2], 3)


def test_reading_ends_at_an_open_transaction_where_that_is_asked_for() -> None:
    offsets, reader = read(Answers(fetched(0, 2), fetched(2, 0, 2)), 9, stops_at_open=True)
    assert (offsets, reader.position, reader.stable_end) == ([0, 1], 2, 2)


def test_reading_that_brings_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_reader, "EMPTY_MOST", 2)
    with pytest.raises(BrokerUnavailable, match="returned no records from offset 2 on, though it holds them up to 100"):
        read(Answers(fetched(0, 2), fetched(2, 0), fetched(2, 0)), 9)


def test_offsets_that_retention_deleted_are_counted_or_refused() -> None:
    offsets, reader = read(Answers(fetched(4, 2), first=4), 6)
    assert (offsets, reader.deleted) == ([4, 5], 4)
    offsets, reader = read(Answers(first=9), 6)
    assert (offsets, reader.deleted) == ([], 6)
    with pytest.raises(PositionLost):
        read(Answers(first=4), 6, skips=False)


def test_a_reader_with_a_time_limit_waits_for_no_first_offset_without_end() -> None:
    class Silent(Answers):
        async def offset(self, *_: Any) -> int:
            await asyncio.Event().wait()
            return 0

    async def give_up() -> None:
        cluster = cast("Cluster", Silent(first=4))
        async with asyncio.timeout(10):
            await PartitionReader(cluster, PLACE, 0, FETCHING._replace(timeout_s=0.05)).read(6)

    with pytest.raises(BrokerUnavailable, match=r"^t partition 0, first offset: Kafka has sent nothing within 0.05 s"):
        asyncio.run(give_up())
