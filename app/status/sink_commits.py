"""The commits of the result table's job, as far as its store keeps them apart."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.results import access_of, planner_of, result_stream, spec_of, topic_of
from kafka_ratchet.spark_sink.stores.registry import store_class

SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """One commit: the store's name for it, the next offset of each partition, and how many offsets it moved on.

    offsets_read counts markers and aborted records too; None: the commit before it is not known. rows, rejects and
    seconds are null: stores do not keep them, and the job serves them while it runs (`sink.metrics_port`).
    """

    name: str
    offsets: dict[int, int]
    offsets_read: int | None
    rows: int | None = None
    rejects: int | None = None
    seconds: float | None = None


def read_commits(settings: Settings, bootstrap: str, most: int = SHOWN) -> list[SinkCommit]:
    """The newest commits, the newest first; none where the store does not keep them apart.

    Raises:
        SettingsError: the settings do not say which stream it is.
        SinkError: store or Kafka cannot be asked.
    """
    _, stream = result_stream(settings)
    topic = topic_of(settings, stream)
    spec = spec_of(settings, topic, bootstrap)
    planner = planner_of(bootstrap, settings, topic, settings.kafka_timeout_s)
    location = spec.location(access_of(settings))
    store = store_class(location.kind)(location, settings.sink.name, topic, planner.topic_id())
    try:
        found = [(name, dict(offsets)) for name, offsets in islice(store.commits(), most + 1)]
    finally:
        store.close()
    commits = []
    for number, (name, offsets) in enumerate(found[:most]):
        before = found[number + 1][1] if number + 1 < len(found) else None
        moved = None if before is None else sum(offsets.values()) - sum(before.values())
        commits.append(SinkCommit(name, offsets, moved))
    return commits
