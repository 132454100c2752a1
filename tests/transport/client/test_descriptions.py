from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors as kafka

from kafka_ratchet.transport.client import descriptions
from kafka_ratchet.transport.client.descriptions import DESCRIPTIONS, BundledRequests, Descriptions
from kafka_ratchet.transport.client.topic_id import TopicState, topics_of


class Asked:
    """Answers with what was asked for, when it is told to."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.go = asyncio.Semaphore(0)

    async def __call__(self, names: set[str]) -> list[str]:
        self.requests.append(sorted(names))
        await self.go.acquire()
        if "bad" in names:
            raise ValueError("bad")
        return sorted(names)


async def test_who_asks_during_a_request_waits_for_the_next() -> None:
    asked = Asked()
    together: BundledRequests[str, list[str]] = BundledRequests(asked)
    first = asyncio.create_task(together.ask("a"))
    await asyncio.sleep(0.01)
    later = [asyncio.create_task(together.ask(name)) for name in ("a", "b", "c")]
    await asyncio.sleep(0.01)
    assert asked.requests == [["a"]]
    asked.go.release()
    assert await first == ["a"]
    asked.go.release()
    assert await asyncio.gather(*later) == [["a", "b", "c"]] * 3
    assert len(asked.requests) == 2


async def test_who_gives_up_takes_nobody_with_him_and_an_error_is_everybodys() -> None:
    asked = Asked()
    together: BundledRequests[str, list[str]] = BundledRequests(asked)
    one, other = asyncio.create_task(together.ask(["bad"])), asyncio.create_task(together.ask(["good"]))
    await asyncio.sleep(0.01)
    one.cancel()
    asked.go.release()
    with pytest.raises(ValueError, match="bad"):
        await other
    alone = asyncio.create_task(together.ask(["bad"]))
    await asyncio.sleep(0.01)
    alone.cancel()  # nobody hears the error, and asyncio does not say so
    asked.go.release()
    await asyncio.gather(alone, return_exceptions=True)
    asked.go.release()
    assert await together.ask(["good"]) == ["good"]


def text(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def topic(name: str, topic_id: bytes, partitions: int, code: int = 0) -> bytes:
    partition = bytes(14) + b"\2" + bytes(4) + b"\3" + bytes(8) + b"\1" + b"\1\0\2ab"
    head = code.to_bytes(2, "big") + text(name) + topic_id + b"\0"
    return head + bytes([partitions + 1]) + partition * partitions + bytes(4) + b"\0"


def metadata(*topics: bytes) -> Any:
    """Return a metadata answer of one node with a rack, and of one without."""
    nodes = (
        b"\3" + bytes(4) + text("host") + bytes(4) + text("rack") + b"\0" + bytes(4) + text("b") + bytes(4) + b"\0\0"
    )
    body = bytes(4) + nodes + text("cluster") + bytes(4) + bytes([len(topics) + 1]) + b"".join(topics) + b"\0"
    return SimpleNamespace(body=body)


def test_a_metadata_answer_is_read_to_its_last_topic() -> None:
    hidden = kafka.TopicAuthorizationFailedError.errno
    absent = kafka.UnknownTopicOrPartitionError.errno
    answer = metadata(
        topic("in", b"i" * 16, 2), topic("no", b"n" * 16, 0, absent), topic("mine", b"m" * 16, 0, hidden),
        topic("new", b"w" * 16, 0), topic("out", b"o" * 16, 3),
    )  # fmt: skip
    assert topics_of(answer) == {
        "in": TopicState(b"i" * 16, 2),
        "mine": TopicState(b"m" * 16, 0, is_hidden=True),
        "out": TopicState(b"o" * 16, 3),
    }


async def test_an_answer_like_the_last_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read, answers = list[bytes](), dict[tuple[str, ...], Any]()

    def topics(response: Any) -> dict[str, TopicState]:
        read.append(response.body)
        return topics_of(response)

    async def send(request: Any) -> Any:
        return answers[tuple(request._names)]

    monkeypatch.setattr(descriptions, "topics_of", topics)
    asked = Descriptions(send)
    names = [f"topic-{number}" for number in range(DESCRIPTIONS)]
    for name in names:
        answers[name,] = metadata(topic(name, b"1" * 16, 1))
        await asked.ask({name})
    for name in names:
        assert await asked.ask({name}) == {name: TopicState(b"1" * 16, 1)}
    assert len(read) == DESCRIPTIONS
    answers["topic-0",] = metadata(topic("topic-0", b"2" * 16, 4))
    assert await asked.ask({"topic-0"}) == {"topic-0": TopicState(b"2" * 16, 4)}


async def test_an_error_of_which_every_caller_gave_up_is_not_logged() -> None:
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    asked = Asked()
    together: BundledRequests[str, list[str]] = BundledRequests(asked)
    alone = asyncio.create_task(together.ask(["bad"]))
    await asyncio.sleep(0.01)
    alone.cancel()
    await asyncio.gather(alone, return_exceptions=True)
    asked.go.release()
    await asyncio.sleep(0.01)
    gc.collect()
    assert logged == []
