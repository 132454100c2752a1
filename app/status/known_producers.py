"""A worker's part of the list of producers: what its own partitions know of each name."""

from __future__ import annotations

from datetime import UTC, datetime

from kafka_ratchet.app.status.producers import ProducerPartition, ProducersAnswer, ProducerStatus
from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.activity import Activity
from kafka_ratchet.tables.table import Sequences


def list_producers(sequences: Sequences, asked: list[int], after: bytes | None, limit: int) -> ProducersAnswer:
    """The producers that a worker's partitions know.

    Args:
        sequences: of the stream
        asked: the partitions to look into
        after: list names behind this one; None: from the first
        limit: names
    """
    names: dict[bytes, list[int]] = {}
    """By name, the partitions that listed it."""
    unsure: list[int] = []
    """Partitions that may know names which they have not listed."""
    last: bytes | None = None
    """As in `known_identities`."""
    complete, looked_into, not_tallied = True, [], 0
    for number in asked:
        partition = sequences.partition(number)
        try:
            found, all_of_them = partition.page(after, limit + 1, until=last)
        except StateError:
            continue  # it is on its way to another worker
        for name in found:
            names.setdefault(name, []).append(number)
        if len(names) > limit:
            names = {name: names[name] for name in sorted(names)[: limit + 1]}
            last = next(reversed(names))
        if not all_of_them:
            unsure.append(number)
        complete &= all_of_them
        looked_into.append(number)
        not_tallied += partition.tally.not_tallied if partition.tally else 0
    chosen = sorted(names)[:limit]
    producers = [
        ProducerStatus(name.hex(), _partitions(sequences, sorted({*names[name], *unsure}), name)) for name in chosen
    ]
    return ProducersAnswer(producers, len(names) > limit, looked_into, complete, not_tallied)


def _partitions(sequences: Sequences, numbers: list[int], name: bytes) -> list[ProducerPartition]:
    found = []
    for number in numbers:
        partition = sequences.partition(number)
        last, tally = partition.last(name), partition.tally
        seen = tally.of(name) if tally else None
        if last.pushed < 0 and last.persisted < 0:
            continue
        last_seen, fresh, duplicate = seen or Activity(0.0, 0, 0)
        found.append(
            ProducerPartition(
                number,
                last.persisted if last.persisted >= 0 else None,
                last.pushed if last.pushed >= 0 else None,
                _time(last_seen) if seen else None,
                round(fresh),
                round(duplicate),
                _time(tally.since) if tally and tally.since is not None else None,
            )
        )
    return found


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
