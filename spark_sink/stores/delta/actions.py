"""State of a job in a Delta table's log, kept in `txn` actions: each has a name and an integer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink import topic_ids
from kafka_ratchet.spark_sink.topic_ids import StoredTopicId

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.delta.transactions import Transactions

CHUNK = 7
"""Bytes of text stored in one `txn` action: its value is a signed 64-bit integer."""

IDENTITY_PARTS = ("identity", "identity-low", "identity-rest")
"""Name endings of the actions that store a topic's id, in the order of `topic_ids.parts`."""


def _write_mode_key(job: str) -> str:
    """Return the name of the `txn` action with the length of the write mode's text.

    Further actions store the pieces of the text; their names begin with this name. No topic can have this name.
    """
    return f"ratchet-sink/{job}/rule"


def write_mode_actions(job: str, write_mode: str) -> dict[str, int]:
    """Return the `txn` actions that store a write mode.

    Delta keeps `txn` actions when it cleans up the log.

    Args:
        job: the job's name.
        write_mode: text of `write_mode_text`.
    """
    data, key = write_mode.encode("ascii"), _write_mode_key(job)
    pieces = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    return {key: len(data)} | {f"{key}.{n}": int.from_bytes(piece) for n, piece in enumerate(pieces)}


def stored_write_mode(table: Transactions, job: str) -> str:
    """Return the text of a job's write mode, as the table stores it.

    Returns:
        Empty string if the table stores no write mode of the job.
    """
    key = _write_mode_key(job)
    size, data = table.transaction_version(key) or 0, b""
    while len(data) < size:
        piece = table.transaction_version(f"{key}.{len(data) // CHUNK}") or 0
        data += piece.to_bytes(min(size - len(data), CHUNK))
    return data.decode("ascii")


def topic_key(job: str, topic: str) -> str:
    """Return the name prefix of a job's `txn` actions for one topic."""
    return f"ratchet-sink/{job}/{topic}"


def stored_offsets(table: Transactions, job: str, topic: str) -> dict[int, int]:
    """Return the next offset of each partition, as the `txn` actions store it."""
    key = topic_key(job, topic)
    count = table.transaction_version(f"{key}/partitions") or 0
    versions = {partition: table.transaction_version(f"{key}/{partition}") for partition in range(count)}
    return {partition: offset for partition, offset in versions.items() if offset is not None}


def stored_first(table: Transactions, job: str, topic: str) -> dict[int, int]:
    """Return the first offsets of a job's records, as the `txn` actions store them; see `first_after`."""
    key = _first_key(job, topic)
    count = table.transaction_version(key) or 0
    versions = {partition: table.transaction_version(f"{key}/{partition}") for partition in range(count)}
    return {partition: offset for partition, offset in versions.items() if offset is not None}


def first_actions(job: str, topic: str, first: Mapping[int, int]) -> dict[str, int]:
    """Return the `txn` actions that store the first offsets of a job's records."""
    if not first:
        return {}
    key = _first_key(job, topic)
    return {key: max(first) + 1} | {f"{key}/{partition}": offset for partition, offset in first.items()}


def _first_key(job: str, topic: str) -> str:
    return f"{topic_key(job, topic)}/first"


def generation_key(job: str) -> str:
    """Return the name of the `txn` action with a job's newest generation."""
    return f"ratchet-sink/{job}/generation"


def version_key(job: str) -> str:
    """Return the name of the `txn` action with the version of a job's newest entry."""
    return f"ratchet-sink/{job}/version"


def rows_key(job: str) -> str:
    """Return the name of the `txn` action with the row count after a job's newest entry."""
    return f"ratchet-sink/{job}/rows"


def sequences_key(job: str) -> str:
    """Return the name of the `txn` action with a job's sequence manifest number; no topic can have this name."""
    return f"ratchet-sink/{job}/sequences"


def newest_generation(table: Transactions, job: str) -> int:
    """Return a job's newest generation; 0: no run of the job has taken over the table yet."""
    return table.transaction_version(generation_key(job)) or 0


def stored_id(table: Transactions, job: str, topic: str) -> StoredTopicId:
    """Return the id of the topic that the stored offsets belong to."""
    high, low, rest = (table.transaction_version(f"{topic_key(job, topic)}/{part}") for part in IDENTITY_PARTS)
    if high is None or low is None or rest is None:
        return StoredTopicId("", high or 0)
    return StoredTopicId(topic_ids.text(topic_ids.of_parts(high, low, rest)), high)


def offset_actions(job: str, topic: str, topic_id: int, end: Mapping[int, int]) -> dict[str, int]:
    """Return the `txn` actions that store offsets of a topic."""
    key = topic_key(job, topic)
    actions = {f"{key}/{partition}": offset for partition, offset in end.items()}
    actions[f"{key}/partitions"] = max(end, default=-1) + 1
    if topic_id:
        names = [f"{key}/{part}" for part in IDENTITY_PARTS]
        actions |= dict(zip(names, topic_ids.parts(topic_id), strict=True))
    return actions
