"""What becomes of a record when not it, but what is around it, is at fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kafka_ratchet.agents.program import App, StreamDefinition
from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.errors import Aborted, AgentFailed, SettingsError, StoreDamaged
from kafka_ratchet.tables.values.own_table import OWN
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table_partition import nothing, nowhere
from kafka_ratchet.testing.program_run import fetched, lane_spec, run
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.policy import Policy
from tests.agents.test_deduplicate import fetched as fetched_rows
from tests.agents.test_deduplicate import row, rows_of

ROW = row(b"p", b"1", b"1")


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("use", [lambda seen: seen["a"], list])
async def test_a_damaged_store_is_no_dead_letter_and_nothing_of_it_commits(
    swallows: bool, use: Callable[[Any], Any]
) -> None:
    app = App()
    numbers, seen = app.stream("numbers"), app.Table("seen", default=int)

    @app.agent(numbers, on_error="dead-letter")
    async def note(stream: Any) -> None:
        async for _ in stream:
            try:
                use(seen)
            except Exception:
                if not swallows:
                    raise

    def damaged(key: bytes) -> bytes | None:
        if key.startswith(OWN):
            return None  # another block of the file
        raise StoreDamaged(f"{key!r} cannot be read")

    def damaged_too(prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        raise StoreDamaged(f"{prefix!r} cannot be read")

    partition = PartitionTables(damaged, damaged_too)
    partition.add(seen.codec, seen.default)
    program = PartitionProgram(numbers.agents, [seen], partition)
    delivery = Delivery(lane_spec("numbers"), Policy(), fetched("numbers", 0, [(None, b"1")]))
    taking = program.take(delivery, np.ones(1, np.bool_))
    if swallows:
        await taking
    else:
        with pytest.raises(StoreDamaged, match="cannot be read"):
            await taking
    assert not delivery.outputs
    with pytest.raises(StoreDamaged, match="cannot be read"):
        partition.encode(1 << 20)
    partition.rollback()
    assert partition.encode(1 << 20) == []


@pytest.mark.parametrize("raises", [False, True])
async def test_a_run_that_outlives_its_transaction_has_no_part_in_the_next(raises: bool) -> None:
    app = App()
    numbers, seen = app.stream("numbers"), app.Table("seen", default=int)
    goes_on, runs, late = asyncio.Event(), list[Any](), list[Any]()

    @app.agent(numbers, on_error="dead-letter")
    async def note(stream: Any) -> Any:
        runs.append(asyncio.current_task())
        async for number in stream:
            if asyncio.current_task() is runs[0]:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    late.append(number)
                    await goes_on.wait()  # as one that tidies up
                yield "too late"
                if raises:
                    raise ValueError
            else:
                goes_on.set()
                await asyncio.sleep(0.01)  # the late one runs
                seen[number] += 1
                yield {"number": number, "seen": seen[number]}

    partition = PartitionTables(nowhere, nothing)
    partition.add(seen.codec, seen.default)
    program = PartitionProgram(numbers.agents, [seen], partition)
    two = fetched("numbers", 0, [(None, b"1"), (None, b"2")])

    def deliver() -> Delivery:
        return Delivery(lane_spec("numbers"), Policy(), two)

    lost = asyncio.create_task(program.take(deliver(), np.ones(2, np.bool_)))
    await asyncio.sleep(0.01)
    partition.rollback()
    with pytest.raises(Aborted):
        await lost
    again = deliver()
    await program.take(again, np.ones(2, np.bool_))
    assert late == [1]
    assert all(task.done() for task in runs[:1])
    ((_, _, encoded),) = again.outputs
    written = read_chunk("numbers", 0, 0, bytes(encoded.seal(1, 0, 0)), [])
    assert [written.value(at) for at in range(written.count)] == [
        b'{"number":1,"seen":1}',
        b'{"number":2,"seen":1}',
    ]
    assert {key: partition.of("seen").get(key) for key in (1, 2)} == {1: 1, 2: 1}
    program.abandon()


def test_what_a_failed_record_writes_while_it_tidies_up_is_undone_with_it() -> None:
    app = App()
    numbers, seen = app.stream("numbers"), app.Table("seen", default=int)

    @app.agent(numbers, on_error="dead-letter")
    async def note(stream: Any) -> Any:
        async for number in stream:
            try:
                yield object() if number == 1 else number
            finally:
                seen[number] += 1

    ran = run(app, {"numbers": [1, 2, 1, 3]})
    assert ran.values == [2, 3]
    assert ran.tables == {"seen": {2: 1, 3: 1}}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
def test_a_loop_inside_another_one_reads_on_and_neither_leaves_an_event_out(size: int) -> None:
    app, seen = App(), list[int]()

    @app.agent(app.stream("numbers"))
    async def note(stream: Any) -> None:
        async for number in stream:
            seen.append(number)
            async for follows in stream.events():
                seen.append(follows.value)
                break

    run(app, {"numbers": list(range(9))}, batch=size)
    assert seen == [*range(9)]


def test_values_that_are_read_between_two_batches_leave_nothing_of_a_batch_out() -> None:
    app, seen = App(), list[int]()

    @app.agent(app.stream("numbers"))
    async def note(stream: Any) -> None:
        async for batch in stream.batches(["value"]):
            seen.extend(map(int, batch["value"].to_pylist()))
            seen.append(await anext(aiter(stream)))

    run(app, {"numbers": list(range(9))}, batch=3)
    assert seen == [*range(9)]


def test_an_event_is_not_forwarded_after_another_value_was_read() -> None:
    app = App()

    @app.agent(app.stream("numbers"), on_error="dead-letter")
    async def note(stream: Any) -> Any:
        async for event in stream.events():
            if event.value == 1:
                await anext(aiter(stream))
            yield event

    ran = run(app, {"numbers": [1, 2, 3]})
    assert ran.values == [3]
    (letter,) = ran.dead_letters
    assert letter.value == 2
    assert b"an event other than the current one" in (dict(letter.headers)["ratchet-reason"] or b"")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_agent_that_exits_fails_at_its_record_and_the_worker_goes_on(error: type[BaseException]) -> None:
    app = App()
    numbers, strict = app.stream("numbers"), app.stream("strict")

    async def note(stream: Any) -> Any:
        async for number in stream:
            if number == 2:
                raise error(3)
            yield number

    app.agent(numbers, on_error="dead-letter")(note)
    app.agent(strict)(note)
    ran = run(app, {"numbers": [1, 2, 3]})
    assert ran.values == [1, 3]
    assert f"agent note: raised {error.__name__}: 3 (".encode() in (
        dict(ran.dead_letters[0].headers)["ratchet-reason"] or b""
    )
    with pytest.raises(AgentFailed, match=rf"strict, partition 0, offset 1: agent note raised {error.__name__}: 3"):
        run(app, {"strict": [1, 2, 3]})


@pytest.mark.parametrize("part", ["key", "value", "timestamp"])
def test_a_part_of_an_event_cannot_be_replaced_for_its_record_would_go_on_as_it_was(part: str) -> None:
    app = App()

    @app.agent(app.stream("numbers"), on_error="dead-letter")
    async def note(stream: Any) -> Any:
        async for event in stream.events():
            setattr(event, part, None)
            yield event

    ran = run(app, {"numbers": [1]})
    assert ran.values == []
    assert b"AttributeError: immutable type" in (dict(ran.dead_letters[0].headers)["ratchet-reason"] or b"")


def event_app() -> tuple[App, list[Any]]:
    app, seen = App(), list[Any]()

    @app.agent(app.stream("numbers"))
    async def note(stream: Any) -> None:
        async for event in stream.events():
            seen.append((event.value, event.offset, event.producer, event.sequence, dict(event.headers)))

    return app, seen


@pytest.mark.parametrize("by_producer", [False, True])
async def test_an_event_has_the_sequence_and_the_producer_it_was_judged_by(by_producer: bool) -> None:
    app, seen = event_app()
    rows = [row(f"p-{number}".encode(), str(40 + number).encode(), b"%d" % number) for number in range(3)]
    batch = fetched_rows(rows, start=7)
    spec = replace(lane_spec("numbers"), identity_header=b"ratchet-producer" if by_producer else b"")
    delivery = Delivery(spec, Policy(), batch)
    delivery.sequences = np.array([40, -1, 42])
    program = PartitionProgram(app.of("numbers"), [], PartitionTables(nowhere, nothing))
    await program.take(delivery, np.array([True, False, True]))
    producers = ("p-0", "p-2") if by_producer else (None, None)
    headers = [{"ratchet-producer": f"p-{n}".encode(), "ratchet-sequence": b"4%d" % n, "other": None} for n in (0, 2)]
    assert seen == [(0, 7, producers[0], 40, headers[0]), (2, 9, producers[1], 42, headers[1])]


async def test_an_event_that_was_not_judged_has_neither() -> None:
    app, seen = event_app()
    delivery = Delivery(
        replace(lane_spec("numbers"), identity_header=b"ratchet-producer"), Policy(), fetched_rows([ROW])
    )
    await PartitionProgram(app.of("numbers"), [], PartitionTables(nowhere, nothing)).take(delivery, np.ones(1, bool))
    assert [event[:4] for event in seen] == [(1, 0, None, None)]


REPLAYED = ("ratchet-replays", b"1"), ("ratchet-replayed-from", b"letters/id/2/0")


async def taken(
    program: PartitionProgram, *rows: Any, fresh: bool = True
) -> list[tuple[str, list[tuple[str, bytes | None]]]]:
    """What becomes of these records: topic and headers of each output."""
    batch = fetched_rows(list(rows))
    delivery = Delivery(replace(lane_spec("numbers"), letters=b"shop/letters/id/"), Policy(), batch)
    await program.take(delivery, np.full(batch.count, fresh))
    return [(topic, rows_of(encoded)[0][2]) for topic, _, encoded in delivery.outputs]


def test_two_agents_of_one_name_are_refused_on_a_stream_and_accepted_on_two() -> None:
    """A re-sent dead letter names its agents, so it would come to both, though one had processed it."""
    app = App()

    def register(stream: StreamDefinition) -> None:
        @app.agent(stream)
        async def count(stream: Any) -> None:
            async for _ in stream:
                pass

    numbers = app.stream("numbers")
    register(numbers)
    register(app.stream("others"))
    with pytest.raises(SettingsError, match=r"streams\.numbers: has two agents named count\. Give one"):
        register(numbers)
    assert [agent.name for agent in numbers.agents] == ["count"]


async def test_a_replayed_record_goes_to_the_agents_that_rejected_it_and_to_no_other() -> None:
    app = App()
    numbers = app.stream("numbers")
    met: list[tuple[str, bytes]] = []
    mended: set[str] = set()

    def agent(name: str) -> None:
        async def work(stream: Any) -> None:
            async for event in stream.events():
                met.append((name, event.key))
                if name not in mended and name != "first":
                    raise ValueError(name)

        work.__name__ = name
        app.agent(numbers, on_error="dead-letter")(work)

    for name in ("first", "second", "third"):
        agent(name)
    program = PartitionProgram(numbers.agents, [], PartitionTables(nowhere, nothing))
    ((topic, headers),) = await taken(program, ROW)
    assert (topic, headers[-5]) == ("numbers-dead-letters", ("ratchet-agents", b'["second", "third"]'))
    assert headers[-6][0] == "ratchet-app"
    assert (dict(headers)["ratchet-reason"] or b"").startswith(b"agent second: raised ValueError: second")
    assert [name for name, _ in met] == ["first", "second", "third"]

    key, value, own, time = ROW
    again = key, value, [*own, *REPLAYED, ("ratchet-replayed-for", b'["second", "third"]')], time
    met.clear()
    mended.add("second")
    ((_, headers),) = await taken(program, again)
    assert headers[-5] == ("ratchet-agents", b'["third"]')
    assert [name for name, _ in met] == ["second", "third"]

    met.clear()
    mended.add("third")
    for said, wanted in (
        (b'["third"]', ["third"]),
        (b'["third", "gone"]', []),
        (b"{", []),
        (b"[]", []),
        (b"null", ["first", "second", "third"]),
    ):
        found = await taken(program, (key, value, [*own, *REPLAYED, ("ratchet-replayed-for", said)], time))
        assert [name for name, _ in met] == wanted
        assert len(found) == (not wanted)
        is_known = said.startswith(b'["third"')
        assert not found or is_known == (("ratchet-agents", b'["gone", "third"]') in found[0][1])
        assert not found or is_known or (dict(found[0][1])["ratchet-reason"] or b"").startswith(b"agent unknown: ")
        met.clear()
    # A copy is dropped: it is no letter, whatever agents it names.
    gone = ("ratchet-replayed-for", b'["third", "gone"]')
    assert not await taken(program, (key, value, [*own, *REPLAYED, gone], time), fresh=False)
    # Without the name of a letter of this stream it is a header of anybody.
    others: tuple[list[tuple[str, bytes]], ...] = ([], [("ratchet-replayed-from", b"others/id/2/0")])
    for other in others:
        assert not await taken(program, (key, value, [*own, *other, ("ratchet-replayed-for", b'["third"]')], time))
        assert [name for name, _ in met] == ["first", "second", "third"]
        met.clear()


async def test_a_replayed_record_with_unreadable_agents_goes_to_the_only_agent() -> None:
    app = App()
    numbers, met = app.stream("numbers"), list[bytes]()

    @app.agent(numbers)
    async def only(stream: Any) -> None:
        async for event in stream.events():
            met.append(event.key)

    program = PartitionProgram(numbers.agents, [], PartitionTables(nowhere, nothing))
    key, value, own, time = ROW
    assert not await taken(program, (key, value, [*own, *REPLAYED, ("ratchet-replayed-for", b"{")], time))
    assert met == [key]
