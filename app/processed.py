"""Partitions with records that Ratchet has processed, as their changelogs show.

The group's offsets do not tell it, because the first start of a partition commits its offset before any record.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import Message

from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import OwnerDiffers, StateError
from kafka_ratchet.producers import admin_client
from kafka_ratchet.tables.edits import EDIT, FORGET_ALL_KEY, IMPORT, Edit
from kafka_ratchet.tables.policy_intervals import POLICY_INTERVAL, PolicyInterval
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.tables.values.table_partition import PREFIX as TABLE_PREFIX
from kafka_ratchet.topic_log.clients import consumer, offset_ranges, partition_counts
from kafka_ratchet.topic_log.reading import records
from kafka_ratchet.transport import owner as owners

READ_S: Final = 60.0
"""Seconds without an answer after which reading a changelog ends."""


def processed_partitions(settings: Settings, bootstrap: str, stream: str) -> set[int]:
    """Return the partitions of a stream with processed records, an import or an operator's decision.

    Of each changelog partition it reads no more than up to the first entry that shows one of these.

    Args:
        settings: settings with the stream
        bootstrap: host:port[,host:port]
        stream: name of the stream

    Raises:
        StateError, OwnerDiffers: a newer version or another program wrote an entry.
        BrokerUnavailable: Kafka did not answer.
    """
    options = {"bootstrap.servers": bootstrap, **settings.kafka}
    changelog = changelog_name(settings.app, stream)
    count = partition_counts(admin_client(options), [changelog]).get(changelog)
    if count is None:
        return set()
    with consumer(options, settings.app) as client:
        return {
            number
            for number, held in enumerate(offset_ranges(client, changelog, count))
            if any(map(shows_work, records(client, changelog, number, held.first, timeout_s=READ_S, end=held.end)))
        }


def shows_work(message: Message) -> bool:
    """Return True if a changelog entry is more than a lane without records writes.

    A table's entry shows nothing: a stream's timer may have written it. After a record or an import, another entry of
    the same transaction shows it.

    Raises:
        StateError, OwnerDiffers: a newer version or another program wrote the entry.
    """
    key, value = message.key() or b"", message.value() or b""
    try:
        if key == owners.KEY:
            return bool(owners.Owner.unpack(value).decisions)
        if key == PROGRESS:
            return Progress.unpack(value).judged > 0
        if key.startswith(POLICY_INTERVAL):
            return PolicyInterval.unpack(key, value).unjudged > 0
        if key.startswith(EDIT):
            return Edit.unpack(key, value)[1].kind == IMPORT
    except (OwnerDiffers, StateError) as error:
        place = f"{message.topic()}, partition {message.partition()}, offset {message.offset()}"
        raise type(error)(f"{place}: {error}") from None
    return key != FORGET_ALL_KEY and not key.startswith(TABLE_PREFIX) and message.value() is not None
