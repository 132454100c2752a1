"""What becomes of a record when not it, but what is around it, is at fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.errors import StoreDamaged
from kafka_ratchet.tables.values.partition import PartitionTables, nothing
from kafka_ratchet.testing.program_run import fetched, lane_spec
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.policy import Policy


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_damaged_store_is_no_dead_letter_and_nothing_of_it_commits(swallows: bool) -> None:
    app = App()
    numbers, seen = app.stream("numbers"), app.Table("seen", default=int)

    @app.agent(numbers, on_error="dead-letter")
    async def note(stream: Any) -> None:
        async for number in stream:
            try:
                seen[number] += 1
            except Exception:
                if not swallows:
                    raise

    def damaged(key: bytes) -> bytes | None:
        raise StoreDamaged(f"{key!r} cannot be read")

    partition = PartitionTables(damaged, nothing)
    partition.add(seen.codec, seen.default)
    program = PartitionProgram(numbers.agents, [seen], partition)
    delivery = Delivery(lane_spec("numbers"), Policy(), fetched("numbers", 0, [(None, b"1")]))
    program.take(delivery, np.ones(1, np.bool_))
    if swallows:
        await delivery.done
    else:
        with pytest.raises(StoreDamaged, match="cannot be read"):
            await delivery.done
    assert not delivery.outputs
    with pytest.raises(StoreDamaged, match="cannot be read"):
        partition.encode(1 << 20)
    partition.rollback()
    assert partition.encode(1 << 20) == []
