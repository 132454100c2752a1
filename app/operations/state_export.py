"""`ratchet state export`: exports the state of a stream's identities, from the committed entries of its changelog."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from kafka_ratchet.app.operations.resume import Resume, ResumeOptions
from kafka_ratchet.app.operations.state_rows import Row
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker.kept import kept_of
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.store import Store

SEQUENCE, SEEN = 8, 4
"""Sizes in bytes of two parts of an entry's value, if the state has the identities' times.

The last sequence is at the beginning of the value, the time of the last record at its end."""

WITHOUT_CHANGELOG: Final = (
    "The stream has no state to read: it never ran, or its changelog is lost. If it did run, correct the name of the "
    "stream or the application in the settings"
)
"""Remedy of commands that read the state of a stream without a changelog."""


class StateExport:
    """Reader of one stream's state, with a connection to Kafka. It only reads, so workers may run."""

    def __init__(self, settings: Settings, bootstrap: str, name: str) -> None:
        """Check the stream's topics and their owner; raises the errors of `Resume`."""
        wanted = ResumeOptions(None, "", False, False)
        self._resume = Resume(settings, bootstrap, name, wanted, without_changelog=WITHOUT_CHANGELOG)
        self.partitions = self._resume.partitions

    def rows(self) -> Iterator[Row]:
        """Yield the identities of each partition, one partition after the other, as of the changelog's end.

        Raises:
            RatchetError: a changelog cannot be read, or the temporary folder cannot take its entries.
        """
        for number in range(self.partitions):
            with tempfile.TemporaryDirectory(prefix="ratchet-export-") as folder:
                asyncio.run(self._read(number, Path(folder)))
                store = Store(Path(folder) / "store")
                try:
                    with closing(store.entries()) as entries:
                        for key, value in entries:
                            sequence, seen = value[:SEQUENCE], value[-SEEN:]
                            numbers = int.from_bytes(sequence, "big"), number, self.partitions
                            yield Row(key[1:], *numbers, int.from_bytes(seen, "big"), value[SEQUENCE:-SEEN])
                finally:
                    store.close()

    async def _read(self, number: int, folder: Path) -> None:
        async with self._resume.connected() as cluster:
            state = self._resume.state_of(number, folder, EvictionLimits(), kept_of(self._resume.stream))
            move = self._resume.move_of(cluster, number, state)
            try:
                await move.read()
                state.save()  # `rows` reads the store, and closing swallows the error of a full disk
            finally:
                move.close()
