"""Pages of a stream's identities in byte order, merged from all workers.

    GET /status/identities?stream=S[&prefix=HEX][&after=HEX][&limit=N]       one worker's part of a page

A worker's map of identities in memory is not sorted, but its local store is. So the worker seeks in the store, reads
about as many entries as the page has identities, and adds the few identities missing in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kafka_ratchet.app.status.lookup import LIMIT, parse_identity, parse_limit
from kafka_ratchet.app.status.producers import shown
from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.table import Sequences


@dataclass(frozen=True, slots=True)
class IdentitiesQuery:
    """Query for a page of identities: the first `limit` ones after `after` that begin with `prefix`.

    after: None: from the first identity
    """

    prefix: bytes = b""
    after: bytes | None = None
    limit: int = LIMIT

    def parameters(self) -> dict[str, str]:
        """Return the query as parameters; see `parse_identities_query`."""
        after = {} if self.after is None else {"after": self.after.hex()}
        return {"limit": str(self.limit), **({"prefix": self.prefix.hex()} if self.prefix else {}), **after}


@dataclass(frozen=True, slots=True)
class IdentityPartition:
    """State of an identity in a partition. None in a field: unknown, or not counted for this stream.

    last_seen: time of the identity's last record, ISO 8601, UTC: by the broker's clock if the stream limits its
    identities, by the worker's clock if the identity is the producer.
    fresh, duplicate: estimated number of records since the worker took the partition, if the identity is the producer.
    missing: number of the identity's missing sequences, if the stream is dense.
    """

    partition: int
    persisted: int | None
    pushed: int | None
    last_seen: str | None = None
    fresh: int | None = None
    duplicate: int | None = None
    missing: int | None = None


@dataclass(frozen=True, slots=True)
class IdentityEntry:
    """Identity with its state in each partition. identity: text for display; identity_hex: the bytes in hex."""

    identity_hex: str
    partitions: list[IdentityPartition]
    identity: str = ""


@dataclass(frozen=True, slots=True)
class IdentitiesAnswer:
    """Body of GET /status/identities.

    more: True: further identities follow; complete: False: identities of the last seconds may be missing
    """

    identities: list[IdentityEntry]
    more: bool
    asked: list[int]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class IdentitiesPage:
    """Page of a stream's identities, in the order of their bytes.

    next: `after` of the following page, in hex; None: this page is the last.
    not_asked: partitions without an answering worker.
    problems: sentences for display.
    """

    stream: str
    identities: list[IdentityEntry]
    next: str | None
    not_asked: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def parse_identities_query(asked: Mapping[str, str]) -> IdentitiesQuery:
    """Return the query in the parameters prefix, after and limit of an address; prefix and after are in hex.

    Raises:
        QueryError: a parameter is invalid.
    """
    after = parse_identity(None, asked["after"]) if asked.get("after") else None
    prefix = parse_identity(None, asked["prefix"]) if asked.get("prefix") else b""
    return IdentitiesQuery(prefix, after, parse_limit(asked.get("limit")))


def merge_identities(
    stream: str,
    answers: Iterable[IdentitiesAnswer],
    query: IdentitiesQuery,
    partitions: Collection[int],
    problems: Iterable[str],
) -> IdentitiesPage:
    """Return one page, merged from the workers' answers.

    partitions: all partitions of the stream; problems: sentences about workers without an answer
    """
    answers, said = list(answers), list(problems)
    known: dict[bytes, dict[int, IdentityPartition]] = {}
    for entry in (each for answer in answers for each in answer.identities):
        try:
            rows = known.setdefault(bytes.fromhex(entry.identity_hex), {})
        except ValueError:  # any member of the group may answer as a worker
            said.append("a worker returned an identity without hex form; it is left out")
            continue
        for row in entry.partitions:
            other = rows.get(row.partition)  # while a partition moves, two workers may have it
            if other is None or (other.pushed or -1) < (row.pushed or -1):
                rows[row.partition] = row
    if not all(answer.complete for answer in answers):
        said.append("very many identities came within the last seconds; some of them may be missing here")
    names = sorted(known)
    more = any(answer.more for answer in answers) or len(names) > query.limit
    chosen = names[: query.limit]
    return IdentitiesPage(
        stream,
        [IdentityEntry(name.hex(), [row for _, row in sorted(known[name].items())], shown(name)) for name in chosen],
        chosen[-1].hex() if chosen and more else None,
        sorted(set(partitions) - {number for answer in answers for number in answer.asked}),
        said,
    )


async def list_identities(sequences: Sequences, asked: Collection[int], query: IdentitiesQuery) -> IdentitiesAnswer:
    """Return a worker's part of a page of identities. Other tasks of the event loop run between partitions.

    Args:
        sequences: table of the stream
        asked: partitions to search
        query: selection of identities
    """
    found: dict[bytes, list[IdentityPartition]] = {}
    last: bytes | None = None
    """Highest identity that the page needs, of those found so far; None: the page is not full.

    Later partitions are read only up to this identity. Otherwise a whole page would be read from each partition.
    """
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
    seen_s, missing = partition.known.activity_of(name)
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
