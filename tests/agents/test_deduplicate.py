from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from kafka_ratchet.agents.deduplicate import Deduplicator, withhold
from kafka_ratchet.errors import RecordTooLarge
from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.tables.map.map import LastSequence
from kafka_ratchet.tables.table import Sequences
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LaneSpec
from tests.agent_queue import AgentQueue, process_all

Headers = list[tuple[str, bytes | None]]
Row = tuple[bytes | None, bytes | None, Headers, int]
"""key, value, headers, timestamp in ms"""

TIME = 1_700_000_000_000


def row(producer: bytes | None, sequence: bytes | None, value: bytes | None = b"value", time: int = TIME) -> Row:
    return b"key", value, [("ratchet-producer", producer), ("ratchet-sequence", sequence), ("other", None)], time


def fetched(rows: list[Row], start: int = 0, codec: int = 0) -> RecordBatch:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for delta, (key, value, headers, time) in enumerate(rows):
        builder.append(delta, time, key, value, headers)
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, start)
    wanted: dict[str, Any] = {"sequence_header": b"ratchet-sequence", "identity_header": b"ratchet-producer"}
    return read_chunk("events", 2, start, bytes(data), [], **wanted)


def rows_of(encoded: EncodedBatch) -> list[Row]:
    """What aiokafka reads in a batch that is to be sent."""
    batches = MemoryRecords(bytes(encoded.seal(1, 0, 0)))
    rows = []
    while batches.has_next():
        batch = batches.next_batch()
        assert batch is not None
        assert batch.validate_crc()
        rows += [(record.key, record.value, list(record.headers), record.timestamp) for record in batch]
    return rows


READ = reader_for(SequenceSource.parse("header:ratchet-sequence"))


@pytest.fixture
def sequences(tmp_path: Path) -> Iterator[Sequences]:
    made = Sequences(tmp_path, "changelog", Identity.PRODUCER, 1 << 20)
    made.partition(2).open()
    yield made
    made.partition(2).close()


class Given:
    """A lane that is not started, and the agent at the other end of its deliveries."""

    def __init__(self, sequences: Sequences, **spec: Any) -> None:
        self.sequences = sequences
        names = {"output": "events-out", "dead_letters": "events-dead", "group": "g", "transactional_id": "t"}
        spec = {"topic": "events", "partition": 2, **names, **spec}
        self.lane = Lane(Cluster({}), LaneSpec(**spec), sequences.partition(2), Deduplicator(sequences, READ))

    def delivery(self, rows: list[Row], start: int = 0, codec: int = 0) -> Delivery:
        return Delivery(self.lane.spec, self.lane.switch.policy, fetched(rows, start, codec))

    async def run(self, *deliveries: Delivery, **options: Any) -> list[Exception | None]:
        """Return the error of each."""
        return await process_all(Deduplicator(self.sequences, READ, **options), *deliveries)


def outputs(delivery: Delivery, topic: str) -> list[Row]:
    return [row for name, _, encoded in delivery.outputs if name == topic for row in rows_of(encoded)]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
async def test_fresh_records_are_forwarded_and_duplicates_dropped(sequences: Sequences, codec: int) -> None:
    given = Given(sequences)
    rows = [
        row(b"a", b"1", b"first"),
        row(b"a", b"1", b"again"),
        row(b"b", (1).to_bytes(8, "big"), None, TIME - 5),
        row(b"a", b"7", b"", TIME + 60_000),
        row(b"a", b"6", b"late"),
    ]
    delivery = given.delivery(rows, codec=codec)
    assert await given.run(delivery) == [None]
    assert [topic for topic, *_ in delivery.outputs] == ["events-out"]
    assert outputs(delivery, "events-out") == [rows[0], rows[2], rows[3]]
    assert sequences.last(b"a") == {2: LastSequence(-1, 7)}


async def test_nothing_fresh_sends_nothing(sequences: Sequences) -> None:
    given = Given(sequences)
    first, second = given.delivery([row(b"a", b"1")]), given.delivery([row(b"a", b"1"), row(b"a", b"0")], start=1)
    assert await given.run(first, second) == [None, None]
    assert not second.outputs


@pytest.mark.parametrize("codec", [0, 4])
async def test_an_invalid_record_is_dead_lettered_as_it_was(sequences: Sequences, codec: int) -> None:
    given = Given(sequences)
    sent_again: Headers = [("ratchet-reason", b"old"), ("ratchet-producer", b"a"), ("ratchet-producer", b"b")]
    rows: list[Row] = [
        row(b"a", b"five", b"<script>\0\xff"),
        row(b"a", b"5", b"good"),
        row(None, b"5", None, TIME - 77),
        (None, None, [], TIME + 5),
        (b"", b"", [*sent_again, ("ratchet-sequence", b"9")], TIME),
        row(b"x" * 1025, b"-1"),
        row(b"x" * 1025, b"1"),
    ]
    delivery = given.delivery(rows, start=1_000, codec=codec)
    await given.run(delivery)
    assert outputs(delivery, "events-out") == [rows[1]]
    reasons = {
        0: b"sequence-not-a-number",
        2: b"identity-missing",
        3: b"sequence-missing",
        4: b"identity-repeated",
        5: b"sequence-negative",
        6: b"identity-too-long",
    }
    expected = [
        (
            *rows[index][:2],
            [
                *rows[index][2],
                ("ratchet-reason", reason),
                ("ratchet-topic", b"events"),
                ("ratchet-partition", b"2"),
                ("ratchet-offset", b"%d" % (1_000 + index)),
            ],
            rows[index][3],
        )
        for index, reason in reasons.items()
    ]
    assert outputs(delivery, "events-dead") == expected
    assert sequences.last(b"a") == {2: LastSequence(-1, 5)}


