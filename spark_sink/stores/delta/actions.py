"""State of a job in a table's log: `txn` actions, each a name with a whole number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink import topic_ids
from kafka_ratchet.spark_sink.topic_ids import StoredId

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.delta.transactions import Transactions

CHUNK = 7
"""Bytes of a text in one `txn` action; the action's version is a signed 64-bit integer."""

IDENTITY_PARTS = ("identity", "identity-low", "identity-rest")
"""Suffixes of the names for a topic's id, in the order of `topic_ids.parts`."""


def _write_mode_key(job: str) -> str:
    """Return the name of the `txn` action with the length of the write mode's text.

    The names of its pieces begin with it.

    No topic's name begins so.
    """
    return f"ratchet-sink/{job}/rule"


def write_mode_actions(job: str, write_mode: str) -> dict[str, int]:
    """Return the `txn` actions that keep a text of `write_mode_text`.

    They survive a clean-up of the log.
    """
    data, key = write_mode.encode("ascii"), _write_mode_key(job)
    pieces = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    return {key: len(data)} | {f"{key}.{n}": int.from_bytes(piece) for n, piece in enumerate(pieces)}


def stored_write_mode(table: Transactions, job: str) -> str:
    """Return the text of the write mode; empty: no job has written the table, or one of an earlier version."""
    key = _write_mode_key(job)
    size, data = table.transaction_version(key) or 0, b""
    while len(data) < size:
        piece = table.transaction_version(f"{key}.{len(data) // CHUNK}") or 0
        data += piece.to_bytes(min(size - len(data), CHUNK))
    return data.decode("ascii")


def topic_key(job: str, topic: str) -> str:
    """Return the prefix of a job's `txn` actions for a topic."""
    return f"ratchet-sink/{job}/{topic}"


def stored_offsets(table: Transactions, job: str, topic: str) -> dict[int, int]:
    """Return the next offset of each partition, by the `txn` actions."""
    key = topic_key(job, topic)
    count = table.transaction_version(f"{key}/partitions") or 0
    versions = {partition: table.transaction_version(f"{key}/{partition}") for partition in range(count)}
    return {partition: offset for partition, offset in versions.items() if offset is not None}


def generation_key(job: str) -> str:
    """Return the name for the number of a job's newest holder."""
    return f"ratchet-sink/{job}/generation"


def version_key(job: str) -> str:
    """Return the name for the version of a job's newest entry."""
    return f"ratchet-sink/{job}/version"


def rows_key(job: str) -> str:
    """Return the name for the table's number of rows as of that entry."""
    return f"ratchet-sink/{job}/rows"


def sequences_key(job: str) -> str:
    """Return the name for the number of a job's sequence manifest; no topic has this name."""
    return f"ratchet-sink/{job}/sequences"


def newest_generation(table: Transactions, job: str) -> int:
    """Return the number of the newest holder; 0: there was none."""
    return table.transaction_version(generation_key(job)) or 0


def stored_id(table: Transactions, job: str, topic: str) -> StoredId:
    """Return the id of the topic that the offsets belong to."""
    high, low, rest = (table.transaction_version(f"{topic_key(job, topic)}/{part}") for part in IDENTITY_PARTS)
    if high is None or low is None or rest is None:
        return StoredId("", high or 0)
    return StoredId(topic_ids.text(topic_ids.of_parts(high, low, rest)), high)


def offset_actions(job: str, topic: str, topic_id: int, end: Mapping[int, int]) -> dict[str, int]:
    """Return the `txn` actions with the offsets of the topic."""
    key = topic_key(job, topic)
    actions = {f"{key}/{partition}": offset for partition, offset in end.items()}
    actions[f"{key}/partitions"] = max(end, default=-1) + 1
    if topic_id:
        names = [f"{key}/{part}" for part in IDENTITY_PARTS]
        actions |= dict(zip(names, topic_ids.parts(topic_id), strict=True))
    return actions
