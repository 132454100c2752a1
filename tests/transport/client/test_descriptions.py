from __future__ import annotations

import asyncio

import pytest

from kafka_ratchet.transport.client.descriptions import Together


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
    together: Together[str, list[str]] = Together(asked)
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
    together: Together[str, list[str]] = Together(asked)
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
