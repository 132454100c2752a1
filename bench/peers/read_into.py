"""Reader of a topic into a PostgreSQL table, as a process of its own.

    python -m bench.peers.read_into ratchet|loop|loop-execute|ratchet-execute BOOTSTRAP TOPIC DSN

It prints the seconds from the start of the reader to its last commit. `loop` is a loop written by hand with
confluent-kafka and psycopg. It commits rows and offsets in one transaction too, but does not fence other readers, and
does not check the topic's id. Kinds with `-execute` use one statement per record instead of `executemany`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition

from kafka_ratchet.reader import Postgres, Reader

AT_A_TIME = 1000
INSERT = "INSERT INTO bill VALUES (%s, %s)"


def ratchet(bootstrap: str, topic: str, dsn: str, *, one_by_one: bool) -> None:
    """Copy the topic into the table with Ratchet's reader."""
    options = {"bootstrap.servers": bootstrap}
    with Reader(topic, store=Postgres(dsn), name="bench", options=options, max_records=AT_A_TIME) as reader:
        for transaction in reader.transactions(until_end=True):
            if one_by_one:
                for event in transaction.events:
                    transaction.execute(INSERT, (event.key, event.value))
            else:
                transaction.executemany(INSERT, [(event.key, event.value) for event in transaction.events])


def loop(bootstrap: str, topic: str, dsn: str, *, one_by_one: bool) -> None:
    """Copy the topic into the table with a loop written by hand."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "by-hand",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    with psycopg.connect(dsn) as database:
        database.execute("CREATE TABLE IF NOT EXISTS offsets (kafka_partition int PRIMARY KEY, next bigint)")
        known: dict[int, int] = dict(database.execute("SELECT * FROM offsets").fetchall())
        database.commit()
        consumer.assign([TopicPartition(topic, each, known.get(each, 0)) for each in partitions])
        left = set(partitions)
        while left:
            rows: list[tuple[Any, Any]] = []
            ends: dict[int, int] = {}
            for message in consumer.consume(AT_A_TIME, 0.1):
                error = message.error()
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's public code
                        raise SystemExit(str(error))
                    left.discard(message.partition())
                    continue
                rows.append((message.key(), message.value()))
                ends[message.partition()] = message.offset() + 1
            if not rows:
                continue
            with database.cursor() as cursor:
                if one_by_one:
                    for row in rows:
                        cursor.execute(INSERT, row)
                else:
                    cursor.executemany(INSERT, rows)
                for partition, end in ends.items():
                    cursor.execute(
                        "INSERT INTO offsets VALUES (%s, %s) ON CONFLICT (kafka_partition) DO UPDATE SET next = %s",
                        (partition, end, end),
                    )
            database.commit()
    consumer.close()


def main(kind: str, bootstrap: str, topic: str, dsn: str) -> float:
    """Copy the topic into the table, and return the seconds used."""
    name, _, how = kind.partition("-")
    began = time.monotonic()
    {"ratchet": ratchet, "loop": loop}[name](bootstrap, topic, dsn, one_by_one=how == "execute")
    return time.monotonic() - began


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
