"""Test kit for programs.

`program_run.run` processes given records without Kafka. `worker.Worker` runs a program in a worker process on a Kafka,
and `once.assert_once` kills this process again and again. `fixtures` contains fixtures for pytest.
"""

from __future__ import annotations

from kafka_ratchet.testing.once import assert_once, check_once
from kafka_ratchet.testing.program_run import Output, Ran, Record, run
from kafka_ratchet.testing.worker import CRASH_POINTS, Worker

__all__ = ["CRASH_POINTS", "Output", "Ran", "Record", "Worker", "assert_once", "check_once", "run"]
