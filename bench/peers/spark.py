"""Deduplication in Spark, at least once: Structured Streaming, dropDuplicates on key and sequence, and Kafka's sink.

Its rule differs from a worker's: it remembers every sequence of a key, and not the last one alone, and does not keep
the order of a key's records. The sink gives the records new timestamps. The offsets are in the query's checkpoint, and
not in a consumer group.

Options:
    at_a_time: records of a micro-batch; 200,000 by default
    compression: compression of the output
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from bench.subjects import FIRST, Task
from kafka_ratchet.app.local.jars import spark_jars
from kafka_ratchet.spark_sink.spark.session import spark_session

AT_A_TIME = 200_000
ASK_EVERY_S = 0.01
ASK_LATER_S = 0.2
STATE = "spark.sql.streaming.stateStore"
SETTINGS = {
    # On the heap, Spark's default, every micro-batch would copy the state's maps.
    f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
}


def main(task: Task) -> None:
    """Run until SIGTERM."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 4g pyspark-shell"
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    with spark_session(task.group, [str(jar) for jar in spark_jars()]) as spark:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        spark.conf.set("spark.sql.shuffle.partitions", str(task.partitions))
        events = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", task.bootstrap)
            .option("subscribe", task.input)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            # Or all that waits would be one micro-batch.
            .option("maxOffsetsPerTrigger", task.options.get("at_a_time", AT_A_TIME))
            .load()
        )
        sequence = "filter(headers, header -> header.key = 'ratchet-sequence')[0].value AS sequence"
        fresh = events.selectExpr("key", "value", "headers", sequence).dropDuplicates(["key", "sequence"])
        query = (
            fresh.drop("sequence")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", task.bootstrap)
            .option("kafka.compression.type", task.options.get("compression", "none"))
            .option("kafka.linger.ms", "20")
            .option("topic", task.output)
            .option("checkpointLocation", task.folder)
            .trigger(processingTime=f"{task.commit_ms} milliseconds")
            .start()
        )
        # Asked again and again: a call that waits inside the JVM is not to be interrupted by a signal.
        said = False
        while query.isActive and not stopping:
            if not said and query.status["isDataAvailable"]:
                said = True
                print(FIRST, flush=True)
            time.sleep(ASK_LATER_S if said else ASK_EVERY_S)
        query.stop()
        query.awaitTermination()


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
