"""Bench of Ratchet's reader without Spark, into a PostgreSQL table, next to a loop written by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psycopg
from confluent_kafka import Producer

from bench.kafka import create
from bench.sending import run_module
from bench.spread import spread
from faults.postgres import run_postgres
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import BenchFailed

KINDS: Final = ("ratchet", "loop", "ratchet-execute", "loop-execute")
"""Kinds of readers: each of Ratchet's kinds, followed by the loop that it is compared with."""

PARTITIONS: Final = 4
KEYS: Final = 10_000
QUEUE_FULL_S: Final = 0.1


def reading(records: int, value_bytes: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure each kind of reader in turn, which copies a filled topic into a table.

    There are `rounds` rounds, after one that does not count.

    Raises:
        BenchFailed: a reader fails, or the table does not have each record once.
    """
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with (
        TemporaryDirectory(prefix="ratchet-bench-kafka-") as folder,
        EmbeddedBroker(Path(folder)) as broker,
        run_postgres() as server,
    ):
        os.environ["PGPASSWORD"] = server.password  # as its children find it
        create(broker.bootstrap, "orders", partitions=PARTITIONS)
        _fill(broker.bootstrap, records, value_bytes)
        for number in range(rounds + 1):
            for kind in KINDS:
                with psycopg.connect(server.url, autocommit=True) as database:
                    database.execute("DROP TABLE IF EXISTS bill, offsets, ratchet_reader_positions")
                    database.execute("CREATE TABLE bill (key bytea, value bytea)")
                    seconds = float(run_module("bench.peers.read_into", kind, broker.bootstrap, "orders", server.url))
                    [(rows, different)] = database.execute(
                        "SELECT count(*), count(DISTINCT value) FROM bill"
                    ).fetchall()
                if (rows, different) != (records, records):
                    raise BenchFailed(
                        f"{kind}: the table has {rows} rows, of which {different} are different, for {records} records"
                    )
                if number:
                    rates[kind].append(records / seconds)
                    say(json.dumps({"kind": kind, "records_per_s": round(records / seconds)}))
    told: dict[str, Any] = {kind: spread(found, 0) for kind, found in rates.items()}
    for ours, theirs in (KINDS[:2], KINDS[2:]):
        told[f"{ours}_to_{theirs}"] = spread(a / b for a, b in zip(rates[ours], rates[theirs], strict=True))
    return told


def _fill(bootstrap: str, records: int, value_bytes: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "bench-fill", "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(records):
        value = b"%0*d" % (value_bytes, number)
        while True:
            try:
                producer.produce("orders", value, b"key-%d" % (number % KEYS), number % PARTITIONS)
                break
            except BufferError:
                producer.poll(QUEUE_FULL_S)
    producer.commit_transaction(300)
