"""What agents send: which records, in which order, to which partitions, and when not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.errors import Aborted, AgentFailed, RecordTooLarge, SendRefused
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table_partition import nothing, nowhere
from kafka_ratchet.testing import Output, run
from kafka_ratchet.testing.program_run import fetched, lane_spec
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.policy import Policy
from kafka_ratchet.transport.sent_topics import SentTopic


class Alert(msgspec.Struct):
    user: str


async def taken(app: App, pairs: list[tuple[bytes | None, bytes | None]], **options: Any) -> Delivery:
    """A batch of partition 0 of the app's only stream, as its agents give it back."""
    (name,) = app.streams
    spec = replace(lane_spec(name, app.topics), **options)
    program = PartitionProgram(app.of(name), [], PartitionTables(nowhere, nothing))
    delivery = Delivery(spec, Policy(), fetched(name, 0, pairs))
    try:
        await program.take(delivery, np.ones(len(pairs), np.bool_))
    finally:
        program.abandon()
    return delivery


def written(delivery: Delivery) -> list[tuple[str, int, RecordBatch]]:
    return [
        (topic, number, read_chunk(topic, number, 0, bytes(encoded.seal(1, 0, 0)), []))
        for topic, number, encoded in delivery.outputs
    ]


def test_what_is_sent_is_what_was_given() -> None:
    app = App()
    alerts = app.topic("alerts")

    @app.agent(app.stream("in"))
    async def send(stream: Any) -> AsyncIterator[Any]:
        async for number in stream:
            await alerts.send(key="größe", value=Alert("ann"), headers={"why": "text", "raw": b"\0", "none": None})
            yield number
            await alerts.send(key=b"\xff", value=b"as it is", headers=[("again", b"1"), ("again", b"2")])
            await alerts.send(key=None, value=None)
            alerts.send(key=7, value=[number])

    ran = run(app, {"in": [1]})
    assert [output for output in ran.outputs if output.topic == "alerts"] == [
        Output("alerts", "größe".encode(), {"user": "ann"}, (("why", b"text"), ("raw", b"\0"), ("none", None))),
        Output("alerts", b"\xff", b"as it is", (("again", b"1"), ("again", b"2"))),
        Output("alerts", None, None),
        Output("alerts", b"7", [1]),
    ]
    assert [output for output in ran.outputs if output.topic == "in"] == [Output("in", None, 1)]


async def test_each_partition_has_its_records_in_order_and_in_few_batches() -> None:
    app = App()
    alerts, others = app.topic("alerts"), app.topic("others")

    @app.agent(app.stream("in"))
    async def send(stream: Any) -> None:
        async for event in stream.events():
            await alerts.send(key=event.key, value=event.value)
            await others.send(value=event.value, partition=event.offset % 2, timestamp=event.offset)
            await others.send(value=-event.value)

    keys = [b"21", b"foobar", b"abc"]  # see tests/transport/batch/test_partitioner.py
    pairs: list[tuple[bytes | None, bytes | None]] = [(keys[i % 3], b"%d" % i) for i in range(3_000)]
    sends = {"alerts": SentTopic(5, 1 << 20), "others": SentTopic(4, 1 << 20)}
    batches = written(await taken(app, pairs, sends=sends, partition=7))
    of_key = {
        key: (known & 0x7FFFFFFF) % 5 for key, known in zip(keys, (-973932308, -790332482, 479470107), strict=True)
    }
    found = {
        (topic, number): [int(batch.value(i) or b"") for i in range(batch.count)] for topic, number, batch in batches
    }
    assert len(found) == len(batches)
    for number in set(of_key.values()):
        assert found["alerts", number] == [i for i in range(3_000) if of_key[keys[i % 3]] == number]
    assert found["others", 0] == list(range(0, 3_000, 2))
    assert found["others", 1] == list(range(1, 3_000, 2))
    assert found["others", 3] == [-i for i in range(3_000)]  # without a key: 7 modulo 4
    (of_zero,) = (batch for topic, number, batch in batches if (topic, number) == ("others", 0))
    assert of_zero.timestamps.tolist() == list(range(0, 3_000, 2))


