"""GET /policy: state of deduplication for each stream, where it is set, and the records of the policy topic."""

from __future__ import annotations

import json
from typing import Final

from aiohttp import web

from kafka_ratchet.app.inspect.policy import PolicyPage, PolicyRecord, PolicyRow, stream_policies, switch_word
from kafka_ratchet.app.names import policy_topic
from kafka_ratchet.app.operations.policy_topic import read_policies
from kafka_ratchet.app.repartition import judging
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.producers import shown
from kafka_ratchet.app.web.readings import BOOTSTRAP, answer, impatient, read
from kafka_ratchet.app.web.render import SETTINGS
from kafka_ratchet.app.why.answer import moment
from kafka_ratchet.app.worker.policy import BY_HEADER
from kafka_ratchet.producers import headers_of
from kafka_ratchet.topic_log.clients import consumer, offset_ranges, partition_count
from kafka_ratchet.topic_log.reading import records

HISTORY_MOST: Final = 200
READ_MOST: Final = 10_000
TEXT_MOST: Final = 2_000


async def policy_page(request: web.Request) -> web.StreamResponse:
    """Return the page with the present policies and their history."""
    settings, bootstrap = impatient(request.app[SETTINGS]), request.app[BOOTSTRAP]

    async def ask(asked: dict[str, str]) -> PolicyPage:
        return await read(request, lambda: policies_now(settings, bootstrap), instead="ratchet policy get")

    return await answer(request, "policy.html", ask)


def policies_now(settings: Settings, bootstrap: str) -> PolicyPage:
    """Return the present policies, and the newest records of the policy topic, the newest first.

    Raises:
        RatchetError: Kafka does not answer, or the topic cannot be read.
    """
    policies = read_policies(settings, bootstrap)
    rows = [PolicyRow(each) for each in stream_policies(policies, judging(settings.streams))]
    return PolicyPage(policies.changelog, rows, *_history(settings, bootstrap))


def _history(settings: Settings, bootstrap: str) -> tuple[list[PolicyRecord], int]:
    """Return the newest records of the policy topic, the newest first, and the number of omitted older records."""
    options, topic = {"bootstrap.servers": bootstrap, **settings.kafka}, policy_topic(settings.app)
    found: list[PolicyRecord] = []
    with consumer(options, "ratchet-page") as asked:
        if not partition_count(asked, topic, settings.kafka_timeout_s):
            return [], 0
        (held,) = offset_ranges(asked, topic, 1, settings.kafka_timeout_s)
        first = max(held.first, held.end - READ_MOST)
        for message in records(asked, topic, 0, first, timeout_s=settings.kafka_timeout_s, end=held.end):
            at = moment(message.timestamp()[1])
            by = dict(headers_of(message) or ()).get(BY_HEADER)
            who = None if by is None else shown(by[:TEXT_MOST])
            found.append(PolicyRecord(message.offset(), at, who, *_texts(message.key(), message.value())))
    left_out = first - held.first + max(0, len(found) - HISTORY_MOST)
    return found[-HISTORY_MOST:][::-1], left_out


def _texts(key: bytes | None, value: bytes | None) -> tuple[str, str]:
    """Return subject and contents of a record of the policy topic, as texts."""
    text = None if value is None else shown(value[:TEXT_MOST])
    try:
        parts = json.loads(key or b"")
    except (ValueError, RecursionError):
        parts = None
    match parts:
        case ["global"]:
            about = "all streams"
        case ["stream", str(name)]:
            about = f"stream {name}"
        case ["forget", str(name), *_]:
            about = f"request to forget, stream {name}"
        case _:
            about = f"not a policy: {shown((key or b'')[:100])}"
    return about, switch_word(None) if text is None else text
