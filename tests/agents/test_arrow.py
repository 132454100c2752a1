"""Batches as Arrow: every column is what the records say, and what is yielded becomes the records it says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.errors import AgentFailed, SettingsError
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table_partition import nothing, nowhere
from kafka_ratchet.testing import run
from kafka_ratchet.testing.program_run import lane_spec
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.policy import Policy
from tests.agents.test_deduplicate import TIME, Headers, Row, fetched, rows_of

HEADERS: list[Headers] = [
    [("a", b"1"), ("a", None), ("größe", b"")],
    [],
    [("b", b"x" * 300)],
    [("a", b"2")],
    [],
]
ROWS: list[Row] = [
    (b"k0", b'{"n": 0}', HEADERS[0], TIME),
    (None, b"one", HEADERS[1], TIME + 5),
    (b"", None, HEADERS[2], TIME + 3),
    (b"k3", b"", HEADERS[3], TIME - 7),
    (None, None, HEADERS[4], TIME + 4),
]
FRESH = np.array([True, True, True, False, True])


def pick(*indices: int) -> list[Row]:
    return [ROWS[index] for index in indices]


async def sent(*outputs: Any, judged: bool = True, columns: Any = None) -> tuple[Any, list[Row]]:
    """One batch through an agent that yields these outputs, made of the batch where they are functions."""
    app, seen = App(), list[Any]()

    @app.agent(app.stream("in"))
    async def emit(stream: Any) -> AsyncIterator[Any]:
        async for batch in stream.batches(columns):
            seen.append(batch)
            for output in outputs:
                yield output(batch) if callable(output) else output

    delivery = Delivery(lane_spec("in"), Policy(), fetched(ROWS, start=100))
    delivery.sequences = np.array([7, 8, 9, -1, 11]) if judged else None
    await PartitionProgram(app.of("in"), [], PartitionTables(nowhere, nothing)).take(delivery, FRESH)
    (batch,) = seen
    return batch, [row for *_, encoded in delivery.outputs for row in rows_of(encoded)]


async def test_columns_are_the_fresh_records() -> None:
    batch, outputs = await sent()
    assert batch.to_pydict() == {
        "key": [b"k0", None, b"", None],
        "value": [b'{"n": 0}', b"one", None, None],
        "timestamp": [TIME, TIME + 5, TIME + 3, TIME + 4],
        "sequence": [7, 8, 9, 11],
        "headers": [HEADERS[0], HEADERS[1], HEADERS[2], HEADERS[4]],
        "offset": [100, 101, 102, 104],
    }
    assert batch.schema.metadata == {b"topic": b"events", b"partition": b"2"}
    batch.validate(full=True)
    assert outputs == []
    unjudged, _ = await sent(judged=False, columns=["sequence", "key"])
    assert unjudged.to_pydict() == {"sequence": [None] * 4, "key": [b"k0", None, b"", None]}


@pytest.mark.parametrize("mask", [np.array([False, True, True, False]), pa.array([False, True, True, False])])
async def test_a_mask_forwards_records_as_they_are(mask: Any) -> None:
    _, outputs = await sent(mask, lambda batch: batch, pa.chunked_array([[True], [False] * 3]))
    assert outputs == pick(1, 2, 0, 1, 2, 4, 0)


async def test_new_records() -> None:
    new = {
        "key": pa.array(["x", "ab", None, "c"]).dictionary_encode(),
        "value": pa.array(["", "v1", "v2", None], pa.large_string()),
        "timestamp": pa.array([1, 2, 3, 4], pa.timestamp("us")),
        "headers": pa.array([[("h", b"0")], [("h", b"1"), ("h", None)], None, []], pa.map_(pa.string(), pa.binary())),
    }
    table = pa.table(new).slice(1)
    _, outputs = await sent(
        table,
        pa.record_batch({"key": pa.nulls(1), "value": pa.array([b"late"], pa.binary_view())}),
        lambda batch: batch.slice(0, 1),
        pa.record_batch({"key": pa.array([], pa.binary()), "value": pa.array([], pa.string())}),
    )
    assert outputs == [
        (b"ab", b"v1", [("h", b"1"), ("h", None)], 0),
        (None, b"v2", [], 0),
        (b"c", None, [], 0),
        (None, b"late", [], TIME + 5),
        ROWS[0],
    ]


async def test_new_records_before_1970() -> None:
    stamps = [-1, -2, -62_135_596_800_000]
    _, outputs = await sent(pa.record_batch({"key": pa.nulls(3), "value": ["a", "b", "c"], "timestamp": stamps}))
    assert [row[-1] for row in outputs] == stamps


REFUSED: list[tuple[Any, str]] = [
    ([True] * 4, "yielded list for a batch. Yield a boolean mask"),
    (np.ones(4, np.int8), "yielded ndarray for a batch"),
    ({"total": 1}, "yielded dict for a batch"),
    (np.ones(3, np.bool_), r"mask of shape \(3,\) for a batch of 4 records"),
    (pa.array([True, None, True, True]), "a mask with 1 nulls"),
    (pa.record_batch({"key": ["a"]}), "yielded columns key. New records need key and value"),
    (pa.record_batch({"key": ["a"], "value": ["b"], "user": ["c"]}), "yielded columns key, value, user"),
    (pa.record_batch({"key": [1], "value": ["b"]}), "column key of type int64. Convert it to binary or string"),
    (pa.record_batch({"key": ["a"], "value": ["b"], "timestamp": [1.5]}), "column timestamp of type double"),
    (pa.record_batch({"key": ["a"], "value": ["b"], "timestamp": pa.nulls(1, pa.int64())}), "timestamp with 1 nulls"),
    (
        pa.record_batch({"key": ["a"], "value": ["b"], "headers": ["h"]}),
        "headers of type string. Convert it to map<string, bin",
    ),
]


@pytest.mark.parametrize(("output", "sentence"), REFUSED)
async def test_what_cannot_be_yielded_for_a_batch(output: Any, sentence: str) -> None:
    with pytest.raises(AgentFailed, match=f"events, partition 2, offsets 100 to 104: agent emit raised .*{sentence}"):
        await sent(output)


async def test_a_column_that_is_not_there() -> None:
    with pytest.raises(SettingsError, match="unknown column user; write some of key, value, timestamp, "):
        await sent(columns=["key", "user"])


class Order(msgspec.Struct):
    user: str
    amount: int


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_running_totals(batch: int) -> None:
    app = App()
    orders, totals = app.stream("orders"), app.Table("totals", default=int)
    decode, encode = msgspec.json.Decoder(Order).decode, msgspec.json.Encoder().encode

    @app.agent(orders)
    async def add_up(stream: Any) -> AsyncIterator[Any]:
        async for batch in stream.batches(["key", "value"]):
            rows = [decode(value) for value in batch["value"].to_pylist()]
            found = totals.get_many([row.user for row in rows])
            values = []
            for row in rows:
                found[row.user] += row.amount
                values.append(encode({"user": row.user, "total": found[row.user]}))
            totals.update(found)
            yield pa.record_batch({"key": batch["key"], "value": values})

    sums, expected = dict[str, int](), []
    rows: list[tuple[str, dict[str, Any]]] = [
        (f"key-{number}", {"user": f"user-{number % 3}", "amount": number}) for number in range(100)
    ]
    for _, order in rows:
        user, amount = str(order["user"]), int(order["amount"])
        sums[user] = sums.get(user, 0) + amount
        expected.append({"user": user, "total": sums[user]})
    ran = run(app, {"orders": rows}, batch=batch)
    assert (ran.values, ran.tables["totals"]) == (expected, sums)
    assert [output.key for output in ran.outputs] == [key.encode() for key, _ in rows]


def test_events_and_batches_of_one_agent_keep_their_order() -> None:
    app = App()

    @app.agent(app.stream("in"))
    async def mixed(stream: Any) -> AsyncIterator[Any]:
        async for value in stream:
            yield value
            break
        async for batch in stream.batches():
            yield pa.record_batch({"key": batch["key"], "value": batch["value"]})

    assert run(app, {"in": [1, 2, 3, 4, 5]}, batch=3).values == [1, 2, 3, 4, 5]


def test_a_batch_is_no_dead_letter() -> None:
    app = App()

    @app.agent(app.stream("in"), on_error="dead-letter")
    async def skip(stream: Any) -> None:
        async for _ in stream.batches():
            pass

    with pytest.raises(
        AgentFailed, match=r'on_error="dead-letter" works with single records only\. Read values or events'
    ):
        run(app, {"in": [1]})
