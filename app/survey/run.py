"""Course of a survey, from the connection to Kafka to the report."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.survey.counting import BatchHashes, Counts
from kafka_ratchet.app.survey.forms import written_forms
from kafka_ratchet.app.survey.looking import choose
from kafka_ratchet.app.survey.reading import ReadRange, count_all, open_topic
from kafka_ratchet.app.survey.report import Report
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options

PARTITIONS_MOST: Final = 10_000
UNITS_S: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}

Moved = Callable[[int, int], None]
Begun = Callable[[int], Moved]
"""Function called with the number of offsets to read.

It returns the function to call after each batch, with the number of its offsets and of its records.
"""


def survey(
    settings: Settings,
    bootstrap: str,
    topic: str,
    wanted: ReadRange,
    begun: Begun,
    memory_mb: int,
    seed: int | None = None,
) -> Report:
    """Read a topic, and report its duplicates.

    Nothing is created or committed in Kafka.

    Args:
        settings: settings for the client; they need no stream.
        bootstrap: host:port[,host:port] of a Kafka that answers.
        topic: name of the topic.
        wanted: part of the topic to read.
        begun: function that starts a progress bar.
        memory_mb: MiB for the tables of seen identities. If they are not enough, only a sample of the identities is
            followed.
        seed: seed of the hashes; None: a random one.

    Raises:
        TopicMissing: the topic does not exist.
        SettingsError: a requested partition does not exist.
        BrokerUnavailable: Kafka does not answer.
        TransportError: the topic cannot be read.
    """
    chosen_seed = secrets.randbits(63) if seed is None else seed
    return asyncio.run(_survey(settings, bootstrap, topic, wanted, begun, memory_mb, chosen_seed))


async def _survey(
    settings: Settings, bootstrap: str, name: str, wanted: ReadRange, begun: Begun, memory_mb: int, seed: int
) -> Report:
    cluster = Cluster(client_options(bootstrap, settings.kafka))
    async with AsyncExitStack() as stack:
        await cluster.start(settings.kafka_timeout_s)
        stack.push_async_callback(cluster.close)
        topic = await open_topic(cluster, name, settings.kafka_timeout_s, settings.max_batch_mb << 20)
        await topic.choose(wanted)
        sample, batch = await topic.sample()
        candidates = choose(sample, wanted.identities)
        now_ms = round(time.time() * 1_000)
        if batch is not None:
            # Numba compiles missing functions on this machine.
            tried = Counts(candidates, 0, now_ms, seed)
            await asyncio.to_thread(lambda: tried.add(BatchHashes(batch, tried.reader)))
        whole = frozenset(each.partition for each in topic.ranges if each.begin == 0)
        counts = Counts(candidates, memory_mb << 20, now_ms, seed, whole)
        moved = begun(topic.offsets)
        started = time.monotonic()
        await count_all(topic, counts, moved)
        seconds = time.monotonic() - started
        return Report.of(topic, counts, candidates, len(sample.rows), seconds, written_forms(sample))


def partitions_of(text: str) -> tuple[int, ...]:
    """Parse partition numbers such as "0,3,8-11".

    Raises:
        SettingsError: the text is something else.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise SettingsError(f"--partitions {text!r}: write numbers and ranges, such as 0,3,8-11")
        numbers.update(range(int(match[1]), min(int(match[2] or match[1]), int(match[1]) + PARTITIONS_MOST) + 1))
    return tuple(sorted(numbers))


def since_ms(text: str, now_ms: int) -> int:
    """Parse a point in time; return ms since the epoch.

    text: time before now, such as "24h" or "7d", or a date with or without a time of day. Without a zone it is UTC.

    Raises:
        SettingsError: the text is something else.
    """
    if match := re.fullmatch(r"(\d{1,9})\s*(s|m|min|h|d|w)", text.strip()):
        return max(0, now_ms - int(match[1]) * UNITS_S[match[2]] * 1_000)
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0, round(moment.timestamp() * 1_000))
    except (ValueError, OverflowError):
        raise SettingsError(
            f"--since {text!r}: write how long ago, such as 24h or 7d, or a date such as 2026-01-31 or 2026-01-31T08:00"
        ) from None
