"""A worker's part of the list of identities: what its own partitions know of each."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime

from kafka_ratchet.app.status.identities import IdentitiesAnswer, IdentitiesQuery, IdentityEntry, IdentityPartition
from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.table import Sequences


async def list_identities(sequences: Sequences, asked: Collection[int], query: IdentitiesQuery) -> IdentitiesAnswer:
    """A worker's part. Between two partitions it lets others run.

    Args:
        sequences: of the stream
        asked: the partitions to look into
        query: which identities
    """
    found: dict[bytes, list[IdentityPartition]] = {}
    last: bytes | None = None
    """Of those found, the last that may be shown, or tell that there are more. Nobody reads on behind it, or each of
    very many partitions would read a whole page."""
    complete, looked_into = True, []
    for number in asked:
        await asyncio.sleep(0)
        partition = sequences.partition(number)
        try:
            names, all_of_them = partition.page(query.after, query.limit + 1, query.prefix, last)
            rows = [(name, _row(partition, name)) for name in names]
        except StateError:
            continue  # it is on its way to another worker
        for name, row in rows:
            if row is not None:
                found.setdefault(name, []).append(row)
        complete &= all_of_them
        looked_into.append(number)
        if len(found) > query.limit:
            found = {name: found[name] for name in sorted(found)[: query.limit + 1]}
            last = next(reversed(found))
    chosen = sorted(found)[: query.limit]
    entries = [IdentityEntry(name.hex(), found[name]) for name in chosen]
    return IdentitiesAnswer(entries, len(found) > query.limit, looked_into, complete)


def _row(partition: SequencePartition, name: bytes) -> IdentityPartition | None:
    last = partition.last(name)
    if last.persisted < 0 and last.pushed < 0:
        return None
    seen_s, missing = partition.known.told(name)
    activity = partition.tally.of(name) if partition.tally else None
    last_seen: float | None = activity.last_seen if activity else seen_s or None
    return IdentityPartition(
        partition.partition,
        last.persisted if last.persisted >= 0 else None,
        last.pushed if last.pushed >= 0 else None,
        None if last_seen is None else datetime.fromtimestamp(last_seen, UTC).isoformat(timespec="seconds"),
        round(activity.fresh) if activity else None,
        round(activity.duplicate) if activity else None,
        missing,
    )