async def test_timestamps_before_1970_are_sent() -> None:
    app = App()
    others, stamps = app.topic("others"), (-1, -60_000, -62_135_596_800_000)

    @app.agent(app.stream("in"))
    async def send(stream: Any) -> None:
        async for event in stream.events():
            await others.send(value=event.value, timestamp=stamps[event.value])

    pairs: list[tuple[bytes | None, bytes | None]] = [(None, b"%d" % i) for i in range(3)]
    ((_, _, batch),) = written(await taken(app, pairs, sends={"others": SentTopic(1, 1 << 20)}))
    assert batch.timestamps.tolist() == list(stamps)


def test_for_a_batch_and_from_a_timer() -> None:
    app = App()
    alerts, stream = app.topic("alerts"), app.stream("in")

    @app.agent(stream)
    async def send(stream: Any) -> None:
        async for batch in stream.batches(["value"]):
            await alerts.send(key="batch", value=batch.num_rows)

    @app.timer(10.0, stream=stream)
    async def report() -> None:
        await alerts.send(key="timer")

    ran = run(app, {"in": [1, 2, 3, report, 4]})
    assert [(output.key, output.value) for output in ran.outputs] == [(b"batch", 3), (b"timer", None), (b"batch", 1)]


def test_what_a_timer_leaves_behind_sends_nothing() -> None:
    app = App()
    alerts, stream, refused = app.topic("alerts"), app.stream("in"), list[str]()

    @app.agent(stream)
    async def wait(stream: Any) -> None:
        async for _ in stream:
            await asyncio.sleep(0.01)

    async def later() -> None:
        await asyncio.sleep(0)
        try:
            await alerts.send(key="late")
        except SendRefused as error:
            refused.append(str(error))

    @app.timer(10.0, stream=stream)
    async def report() -> None:
        tasks.append(asyncio.create_task(later()))

    tasks: list[Any] = []
    assert run(app, {"in": [1, report, 2]}).outputs == []
    (text,) = refused
    assert text.startswith(
        "topic alerts: agent report sent a record while it had no event, or in a task that it has started"
    )


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_a_dead_letter_has_sent_nothing(batch: int) -> None:
    app = App()
    alerts = app.topic("alerts")

    @app.agent(app.stream("in"), on_error="dead-letter")
    async def send(stream: Any) -> None:
        async for number in stream:
            await alerts.send(value=number)
            await alerts.send(value=number, partition=0 if number != 3 else 1)
            if number == 5:
                raise ValueError("no")

    ran = run(app, {"in": list(range(8))}, batch=batch)
    assert [output.value for output in ran.outputs if output.topic == "alerts"] == [
        number for number in range(8) if number not in (3, 5) for _ in range(2)
    ]
    reasons = [dict(letter.headers)["ratchet-reason"] or b"" for letter in ran.dead_letters]
    assert b"ValueError: topic alerts: partition 1 does not exist; the topic has 0 to 0" in reasons[0]
    assert b"ValueError: no" in reasons[1]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"timestamp": 1.5}, r"timestamp 1\.5 is invalid\. Give milliseconds since the epoch"),
        ({"timestamp": -(2**63)}, "timestamp -9223372036854775808"),
        ({"partition": "0"}, "partition '0' does not exist"),
        ({"headers": {"a": 1}}, "header 'a': 1 is invalid. Give a name, and bytes, text or None"),
        ({"value": object()}, "Encoding objects of type object is unsupported"),
    ],
)
def test_what_cannot_be_sent_halts_with_its_record(record: dict[str, Any], says: str) -> None:
    app = App()
    alerts = app.topic("alerts")

    @app.agent(app.stream("in"))
    async def send(stream: Any) -> None:
        async for _ in stream:
            await alerts.send(**record)

    with pytest.raises(AgentFailed, match=f"in, partition 0, offset 0: agent send raised .*{says}"):
        run(app, {"in": [1]})


async def test_a_record_that_does_not_fit_its_topic() -> None:
    app = App()
    alerts = app.topic("alerts")

    @app.agent(app.stream("in"))
    async def send(stream: Any) -> None:
        async for _ in stream:
            await alerts.send(value=b"x" * 2_000)

    with pytest.raises(RecordTooLarge, match="alerts: sent between offsets 0 and 0 of in-0: a record of 20"):
        await taken(app, [(None, b"1")], sends={"alerts": SentTopic(1, 1_000)})


