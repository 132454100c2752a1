"""Faults on purpose: real workers on a real Kafka are killed, frozen, cut off and starved while events go through.

`run` does it and counts: lost, doubled, reordered. `run_producer` does it to a producer, `run_sink` to the Spark
job. The tests use the same parts one by one.
"""

from faults._postgres import PostgresServer, run_postgres
from faults._producer import ProducerResult, run_producer
from faults._run import LONG, SHORT, Form, Result, run
from faults._sink import STORES as SINK_STORES
from faults._sink import run_sink
from faults._storm import Plan

__all__ = [
    "LONG",
    "SHORT",
    "SINK_STORES",
    "Form",
    "Plan",
    "PostgresServer",
    "ProducerResult",
    "Result",
    "run",
    "run_postgres",
    "run_producer",
    "run_sink",
]
