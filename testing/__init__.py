"""Test kit for programs: `run` needs no Kafka; `assert_once` and `Worker` need one.

`Worker` runs a program in a worker process, and `assert_once` kills that process again and again;
`kafka_ratchet.testing.fixtures` contains fixtures for pytest.
"""

from __future__ import annotations

from kafka_ratchet.testing.once import assert_once, check_once
from kafka_ratchet.testing.program_run import Output, Ran, Record, run
from kafka_ratchet.testing.worker import CRASH_POINTS, Worker

__all__ = ["CRASH_POINTS", "Output", "Ran", "Record", "Worker", "assert_once", "check_once", "run"]
