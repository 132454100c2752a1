"""Removal of orphans: files and tables that killed or fenced jobs left, and that no reader will ever see.

The name of everything that a job stages for a table contains the job and its generation. Commits of generations older
than the newest one fail, so their orphans can be removed. Orphans of the newest generation stay, however old they are,
because a job frozen during a commit looks like a dead one. Each store lists its orphans, see `TableStore.orphans`:
first the files and then the names in the table, so that files committed between both listings are not removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from kafka_ratchet.spark_sink.errors import SinkError, refuse
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import reader, rejects_location
from kafka_ratchet.spark_sink.stores.orphans import Orphan

OLDER_THAN_S = 3600.0
"""Minimum age in seconds of files to remove. The generation alone would be safe; the age leaves time to examine the
files of a crash."""


def vacuum(location: TableLocation, older_than_s: float = OLDER_THAN_S, *, dry_run: bool = False) -> list[Orphan]:
    """Remove all jobs' orphans next to a result table and its rejects table.

    Args:
        location: location of the result table.
        older_than_s: minimum age of files in seconds. PostgreSQL does not record when a staging table was written, so
            there only the generation matters.
        dry_run: True lists the orphans without removing them.

    Returns:
        Removed orphans; with `dry_run`, the orphans to remove.

    Raises:
        SinkError: there is no such table, or a file or table could not be read or removed.
    """
    before_s = time.time() - older_than_s
    try:
        found = [orphan for orphan in _orphans(location) if orphan.modified_s is None or orphan.modified_s < before_s]
        for orphan in [] if dry_run else found:
            orphan.remove()
    except (SinkError, ModuleNotFoundError):  # the second becomes the sentence with the extra to install
        raise
    except Exception as error:  # errors of the stores' libraries, and of the disk
        refuse(location, error, "the table and the rights in it")
    return found


def _orphans(location: TableLocation) -> Iterator[Orphan]:
    store = reader(location, "vacuum")
    yield from store.orphans()
    if store.rejects_apart:
        yield from reader(rejects_location(location), "vacuum").orphans(needed=False)
