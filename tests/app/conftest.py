"""Fixtures of the tests of app/."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ratchet.topic_log import clients
from tests.app.questions import Counted


@pytest.fixture(autouse=True)
def _patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for Kafka than a page does, in tests with a broker."""
    if "broker" in request.fixturenames:
        for limit in (
            "group.TIMEOUT_S",
            "kafka_view.TIMEOUT_S",
            "worker_client.WORKER_TIMEOUT_S",
            "result_view.KAFKA_TIMEOUT_S",
        ):
            monkeypatch.setattr(f"kafka_ratchet.app.status.{limit}", 60.0)


@pytest.fixture
def no_settings_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no ratchet.toml of the person who runs the tests."""
    for variable in os.environ:
        if variable.upper().startswith("RATCHET_"):
            monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Each question of the clients of `clients`, and about how many partitions it is."""
    monkeypatch.setattr(clients, "Consumer", Counted)
    Counted.asked.clear()
    yield Counted.asked
    Counted.asked.clear()
