"""Totals per user in Quix Streams, exactly once: state in RocksDB with a changelog, in one process.

It runs in its own Python environment (see `bench.peer_programs`), and so imports nothing of Ratchet.

Options:
    compression: compression of the output
"""

import json
import sys

from quixstreams import Application

said = False


def add_up(order, state):
    """Add an order to the user's total, and return the new total."""
    global said
    if not said:
        said = True
        print("first records", flush=True)
    total = state.get("total", 0) + order["amount"]
    state.set("total", total)
    return {"user": order["user"], "total": total}


def main(task) -> None:
    """Run until SIGTERM."""
    app = Application(
        broker_address=task["bootstrap"],
        consumer_group=task["group"],
        processing_guarantee="exactly-once",
        commit_interval=task["commit_ms"] / 1000,
        auto_offset_reset="earliest",
        state_dir=task["folder"],
        loglevel="WARNING",
        consumer_extra_config={"fetch.message.max.bytes": 4 << 20, "queued.min.messages": 200_000},
        producer_extra_config={
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "compression.type": task["options"].get("compression", "none"),
        },
    )
    events = app.topic(task["input"], key_deserializer="bytes", value_deserializer="json")
    output = app.topic(task["output"], key_serializer="bytes", value_serializer="json")
    app.dataframe(events).apply(add_up, stateful=True).to_topic(output)
    app.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