@pytest.mark.parametrize(("topic", "limit"), [("output", "output_limit"), ("dead-letter", "dead_letters_limit")])
async def test_an_error_gives_the_batch_back_and_the_agent_goes_on(
    sequences: Sequences, topic: str, limit: str
) -> None:
    given = Given(sequences, **{limit: 200})
    large = row(b"a", b"1" if topic == "output" else b"one", bytes(range(256)) * 4)
    failing, next_one = given.delivery([row(b"b", b"1"), large], start=30), given.delivery([row(b"c", b"1")], start=32)
    error, next_error = await given.run(failing, next_one)
    assert isinstance(error, RecordTooLarge)
    assert "events, partition 2, offset 31" in str(error)
    assert next_error is None
    assert outputs(next_one, "events-out") == [row(b"c", b"1")]
    # What the lane does with the error; then the batch can be judged once more.
    sequences.partition(2).rollback()
    assert sequences.last(b"b") == {}
    again = Given(sequences).delivery([row(b"b", b"1"), large], start=30)
    await given.run(again)
    assert row(b"b", b"1") in outputs(again, "events-out")


def dropped(row: Row, offset: int, verdict: bytes, last: bytes | None) -> Row:
    """As it is kept: the record, and five headers behind its own."""
    key, value, headers, time = row
    said = {
        "ratchet-verdict": verdict,
        "ratchet-last-sequence": last,
        "ratchet-topic": b"events",
        "ratchet-partition": b"2",
        "ratchet-offset": b"%d" % offset,
    }
    return key, value, [*headers, *said.items()], time


@pytest.mark.parametrize("codec", [0, 4])
async def test_dropped_records_are_kept_as_they_were(sequences: Sequences, codec: int) -> None:
    given = Given(sequences, duplicates="events-dropped")
    long = 2**63 - 1
    strange: Row = (None, None, [("ratchet-verdict", b"old"), ("\u00e9" * 70, None), *row(b"a", b"0")[2]], TIME - 9)
    many: Row = (b"", b"", [*[("h", b"")] * 63, *row(b"b", b"%d" % long)[2]], TIME + 9)
    rows = [row(b"a", b"10", b"first"), row(b"b", b"%d" % long), row(b"a", b"10"), strange, row(None, b"1"), many]
    delivery = given.delivery(rows, start=1_000_000, codec=codec)
    await given.run(delivery)
    assert outputs(delivery, "events-out") == rows[:2]
    assert len(outputs(delivery, "events-dead")) == 1
    assert outputs(delivery, "events-dropped") == [
        dropped(rows[2], 1_000_002, b"duplicate", b"10"),
        dropped(strange, 1_000_003, b"duplicate", b"10"),
        dropped(many, 1_000_005, b"duplicate", b"%d" % long),
    ]


async def test_of_dropped_records_only_key_and_headers_may_be_kept(sequences: Sequences) -> None:
    given = Given(sequences, duplicates="events-dropped", duplicates_values=False)
    again = row(b"a", b"3", b"x" * 100)
    delivery = given.delivery([row(b"a", b"3"), again])
    await given.run(delivery)
    key, _, headers, time = dropped(again, 1, b"duplicate", b"3")
    assert outputs(delivery, "events-dropped") == [(key, None, headers, time)]


async def test_a_dropped_record_that_does_not_fit_gives_the_batch_back(sequences: Sequences) -> None:
    given = Given(sequences, duplicates="events-dropped", duplicates_limit=300)
    delivery = given.delivery([row(b"a", b"3"), row(b"a", b"3", bytes(range(256)))], start=7)
    (error,) = await given.run(delivery)
    assert isinstance(error, RecordTooLarge)
    assert str(error).startswith("events-dropped, partition 2: dropped of events, offsets 8 to 8: a record of ")


async def test_a_stream_for_its_counts_alone_forwards_nothing(sequences: Sequences) -> None:
    given = Given(sequences)
    delivery = given.delivery([row(b"a", b"3"), row(b"a", b"3"), row(None, b"3")])
    assert await given.run(delivery, then=withhold) == [None]
    assert [topic for topic, *_ in delivery.outputs] == ["events-dead"]
    assert sequences.last(b"a") == {2: LastSequence(-1, 3)}


async def test_a_batch_that_its_lane_no_longer_waits_for_is_left_alone(sequences: Sequences) -> None:
    given = Given(sequences)
    left = given.delivery([row(b"a", b"5")])
    processor, queue = Deduplicator(sequences, READ), AgentQueue()
    calls = processor.connect(queue)
    waiting = asyncio.create_task(processor.process(left))
    await asyncio.sleep(0)
    waiting.cancel()  # the lane has stopped; its partition may have a new owner in this very process
    same = given.delivery([row(b"a", b"5")])
    processing = asyncio.create_task(processor.process(same))
    agent = asyncio.create_task(calls.agent(queue.each()))
    await processing
    agent.cancel()
    assert not left.outputs
    assert outputs(same, "events-out") == [row(b"a", b"5")]
