"""Test kit for programs: without Kafka (`run`), and in killed worker processes on a real Kafka.

`assert_once` and `Worker` are for the latter; `kafka_ratchet.testing.fixtures` contains fixtures for pytest.
"""

from __future__ import annotations

from kafka_ratchet.testing.once import assert_once, check_once
from kafka_ratchet.testing.program_run import Output, Ran, Record, run
from kafka_ratchet.testing.worker import CRASH_POINTS, Worker

__all__ = ["CRASH_POINTS", "Output", "Ran", "Record", "Worker", "assert_once", "check_once", "run"]
