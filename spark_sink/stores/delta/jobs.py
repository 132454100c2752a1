"""Which jobs a Delta table knows. delta-rs hands out a `txn` action by its name only, so the log itself is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import StoreError, first_line
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.stores.delta.log import LOG

if TYPE_CHECKING:
    from deltalake import DeltaTable

OF_JOB = re.compile(r"ratchet-sink/(?P<job>[a-z][a-z0-9_-]{0,62})/")
"""How the names of a job's `txn` actions begin."""

LAST_CHECKPOINT = "_last_checkpoint"


def jobs_of(folder: Folder, table: DeltaTable) -> set[str]:
    """Names of the jobs that have written a `txn` action, by the newest checkpoint and the entries after it.

    Raises:
        StoreError: the log cannot be read.
    """
    try:
        return {found["job"] for name in _applications(folder, table.version()) if (found := OF_JOB.match(name))}
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{folder}: its log cannot be read ({first_line(error)})") from None


def _applications(folder: Folder, newest: int) -> Iterator[str]:
    checkpoint = json.loads(folder.read(LAST_CHECKPOINT, LOG) or b"{}")
    since = int(checkpoint.get("version", -1))
    if since >= 0:
        yield from _in_checkpoint(folder, since, int(checkpoint.get("parts") or 0))
    for version in range(since + 1, newest + 1):
        for line in (folder.read(f"{version:020d}.json", LOG) or b"").splitlines():
            if b'"txn"' in line:
                yield str(json.loads(line).get("txn", {}).get("appId", ""))


def _in_checkpoint(folder: Folder, version: int, parts: int) -> Iterator[str]:
    import pyarrow.parquet as pq

    names = [f"{version:020d}.checkpoint.parquet"]
    if parts:
        names = [f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]
    for name in names:
        read = pq.read_table(folder.inside(LOG, name), columns=["txn"], filesystem=folder.filesystem)
        yield from (str(each["appId"]) for each in read.column("txn").to_pylist() if each is not None)
