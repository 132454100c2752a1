"""Fixtures for pytest: write `pytest_plugins = ["kafka_ratchet.testing.fixtures"]` into conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_ratchet.app.local.broker import choose_broker
from kafka_ratchet.testing.worker import Worker


@pytest.fixture(scope="session")
def ratchet_broker() -> Iterator[str]:
    """Yield host:port of a Kafka: the one in RATCHET_BOOTSTRAP, else one in Docker, else an embedded one."""
    with choose_broker() as bootstrap:
        yield bootstrap


@pytest.fixture
def ratchet_worker(ratchet_broker: str, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Yield a function that makes a `kafka_ratchet.testing.worker.Worker`; the worker ends with the test."""
    made: list[Worker] = []

    def make(program: str | None = None, **options: Any) -> Worker:
        made.append(Worker(program, ratchet_broker, tmp_path, **options))
        return made[-1]

    yield make
    for worker in made:
        worker.close()
