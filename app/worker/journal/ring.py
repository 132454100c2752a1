"""Ring file of fixed size with a row per step of time; the newest row replaces the oldest.

    header    8 integers: magic, version, seconds a row, rows, values a row, three times 0
    row       slot, check, values: 8-byte integers. The slot is the number of the step since the epoch, and it stands at
              `slot % rows`. The check is the exclusive or of all others and of the magic

Nothing is synchronised to the disk: a crash of the process loses nothing, and one of the machine may tear a row,
which is left out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

log = structlog.get_logger(__name__)

MAGIC: Final = int.from_bytes(b"RatchetH", "big")
VERSION: Final = 1
HEADER: Final = 8
"""Integers."""

Values = NDArray[np.int64]


class Ring:
    """One file. Blocking: it is used in a thread, and closed by another while that may still write.

    Args:
        path: of the file; its folder is there
        every_s: seconds of a row
        rows: how many there are
        width: values of a row
    """

    def __init__(self, path: Path, every_s: int, rows: int, width: int) -> None:
        self.path, self.every_s, self.rows, self.width = path, every_s, rows, width
        self._file = -1
        self._using = threading.Lock()
        """Lock against a write to another file with the reused number of a closed one."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return 8 * (HEADER + self.rows * (2 + self.width))

    def open(self) -> None:
        """Open the file, or make it. One of another version or shape is put aside, under its name with `.aside`.

        Raises:
            OSError: it cannot be made.
        """
        header = np.array([MAGIC, VERSION, self.every_s, self.rows, self.width, 0, 0, 0], np.int64).tobytes()
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(file).st_size
        if size and (size != self.size or os.pread(file, len(header), 0) != header):
            os.close(file)
            aside = self.path.with_name(f"{self.path.name}.aside")
            log.warning("a history of another version or shape is put aside", file=str(self.path), aside=str(aside))
            self.path.replace(aside)
            file, size = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), 0
        if not size:
            os.ftruncate(file, self.size)
            os.pwrite(file, header, 0)
        self._file = file

    def close(self) -> None:
        """Close the file; does nothing where it is not open."""
        with self._using:
            if self._file >= 0:
                with suppress(OSError):
                    os.close(self._file)
                self._file = -1

    def write(self, slot: int, values: Sequence[int] | Values) -> None:
        """Put a row into its place.

        Raises:
            OSError: it cannot be written, or is closed.
        """
        row = np.zeros(2 + self.width, np.int64)
        row[0], row[2:] = slot, values
        row[1] = np.bitwise_xor.reduce(row) ^ MAGIC
        with self._using:
            os.pwrite(self._file, row.tobytes(), 8 * (HEADER + slot % self.rows * (2 + self.width)))

    def read(self, first: int, last: int) -> tuple[Values, Values]:
        """Return the rows from one slot to another, both included, as far as they are there.

        Returns:
            (slots int64[n], rising; values int64[n, width])

        Raises:
            OSError: it cannot be read, or is closed.
        """
        with self._using:
            data = os.pread(self._file, self.size, 0)[8 * HEADER :]
        table = np.frombuffer(data[: len(data) // (8 * (2 + self.width)) * 8 * (2 + self.width)], np.int64)
        table = table.reshape(-1, 2 + self.width)
        at = np.flatnonzero((table[:, 0] >= first) & (table[:, 0] <= last))
        at = at[(table[at, 0] % self.rows == at) & (np.bitwise_xor.reduce(table[at], axis=1) == MAGIC)]
        found = table[at[np.argsort(table[at, 0])]]
        return found[:, 0].copy(), found[:, 2:].copy()
