"""Whether Kafka bounds the timestamps by which the windows of a program expire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker.topics import config_of
from kafka_ratchet.producers import admin_client

log = structlog.get_logger(__name__)

FUTURE_MOST_MS: Final = 24 * 3600 * 1000
"""Kafka's own default is an hour from version 4 on, and no bound at all before."""


def check_event_time(bootstrap: str, settings: Settings, program: App) -> None:
    """Warn of inputs into which Kafka takes records of any future, and by whose timestamps windows expire.

    Raises:
        TopicError: a topic's configuration cannot be read.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    for name, stream in settings.streams.items():
        tables = [table.name for table in program.tables_of(name) if table.window and table.window.expires]
        if not tables or not program.of(name):
            continue
        admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
        if problem := unbounded(config_of(admin, stream.input)):
            text = "one record with a wrong timestamp can expire all windows of its partition"
            log.warning(text, topic=stream.input, tables=tables, reason=problem)


def unbounded(config: Mapping[str, str]) -> str:
    """Why a topic takes records of any future, and what to do; "" where it does not. config: of the topic."""
    name = "message.timestamp.after.max.ms"
    most = config.get(name)
    if config["message.timestamp.type"] == "LogAppendTime" or (most is not None and int(most) <= FUTURE_MOST_MS):
        return ""
    has, way = f"it is {most}", f"Set {name}=3600000 on the topic"
    if most is None:
        has, way = "this Kafka does not know it", "See that producers have the right time"
    return f"{name} bounds how far ahead of Kafka's clock a record may be, and {has}. {way}"
