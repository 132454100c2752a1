"""Totals per user in plain Faust, at least once: an agent with a table in memory and its changelog, in one process.

Options:
    compression: compression of the output
    hosted: True: Ratchet's worker runs the same program, exactly once
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import faust
import mode.loop

from bench.peers.faust_agent import faust_app
from bench.subjects import FIRST, Task


class Order(faust.Record, serializer="json"):  # type: ignore[call-arg, misc]
    """Record of the input, with the fields that the agent uses."""

    user: str
    amount: int


def build(task: Task) -> Any:
    """Return the Faust application, with its agent."""
    app = faust_app(task)
    events = app.topic(task.input, key_type=bytes, key_serializer="raw", value_type=Order)
    output = app.topic(task.output, key_type=bytes, key_serializer="raw", value_serializer="json")
    totals = app.Table("totals", partitions=task.partitions, default=int)

    async def add_up(stream: Any) -> None:
        said = False
        async for event in stream.events():
            if not said:
                said = True
                print(FIRST, flush=True)
            order, message = event.value, event.message
            totals[order.user] += order.amount
            await output.send(
                key=event.key,
                value={"user": order.user, "total": totals[order.user]},
                partition=message.partition,
                timestamp=message.timestamp,
            )

    app.agent(events)(add_up)
    return app


def host(app: Any, task: Task) -> None:
    """Run the Faust application in Ratchet's worker, until SIGTERM."""
    from kafka_ratchet.app.faust_host.command import use_lanes

    config = Path(task.folder) / "ratchet.toml"
    config.write_text(f'commit_interval_ms = {task.commit_ms}\nstate_folder = "{task.folder}/state"\n', "utf-8")
    use_lanes(app, config)


if __name__ == "__main__":
    mode.loop.use("uvloop")
    given = Task(**json.loads(sys.argv[1]))
    app = build(given)
    if given.options.get("hosted"):
        host(app, given)
    faust.Worker(app, loglevel="INFO").execute_from_commandline()
