"""The progress that producers keep in Kafka, read for the page and the commands."""

from __future__ import annotations

import json
from typing import NamedTuple

import structlog

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.kafka_topics import consumer, offset_ranges, partition_count, records
from kafka_ratchet.errors import SourceError
from kafka_ratchet.producers import PROGRESS_TOPIC, Progress

log = structlog.get_logger(__name__)


class Acknowledged(NamedTuple):
    """Everything up to a sequence is acknowledged by Kafka (-1: nothing yet), and how many records that was."""

    sequence: int
    records: int


def read_published(settings: Settings, bootstrap: str) -> dict[str, dict[bytes, Acknowledged]]:
    """The progress of every name, by topic and name. Records that are no progress are left out.

    In memory it takes some 300 bytes for each name.

    Raises:
        BrokerUnavailable: Kafka did not answer.
        TransportError: it refuses to give the records.
    """
    options = {"bootstrap.servers": bootstrap, **settings.kafka}
    found: dict[str, dict[bytes, Acknowledged]] = {}
    timeout_s = settings.kafka_timeout_s
    # As producers read it themselves (docs/decisions/0008): an open transaction of one name hides nobody else.
    with consumer(options, "ratchet-producers-reader", committed=False) as asked:
        if not partition_count(asked, PROGRESS_TOPIC, timeout_s):
            return {}
        (held,) = offset_ranges(asked, PROGRESS_TOPIC, 1, timeout_s)
        for message in records(asked, PROGRESS_TOPIC, begin=held.first, timeout_s=timeout_s):
            _take(found, message.key(), message.value(), message.offset() or 0)
    return found


def _take(found: dict[str, dict[bytes, Acknowledged]], key: bytes | None, value: bytes | None, offset: int) -> None:
    where = f"{PROGRESS_TOPIC} partition 0 offset {offset}"
    try:
        topic, name = json.loads(key or b"")
        if not isinstance(topic, str) or not isinstance(name, str):
            raise TypeError("topic and name must be text")
        names = found.setdefault(topic, {})
        if value is None:
            names.pop(name.encode(), None)
        else:
            progress = Progress.decode(value, where)
            names[name.encode()] = Acknowledged(progress.sequence, progress.records)
    except (SourceError, ValueError, TypeError, RecursionError) as error:
        log.debug("not a producer's progress; left out", where=where, reason=repr(error)[:200])
