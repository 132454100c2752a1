"""Faults on purpose: real workers on a real Kafka are killed, frozen, cut off and starved while events go through.

`run` does it and counts: lost, doubled, reordered. `run_producer` does it to a producer. The tests use the
same parts one by one.
"""

from faults._producer import ProducerResult, run_producer
from faults._run import LONG, SHORT, Form, Result, run
from faults._storm import Plan

__all__ = ["LONG", "SHORT", "Form", "Plan", "ProducerResult", "Result", "run", "run_producer"]
