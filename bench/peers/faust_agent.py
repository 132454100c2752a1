"""Deduplication in plain Faust, at least once: an agent with a table in memory and its changelog, in one process.

Options:
    compression: compression of the output
"""

from __future__ import annotations

import json
import sys
from typing import Any

import faust
import mode.loop

from bench.load import SEQUENCE
from bench.subjects import FIRST, Task


def faust_app(task: Task) -> Any:
    """Return a Faust application for the task, without agents."""
    return faust.App(
        task.group,
        broker=f"kafka://{task.bootstrap}",
        store="memory://",
        datadir=task.folder,
        # Its web server would listen on all addresses.
        web_enabled=False,
        topic_disable_leader=True,
        # Of the changelog: a table's partitions are its input's.
        topic_partitions=task.partitions,
        broker_commit_interval=task.commit_ms / 1000,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=4 << 20,
        producer_linger=0.02,
        producer_max_batch_size=1_000_000,
        producer_compression_type=task.options.get("compression"),
    )


def build(task: Task) -> Any:
    """Return the Faust application, with its agent."""
    app = faust_app(task)
    raw = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
    events, output = app.topic(task.input, **raw), app.topic(task.output, **raw)
    last = app.Table("last", partitions=task.partitions, key_type=bytes, value_type=int)

    async def deduplicate(stream: Any) -> None:
        said = False
        async for event in stream.events():
            if not said:
                said = True
                print(FIRST, flush=True)
            key, headers, message = event.key, event.headers, event.message
            sequence = SEQUENCE.unpack(headers["ratchet-sequence"])[0]
            if sequence > last.get(key, -1):
                last[key] = sequence
                await output.send(
                    key=key,
                    value=event.value,
                    partition=message.partition,
                    timestamp=message.timestamp,
                    headers=headers,
                )

    app.agent(events)(deduplicate)
    return app


if __name__ == "__main__":
    mode.loop.use("uvloop")
    # Not "WARN": at that level Faust has a spinner, which makes every debugging message into a record of the log.
    faust.Worker(build(Task(**json.loads(sys.argv[1]))), loglevel="INFO").execute_from_commandline()
