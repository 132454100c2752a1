"""Trying again until Kafka answers, by the event loop's clock."""

from __future__ import annotations

import asyncio
import gc
from itertools import pairwise

from structlog.testing import capture_logs

from kafka_ratchet.transport.client.retry import (
    RETRY_FIRST_S,
    RETRY_MOST_S,
    SAY_AFTER_S,
    SAY_LEAST_OFTEN_S,
    Attempts,
    Retry,
)
from tests.transport.modelled_worker import VirtualLoop, run


def test_pauses_grow_to_a_limit_and_what_takes_long_is_said_more_and_more_seldom() -> None:
    pauses, said_at = list[float](), list[float]()

    async def try_for(seconds: float) -> None:
        retry = Retry("ask", topic="events")
        while retry.seconds < seconds:
            before, lines_before = retry.seconds, len(lines)
            await retry.wait("nobody answers")
            pauses.append(retry.seconds - before)
            if len(lines) > lines_before:
                said_at.append(before)

    loop = VirtualLoop()
    with capture_logs() as lines:
        run(loop, try_for(400.0))
    loop.close()
    assert pauses[0] == RETRY_FIRST_S
    assert [round(after / before) for before, after in pairwise(pauses[:5])] == [2] * 4
    assert round(max(pauses), 6) == RETRY_MOST_S
    gaps = [after - before for before, after in pairwise([0.0, *said_at])]
    expected = [SAY_AFTER_S, 2 * SAY_AFTER_S, 4 * SAY_AFTER_S, 8 * SAY_AFTER_S, SAY_LEAST_OFTEN_S, SAY_LEAST_OFTEN_S]
    assert all(least < gap <= least + RETRY_MOST_S + 1e-6 for least, gap in zip(expected, gaps, strict=False))
    assert len(gaps) > len(expected)
    assert {(line["what"], line["topic"], line["reason"]) for line in lines} == {("ask", "events", "'nobody answers'")}


def test_the_innermost_failed_request_keeps_the_others_waiting() -> None:
    async def nested() -> None:
        attempts = Attempts()
        attempts.follow()
        assert (attempts.longest(), attempts.failed()) == (None, None)
        outer = Retry("send")
        await asyncio.sleep(1)
        inner = Retry("find leader")
        await asyncio.sleep(1)
        unfailed = Retry("ask")
        assert attempts.failed() is None
        await outer.wait(TimeoutError())
        assert attempts.failed() is outer
        await inner.wait(TimeoutError())
        assert (attempts.longest(), attempts.failed()) == (outer, inner)
        assert unfailed.error is None
        attempts.clear()
        assert attempts.longest() is None

    loop = VirtualLoop()
    run(loop, nested())
    loop.close()


async def test_a_request_that_was_answered_at_last_is_retried_no_more() -> None:
    """The future of the failed request keeps itself by its error's traceback, until a search for garbage."""

    async def ask(failure: Exception | None) -> None:
        answer = asyncio.get_running_loop().create_future()
        if failure is None:
            answer.set_result(None)
        else:
            answer.set_exception(failure)
        await answer

    async def answered_at_last() -> None:
        retry = Retry("ask")
        retry.pause_s = 0.0
        failures: list[Exception | None] = [None, ConnectionResetError()]
        while True:
            try:
                await ask(failures.pop())
            except OSError as error:
                await retry.wait(error)
            else:
                return

    attempts = Attempts()
    attempts.follow()
    gc.disable()
    try:
        await answered_at_last()
        assert attempts.longest() is None
    finally:
        gc.enable()
