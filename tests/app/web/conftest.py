"""Fixtures of the pages' tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from kafka_ratchet.app.web import readings


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Kafka longer than a person would wait: on a busy machine an answer may take more than five seconds."""
    monkeypatch.setattr(readings, "KAFKA_TIMEOUT_S", 60.0)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
