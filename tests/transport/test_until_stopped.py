import asyncio
import threading

import pytest

from kafka_ratchet.errors import StateError
from kafka_ratchet.transport.until_stopped import in_thread


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_thread_opens_is_open_when_the_stop_goes_on(fails: bool) -> None:
    begun, goes_on, opened = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        assert goes_on.wait(30)
        opened.append(True)
        if fails:
            raise StateError("no room")

    doing = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait, 30)
    doing.cancel()
    await asyncio.sleep(0)
    assert not doing.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert opened
    if fails:
        with pytest.raises(StateError, match="no room"):
            await in_thread(work)
    else:
        await in_thread(work)
