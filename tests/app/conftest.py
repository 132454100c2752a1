"""Of the tests of app/."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a Kafka, a test waits for it longer than a page does."""
    if "broker" in request.fixturenames:
        for limit in (
            "group.TIMEOUT_S",
            "kafka_view.TIMEOUT_S",
            "cluster_view.WORKER_TIMEOUT_S",
            "result_view.KAFKA_TIMEOUT_S",
        ):
            monkeypatch.setattr(f"kafka_ratchet.app.status.{limit}", 60.0)