def test_where_no_event_is_at_hand() -> None:
    app = App()
    alerts = app.topic("alerts")
    assert app.topic("alerts") is alerts
    with pytest.raises(SendRefused, match="topic alerts: sent outside an agent's event"):
        alerts.send(value=1)

    @app.agent(app.stream("in"))
    async def hasty(stream: Any) -> None:
        await alerts.send(value=1)
        async for _ in stream:
            pass

    with pytest.raises(SendRefused, match="topic alerts: agent hasty sent a record while it had no event"):
        run(app, {"in": [1]})


def test_a_timer_has_no_event_to_forward() -> None:
    app = App()
    alerts, stream = app.topic("alerts"), app.stream("in")

    @app.agent(stream)
    async def read(stream: Any) -> None:
        async for _ in stream:
            pass

    @app.timer(10.0, stream=stream)
    async def report() -> None:
        alerts.send_event(b"key")

    with pytest.raises(SendRefused, match=r"alerts: report forwarded an event while it had none\. A timer has no"):
        run(app, {"in": [1, report, 2]})


def test_a_batch_has_no_single_event_to_forward() -> None:
    app = App()
    alerts = app.topic("alerts")

    @app.agent(app.stream("in"))
    async def each(stream: Any) -> None:
        async for batch in stream.batches(["value"]):
            for _ in range(batch.num_rows):
                alerts.send_event(b"key")

    with pytest.raises(SendRefused, match=r"topic alerts: each forwarded an event while it had none\. .* Use `send`"):
        run(app, {"in": [1, 2, 3]})


@pytest.mark.parametrize(
    ("topic", "says"),
    [("in", "agent send reads this topic"), ("strange", "agent send sends to it, but")],
)
def test_where_it_may_not_go_is_no_dead_letter(topic: str, says: str) -> None:
    app = App()
    target = App().topic(topic) if topic == "strange" else app.topic(topic)

    @app.agent(app.stream("in"), on_error="dead-letter")
    async def send(stream: Any) -> None:
        async for _ in stream:
            await target.send(value=1)

    with pytest.raises(SendRefused, match=f"topic {topic}: {says}"):
        run(app, {"in": [1]})


async def test_a_run_that_outlives_its_transaction_sends_nothing_and_takes_no_events() -> None:
    """A program that catches its cancellation goes on beside the run that comes after it."""
    app = App()
    alerts = app.topic("alerts")
    may_go_on, late = asyncio.Event(), list[str]()

    @app.agent(app.stream("in"), on_error="dead-letter")
    async def stubborn(stream: Any) -> AsyncIterator[Any]:
        async for number in stream:
            try:
                if not may_go_on.is_set():
                    await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                await may_go_on.wait()
                for wrong in (lambda: alerts.send(value="late"), lambda: late.append("went on")):
                    try:
                        wrong()
                    except SendRefused:
                        late.append("refused")
                yield "late"
            await alerts.send(value=number)
            yield number

    pairs: list[tuple[bytes | None, bytes | None]] = [(None, b"%d" % i) for i in range(5)]
    program = PartitionProgram(app.of("in"), [], PartitionTables(nowhere, nothing))
    first = Delivery(lane_spec("in", ["alerts"]), Policy(), fetched("in", 0, pairs))
    taking = asyncio.create_task(program.take(first, np.ones(5, np.bool_)))
    await asyncio.sleep(0.01)
    program.abandon()
    await asyncio.sleep(0.01)
    may_go_on.set()
    second = Delivery(lane_spec("in", ["alerts"]), Policy(), fetched("in", 0, pairs))
    await program.take(second, np.ones(5, np.bool_))
    with pytest.raises(Aborted):
        await taking
    assert late == ["refused", "went on"]
    assert [(topic, [batch.value(i) for i in range(batch.count)]) for topic, _, batch in written(second)] == [
        ("in", [b"0", b"1", b"2", b"3", b"4"]),
        ("alerts", [b"0", b"1", b"2", b"3", b"4"]),
    ]
    program.abandon()
