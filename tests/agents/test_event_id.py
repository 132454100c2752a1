"""An event's id is the same wherever the event goes, and no two events share one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kafka_ratchet import App, Event
from kafka_ratchet.agents.event import ID_MOST
from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.agents.sends import named_headers
from kafka_ratchet.app.dead_letters.letters import letter_at
from kafka_ratchet.app.dead_letters.original import encode, original_of
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table_partition import nothing, nowhere
from kafka_ratchet.testing import run
from kafka_ratchet.testing.program_run import lane_spec
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch, unpack_headers
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.policy import Policy
from tests.agents.test_deduplicate import fetched

HEADER = "ratchet-event-id"
NOT_THERE = object()
LETTERS = b"shop/numbers-dead-letters/id/"


def noting(seen: dict[str, Event], *, fails: bool = False, app: App | None = None) -> App:
    app = App() if app is None else app
    numbers = app.stream("numbers", value_type=bytes)

    @app.agent(numbers, on_error="dead-letter")
    async def note(stream: Any) -> None:
        async for event in stream.events():
            seen[str(event.value)] = event
            if fails:
                raise ValueError

    return app


async def take(app: App, batch: RecordBatch, **options: Any) -> Delivery:
    spec = replace(
        lane_spec("numbers"), topic="in", input_id="TOPIC", letters=LETTERS, partition=batch.partition, **options
    )
    delivery = Delivery(spec, Policy(), batch)
    program = PartitionProgram(app.of("numbers"), [], PartitionTables(nowhere, nothing))
    await program.take(delivery, np.ones(batch.count, np.bool_))
    return delivery


def row(value: bytes, *headers: tuple[str, bytes | None]) -> Any:
    return b"k", value, list(headers), 1_700_000_000_000


async def test_it_is_the_topics_id_the_partition_and_the_offset() -> None:
    seen = dict[str, Event]()
    await take(noting(seen), fetched([row(b"a"), row(b"b")], start=7))
    assert [(event.topic, event.id) for event in seen.values()] == [("in", "TOPIC/2/7"), ("in", "TOPIC/2/8")]


async def test_a_header_from_elsewhere_does_not_count_where_the_stream_does_not_name_it() -> None:
    seen = dict[str, Event]()
    replayed = ("ratchet-replayed-from", b"others/numbers-dead-letters/id/0/1"), ("ratchet-replays", b"1")
    rows = [row(b"a", (HEADER, b"X/0/1")), row(b"b", (HEADER, b"X/0/1"), *replayed)]
    await take(noting(seen), fetched(rows))
    assert [event.id for event in seen.values()] == ["TOPIC/2/0", "TOPIC/2/1"]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b"X/0/1", "X/0/1"),
        ("größe".encode(), "größe"),
        (b"", None),
        (None, None),
        (b"\xff", None),
        (b"x" * ID_MOST, "x" * ID_MOST),
        (b"x" * (ID_MOST + 1), None),
        (NOT_THERE, None),
    ],
)
async def test_a_mirrors_header_is_the_id_where_the_stream_names_it(value: Any, wanted: str | None) -> None:
    seen = dict[str, Event]()
    headers = [] if value is NOT_THERE else [("origin", b"first"), ("origin", value)]
    await take(noting(seen), fetched([row(b"a", *headers)]), event_header="origin")
    assert [event.id for event in seen.values()] == [wanted or "TOPIC/2/0"]


@pytest.mark.parametrize("inherited", [False, True])
async def test_a_dead_letter_that_is_sent_again_has_the_id_of_its_event(inherited: bool) -> None:
    seen = dict[str, Event]()
    old: tuple[tuple[str, bytes], ...] = ((HEADER, b"OLD/1/9"),) if inherited else ()
    options = {"event_header": HEADER} if inherited else {}
    rejected = await take(noting(seen, fails=True), fetched([row(b"a", *old)], start=5), **options)
    ((topic, _, encoded),) = rejected.outputs
    letters = read_chunk(topic, 0, 3, encoded.as_fetched(3), [])
    assert letter_at(letters, 0).headers == [*old]
    first = seen.pop("b'a'").id
    assert first == ("OLD/1/9" if inherited else "TOPIC/2/5")

    (again,) = encode([original_of(letters, 0, f"{LETTERS.decode()}0/3", 0)], 1 << 20)
    await take(noting(seen), read_chunk("in", 2, 77, again.as_fetched(77), []), **options)
    event = seen["b'a'"]
    assert (event.id, event.offset) == (first, 77)
    assert [name for name, _ in event.headers].count(HEADER) == 1


async def test_a_header_of_the_producer_is_no_id_when_its_letter_is_sent_again() -> None:
    seen = dict[str, Event]()
    rejected = await take(noting(seen, fails=True), fetched([row(b"a", (HEADER, b"X/0/1"))], start=5))
    ((topic, _, encoded),) = rejected.outputs
    letters = read_chunk(topic, 0, 3, encoded.as_fetched(3), [])
    (again,) = encode([original_of(letters, 0, f"{LETTERS.decode()}0/3", 0)], 1 << 20)
    await take(noting(seen), read_chunk("in", 2, 77, again.as_fetched(77), []))
    assert seen["b'a'"].id == "TOPIC/2/5"


def stepped(*, through: int = 1) -> tuple[App, dict[str, list[tuple[Any, str]]]]:
    """A program that notes ids in its first stream and, grouped again so often, in the last one."""
    app, seen = App(), {"first": list[tuple[Any, str]](), "last": list[tuple[Any, str]]()}
    first = last = app.stream("numbers")
    for number in range(through):
        last = last.group_by(f"step-{number}", key=lambda value: str(value % 3))

    def agent(stream: Any, name: str) -> None:
        async def note(events: Any) -> Any:
            async for event in events.events():
                seen[name].append((event.value, event.id))
                yield event

        note.__name__ = name
        app.agent(stream)(note)

    agent(first, "first")
    agent(last, "last")
    return app, seen


@pytest.mark.parametrize("through", [1, 3])
@pytest.mark.parametrize("batch", [1, 4, 100])
def test_it_survives_group_by(through: int, batch: int) -> None:
    app, seen = stepped(through=through)
    run(app, {"numbers": list(range(10))}, batch=batch)
    assert len({event for _, event in seen["first"]}) == 10
    assert sorted(seen["last"]) == sorted(seen["first"])


def test_two_streams_have_no_id_in_common() -> None:
    app, seen = App(), list[str]()

    def agent(name: str) -> None:
        async def note(events: Any) -> None:
            async for event in events.events():
                seen.append(event.id)

        note.__name__ = name
        app.agent(app.stream(name))(note)

    agent("one")
    agent("two")
    run(app, {"one": list(range(10)), "two": list(range(10))})
    assert len(set(seen)) == 20


def test_what_is_sent_is_another_event_also_with_the_headers_of_the_one_at_hand() -> None:
    app, seen = App(), list[str]()
    both = app.stream("both", internal=True)
    step = app.stream("numbers").group_by("step", key=lambda value: "")

    @app.agent(step)
    async def send(events: Any) -> None:
        async for event in events.events():
            for _ in range(2):
                await both.send(key="", value=event.value, headers=event.headers)

    @app.agent(both)
    async def note(events: Any) -> None:
        async for event in events.events():
            seen.append(event.id)

    run(app, {"numbers": list(range(5))})
    assert len(seen) == len(set(seen)) == 10


async def test_a_batch_has_a_column_of_them_where_it_is_named() -> None:
    app, seen = App(), list[Any]()

    @app.agent(app.stream("numbers"))
    async def note(stream: Any) -> None:
        async for batch in stream.batches(["id", "offset"]):
            seen.append(batch.to_pydict())

    await take(app, fetched([row(b"a"), row(b"b")], start=7))
    assert seen == [{"id": ["TOPIC/2/7", "TOPIC/2/8"], "offset": [7, 8]}]


@pytest.mark.parametrize("count", [0, 1, 62, 63, 64, 9000])
async def test_the_count_of_headers_may_take_several_bytes(count: int) -> None:
    delivery = Delivery(lane_spec("numbers"), Policy(), fetched([row(b"a", *[("h", b"v")] * count)]))
    (packed,) = named_headers(delivery, [0])
    headers = unpack_headers(packed)
    assert (len(headers), headers[-1].name) == (count + 1, HEADER)
