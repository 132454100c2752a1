"""Runs a program over records without Kafka, for its own tests: `from kafka_ratchet.testing import run`."""

from __future__ import annotations

from kafka_ratchet.testing.program_run import Output, Ran, Record, run

__all__ = ["Output", "Ran", "Record", "run"]
