"""Tables that a new version of a program has in another stream: their entries stay with the old one."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, Sequence
from typing import Any

import pytest

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker.steps import prepare_streams, with_steps
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.producers import admin_client


async def agent(stream: AsyncIterable[Any]) -> None:
    async for _ in stream:
        pass


def program(table: str, step: str) -> App:
    """A program with an agent that sends to an internal stream; the agent there has the table."""
    app = App()
    source, target = app.stream("orders"), app.stream(step, internal=True)
    app.Table(table, default=int, key_type=str, value_type=int, stream=target)
    app.agent(source)(agent)
    app.agent(target)(agent)
    return app


def start(broker: str, name: str, app: App, streams: Sequence[str] = ("orders",)) -> None:
    written = {
        each: {"input": f"{name}-{each}", "output": f"{name}-{each}-out", "dead_letters": f"{name}-{each}-dead"}
        for each in streams
    }
    settings = Settings.model_validate({"app": name, "streams": written})
    prepare_streams(broker, with_steps(settings, app), app)


def test_a_table_that_would_begin_empty_is_refused_until_it_is_renamed(broker: str) -> None:
    name = f"shop-{uuid.uuid4().hex[:8]}"
    for _ in range(2):
        start(broker, name, program("totals", "count"))
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"totals: an earlier version .* stream 'count'.* 'tally'.*begin empty"):
            start(broker, name, program("totals", "tally"))
    start(broker, name, program("totals", "count"))
    start(broker, name, program("sums", "tally"))
    start(broker, name, program("totals", "count"))  # as before: its entries are there


def test_a_table_is_new_after_its_old_changelog_is_deleted(broker: str) -> None:
    name = f"shop-{uuid.uuid4().hex[:8]}"
    start(broker, name, program("totals", "count"))
    changelog = f"{name}-changelog.count"
    admin = admin_client({"bootstrap.servers": broker})
    admin.delete_topics([changelog])[changelog].result(60)
    start(broker, name, program("totals", "tally"))


def test_a_table_of_every_stream_may_be_in_a_new_one(broker: str) -> None:
    name = f"shop-{uuid.uuid4().hex[:8]}"
    for streams in (["orders"], ["orders", "refunds"]):
        app = App()
        app.Table("totals", default=int, key_type=str, value_type=int)
        for stream in streams:
            app.agent(app.stream(stream))(agent)
        start(broker, name, app, streams)
