"""Ring file of fixed size with a row per step of time; the newest row replaces the oldest.

    header    8 integers: magic, version, seconds of a row, number of rows, values of a row, three zeros
    row       slot, check, values: 8-byte integers. The slot is the number of the step since the epoch; its row has the
              index `slot % rows`. The check is the exclusive or of all other integers of the row and of the magic

Writes are not synchronised to the disk. A crash of the process loses no row; a crash of the machine may leave a row
incomplete, and readers skip such a row.
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
"""Number of integers in the header."""

Values = NDArray[np.int64]


class RingFile:
    """Ring file. Its methods block, so call them in a thread; another thread may close the file during a write.

    Args:
        path: path of the file, in an existing folder
        every_s: seconds that a row covers
        rows: number of rows
        width: number of values of a row
    """

    def __init__(self, path: Path, every_s: int, rows: int, width: int) -> None:
        self.path, self.every_s, self.rows, self.width = path, every_s, rows, width
        self._file = -1
        self._using = threading.Lock()
        """Lock held during each access, so that no access uses a descriptor after its close."""

    @property
    def size(self) -> int:
        """Return the size of the file in bytes."""
        return 8 * (HEADER + self.rows * (2 + self.width))

    def open(self) -> None:
        """Open the file, or create it. A file with a different header or size is first renamed to NAME.aside.

        Raises:
            OSError: the file cannot be opened or created.
        """
        header = np.array([MAGIC, VERSION, self.every_s, self.rows, self.width, 0, 0, 0], np.int64).tobytes()
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(file).st_size
        if size and (size != self.size or os.pread(file, len(header), 0) != header):
            os.close(file)
            aside = self.path.with_name(f"{self.path.name}.aside")
            log.warning(
                "a history file with a different header or size was renamed", file=str(self.path), aside=str(aside)
            )
            self.path.replace(aside)
            file, size = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), 0
        if not size:
            os.ftruncate(file, self.size)
            os.pwrite(file, header, 0)
        self._file = file

    def close(self) -> None:
        """Close the file, if it is open."""
        with self._using:
            if self._file >= 0:
                with suppress(OSError):
                    os.close(self._file)
                self._file = -1

    def write(self, slot: int, values: Sequence[int] | Values) -> None:
        """Write the row of a slot over the oldest one.

        Raises:
            OSError: the file cannot be written, or is closed.
        """
        row = np.zeros(2 + self.width, np.int64)
        row[0], row[2:] = slot, values
        row[1] = np.bitwise_xor.reduce(row) ^ MAGIC
        with self._using:
            os.pwrite(self._file, row.tobytes(), 8 * (HEADER + slot % self.rows * (2 + self.width)))

    def read(self, first: int, last: int) -> tuple[Values, Values]:
        """Read the intact rows from slot `first` to slot `last`, both included.

        Returns:
            (slots int64[n], rising; values int64[n, width])

        Raises:
            OSError: the file cannot be read, or is closed.
        """
        with self._using:
            data = os.pread(self._file, self.size, 0)[8 * HEADER :]
        table = np.frombuffer(data[: len(data) // (8 * (2 + self.width)) * 8 * (2 + self.width)], np.int64)
        table = table.reshape(-1, 2 + self.width)
        at = np.flatnonzero((table[:, 0] >= first) & (table[:, 0] <= last))
        at = at[(table[at, 0] % self.rows == at) & (np.bitwise_xor.reduce(table[at], axis=1) == MAGIC)]
        found = table[at[np.argsort(table[at, 0])]]
        return found[:, 0].copy(), found[:, 2:].copy()
