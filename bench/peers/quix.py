"""Deduplication in Quix Streams, exactly once: a stateful filter with a changelog and state in RocksDB, in one process.

It runs in its own Python environment (see `bench.peer_programs`), and so imports nothing of Ratchet.

Options:
    compression: compression of the output
"""

import json
import struct
import sys

from quixstreams import Application

SEQUENCE = struct.Struct(">q")
said = False


def is_fresh(_value, _key, _timestamp, headers, state) -> bool:
    """Return True if the record's sequence is above the last one of its key; then remember the new one."""
    global said
    if not said:
        said = True
        print("first records", flush=True)
    sequence = SEQUENCE.unpack(dict(headers)["ratchet-sequence"])[0]
    if sequence <= state.get("last", -1):
        return False
    state.set("last", sequence)
    return True


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
    options = {"key_serializer": "bytes", "value_serializer": "bytes"}
    events = app.topic(task["input"], key_deserializer="bytes", value_deserializer="bytes")
    stream = app.dataframe(events).filter(is_fresh, stateful=True, metadata=True)
    stream.to_topic(app.topic(task["output"], **options))
    app.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
