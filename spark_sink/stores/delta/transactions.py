"""`txn` actions of a Delta table, all read in one pass over its log.

delta-rs returns one action per call, and reads the log again for each: with 1,000 Kafka partitions, it read 20,781
files for the offsets of one commit. A `TransactionReader` reads the newest checkpoint and the later entries once, and
afterwards only each new entry.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafka_ratchet.spark_sink.errors import StoreError, first_line
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.stores.delta.log import LOG

if TYPE_CHECKING:
    from deltalake import DeltaTable

OF_JOB = re.compile(r"ratchet-sink/(?P<job>[a-z][a-z0-9_-]{0,62})/")
"""Pattern of the start of a `txn` action's name, with the job."""

OF_TOPIC = re.compile(rf"{OF_JOB.pattern}(?P<topic>[A-Za-z0-9._-]{{1,249}})/[0-9]+")
"""Pattern of the names of `txn` actions that store a job's offsets."""

LAST_CHECKPOINT = "_last_checkpoint"


class Transactions(Protocol):
    """`txn` actions of one table version: a `DeltaTable`, or actions read before."""

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest number of the `txn` actions with this name; None: there is none."""


@dataclass(frozen=True)
class KnownTransactions:
    """`txn` actions of a table as of one version."""

    version: int
    digest: bytes
    """SHA-256 of that version's log entry; another digest later means that the folder contains another table."""
    numbers: Mapping[str, int]
    """Newest number of the `txn` actions with each name."""

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest number of the `txn` actions with this name; None: there is none."""
        return self.numbers.get(app_id)


class TransactionReader:
    """Reader of one table's `txn` actions; it keeps the actions of the version that it read last.

    Args:
        folder: the table's folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._known: KnownTransactions | None = None

    def of(self, table: DeltaTable) -> Transactions:
        """Return the `txn` actions of the version that the table was read at.

        Returns:
            The table itself if its log has a form that only delta-rs can read.
        """
        version = table.version()
        try:
            known = self._still_known(version) or _from_checkpoint(self._folder, version)
            self._known = _with_entries(self._folder, known, version)
        except (OSError, ValueError, KeyError, TypeError):
            self._known = None
            return table
        return self._known

    def _still_known(self, version: int) -> KnownTransactions | None:
        known = self._known
        if known is None or known.version > version:
            return None
        entry = self._folder.read(f"{known.version:020d}.json", LOG)
        return known if entry is not None and _digest(entry) == known.digest else None


def jobs_of(folder: Folder, table: DeltaTable) -> set[str]:
    """Return the names of the jobs with a `txn` action in the table.

    Raises:
        StoreError: the log cannot be read.
    """
    return {found["job"] for name in _names(folder, table) if (found := OF_JOB.match(name))}


def sources_of(folder: Folder, table: DeltaTable) -> set[tuple[str, str]]:
    """Return each pair of job and topic with offsets stored in the table.

    Raises:
        StoreError: the log cannot be read.
    """
    return {(found["job"], found["topic"]) for name in _names(folder, table) if (found := OF_TOPIC.fullmatch(name))}


def _names(folder: Folder, table: DeltaTable) -> Mapping[str, int]:
    version = table.version()
    try:
        return _with_entries(folder, _from_checkpoint(folder, version), version).numbers
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(
            f"{folder}: its Delta log cannot be read ({first_line(error)}). Check that the files in _delta_log are "
            "complete and readable"
        ) from None


def _from_checkpoint(folder: Folder, version: int) -> KnownTransactions:
    """Return the `txn` actions in the newest checkpoint; without a checkpoint, no actions and version -1."""
    checkpoint = json.loads(folder.read(LAST_CHECKPOINT, LOG) or b"{}")
    since = int(checkpoint.get("version", -1))
    if since > version:
        raise ValueError(f"the newest checkpoint is of version {since}, which is later than {version}")
    numbers = dict(_in_checkpoint(folder, since, int(checkpoint.get("parts") or 0))) if since >= 0 else {}
    return KnownTransactions(since, b"", numbers)


def _with_entries(folder: Folder, known: KnownTransactions, version: int) -> KnownTransactions:
    """Return the `txn` actions as of `version`: those in `known`, and those in the log entries since."""
    numbers, digest = dict(known.numbers), known.digest
    for each in range(known.version + 1, version + 1):
        entry = folder.read(f"{each:020d}.json", LOG)
        if entry is None:
            raise OSError(f"version {each} of the log is gone")
        digest = _digest(entry)
        for line in entry.splitlines():
            if b'"txn"' in line and (action := json.loads(line).get("txn")):
                numbers[str(action["appId"])] = int(action["version"])
    if not digest:  # nothing follows the checkpoint
        digest = _digest(folder.read(f"{version:020d}.json", LOG) or b"")
    return KnownTransactions(version, digest, numbers)


def _digest(entry: bytes) -> bytes:
    return hashlib.sha256(entry).digest()


def _in_checkpoint(folder: Folder, version: int, parts: int) -> Iterator[tuple[str, int]]:
    import pyarrow.parquet as pq

    names = [f"{version:020d}.checkpoint.parquet"]
    if parts:
        names = [f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]
    for name in names:
        read = pq.read_table(folder.inside(LOG, name), columns=["txn"], filesystem=folder.filesystem)
        yield from (
            (str(each["appId"]), int(each["version"])) for each in read.column("txn").to_pylist() if each is not None
        )
