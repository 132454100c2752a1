"""Reading of a topic in record batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OPENS = """
import asyncio
from types import SimpleNamespace
from kafka_ratchet.app.survey.reading import open_topic
from kafka_ratchet.transport.batch import kernels

class Asked:
    async def topics(self, names):
        assert kernels.read_records.signatures, "the first question is asked before parsing is compiled"
        return {"orders": SimpleNamespace(id=bytes(16), partitions=1)}

assert asyncio.run(open_topic(Asked(), "orders", 60, 1 << 20)).partitions == 1
"""


def test_parsing_is_compiled_before_the_first_question_with_a_time_limit() -> None:
    """Compiling takes a minute on a busy machine, and an answer late by it was told of Kafka."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"}
    done = subprocess.run(
        [sys.executable, "-c", OPENS], cwd=Path(__file__).parents[3], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
