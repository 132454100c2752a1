"""Floor of the cost: a program that only copies record batches in transactions, without reading their records."""

from __future__ import annotations

import asyncio
import json
import signal
import struct
import sys
from collections.abc import Iterator

from bench.subjects import FIRST, Task
from kafka_ratchet.app.event_loop import loop_factory
from kafka_ratchet.transport.batch.chunk import LENGTH_FROM, TRANSACTIONAL
from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.changelog import FETCH_BYTES, FETCH_WAIT_MS
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.transactions.producer import TransactionalProducer

OFFSET_AND_LENGTH = struct.Struct(">qi")
ATTRIBUTES_AT = 21


def batches(data: bytes | memoryview) -> Iterator[tuple[int, EncodedBatch]]:
    """Yield the complete batches in the data of a fetch, each with the offset that follows it."""
    at = 0
    while at + LENGTH_FROM <= len(data):
        base, length = OFFSET_AND_LENGTH.unpack_from(data, at)
        end = at + LENGTH_FROM + length
        if end > len(data):
            return
        buffer = bytearray(data[at:end])
        struct.pack_into(">q", buffer, 0, 0)
        attributes, last_delta = struct.unpack_from(">hi", buffer, ATTRIBUTES_AT)
        struct.pack_into(">h", buffer, ATTRIBUTES_AT, attributes | TRANSACTIONAL)
        yield base + last_delta + 1, EncodedBatch(memoryview(buffer), last_delta + 1)
        at = end


async def lane(cluster: Cluster, task: Task, partition: int) -> None:
    """Copy one partition from the input to the output until cancelled."""
    clock = asyncio.get_running_loop().time
    fetching = ("fetch", partition)
    places = [(task.output, partition)]
    producer = TransactionalProducer(cluster, f"{task.group}-{partition}", task.group, 60_000, places)
    await producer.initialise()
    topic_id = (await cluster.found([task.input]))[task.input].id
    position, is_open, deadline = 0, False, 0.0

    def fetch(offset: int) -> asyncio.Task[bytes | memoryview]:
        async def data() -> bytes | memoryview:
            fetched = await cluster.fetch(
                task.input,
                partition,
                offset,
                fetching,
                max_bytes=FETCH_BYTES,
                max_wait_ms=FETCH_WAIT_MS,
                topic_id=topic_id,
            )
            return fetched.data

        return asyncio.create_task(data())

    fetching_now = fetch(0)
    while True:
        wait = max(0.0, deadline - clock()) if is_open else None
        await asyncio.wait({fetching_now}, timeout=wait)
        if fetching_now.done():
            found = list(batches(fetching_now.result()))
            position = found[-1][0] if found else position
            fetching_now = fetch(position)
            for _, batch in found:
                if not is_open:
                    producer.begin(places)
                    is_open, deadline = True, clock() + task.commit_ms / 1000
                await producer.produce(task.output, partition, batch)
        if is_open and clock() >= deadline:
            await producer.commit(task.input, partition, position)
            is_open = False


async def main(task: Task) -> None:
    """Run until SIGTERM."""
    cluster = Cluster(client_options(task.bootstrap, {}))
    await cluster.start(30)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(FIRST, flush=True)
    lanes = [asyncio.create_task(lane(cluster, task, partition)) for partition in range(task.partitions)]
    stopped = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({*lanes, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for one in done - {stopped}:
        one.result()
    for one in lanes:
        one.cancel()
    await asyncio.gather(*lanes, return_exceptions=True)
    await cluster.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(Task(**json.loads(sys.argv[1]))))
