"""Of the tests of app/."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a Kafka, a test waits for it longer than a page does."""
    if "broker" in request.fixturenames:
        for limit in (
            "_group.TIMEOUT_S",
            "web._kafka.TIMEOUT_S",
            "web._inquiry.WORKER_TIMEOUT_S",
            "web._results.KAFKA_TIMEOUT_S",
        ):
            monkeypatch.setattr(f"app.{limit}", 60.0)
