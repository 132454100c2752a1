"""What killed and fenced jobs leave beside a result: invisible to readers, and never to become visible.

Everything that is on its way into a table carries the job and the generation of the holder that made it. A commit of
an older generation than the newest fails, so that what carries one can go; what carries the newest stays, however
old it is, because a holder that is frozen amid a commit looks like a dead one. Each store lists what it finds, see
`TableStore.orphans`: files first, and the table afterwards, because what was committed in between is named by then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from kafka_ratchet.spark_sink.errors import SinkError, refuse
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import reader, rejects_location
from kafka_ratchet.spark_sink.stores.orphans import Orphan

OLDER_THAN_S = 3600.0
"""Younger files are kept, in seconds. The generation decides; the age leaves time to look at what a crash has left."""


def vacuum(location: TableLocation, older_than_s: float = OLDER_THAN_S, *, dry_run: bool = False) -> list[Orphan]:
    """Remove what jobs of any name have left beside a result and its rejects.

    Args:
        location: the result.
        older_than_s: keep what was written in the last so many seconds. PostgreSQL does not know when a staging table
            was written, so that the generation alone decides there.
        dry_run: only look.

    Returns:
        What was removed, or would be.

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
