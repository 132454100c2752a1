"""Removal of orphans: files and tables of killed and fenced jobs, invisible to readers now and later.

Everything on its way into a table carries the job and the generation of its holder. A commit of an older generation
than the newest fails, so that its orphans can go. Those of the newest stay, however old they are, because a holder
frozen in a commit looks like a dead one. Each store lists its orphans, see `TableStore.orphans`: files first, and the
table afterwards, because the table then names all files of commits in between.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from kafka_ratchet.spark_sink.errors import SinkError, refuse
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import reader, rejects_location
from kafka_ratchet.spark_sink.stores.orphans import Orphan

OLDER_THAN_S = 3600.0
"""Age in seconds below which files are kept. The generation decides; the age leaves time to study the files of a
crash."""


def vacuum(location: TableLocation, older_than_s: float = OLDER_THAN_S, *, dry_run: bool = False) -> list[Orphan]:
    """Remove the orphans of all jobs of a result and its rejects.

    Args:
        location: the result.
        older_than_s: keep files written in the last so many seconds. PostgreSQL does not know when a staging table
            was written, so that the generation alone decides there.
        dry_run: only list the orphans.

    Returns:
        Removed orphans, or those to remove.

    Raises:
        SinkError: there is no such table, or something could not be read or removed.
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
