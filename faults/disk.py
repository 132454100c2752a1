"""Small disk that a fault can fill: a tmpfs, or, without the right to mount one, a file-size limit of 0.

A full tmpfs reports ENOSPC, as a full disk does. Mounting one needs root. Without root the process under test may not
write to files at all (RLIMIT_FSIZE, EFBIG): another error number with the same effect on RocksDB and Kafka.
"""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path
from types import TracebackType


class SmallDisk:
    """Folder on a disk of fixed size; `fill` uses up the remaining room, `free` releases it."""

    def __init__(self, folder: Path, size: int) -> None:
        """Create the folder, and mount the disk there if mounting is allowed.

        folder: mount point, which must not exist yet; size: bytes.
        """
        self.folder = folder
        folder.mkdir(parents=True)
        mounting = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)], capture_output=True
        )
        self.is_mounted = mounting.returncode == 0
        self._filler = folder / "filler"

    def fill(self, pid: int) -> None:
        """Prevent the process from writing to the disk from now on.

        pid: id of the process; used only without a tmpfs.
        """
        if not self.is_mounted:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            return
        with self._filler.open("wb", buffering=0) as file:
            for piece in (1 << 20, 1 << 12, 1):
                try:
                    while file.write(b"\0" * piece):
                        pass
                except OSError:
                    continue  # full, to a piece of this size

    def free(self, pid: int) -> None:
        """Let the process write to the disk again.

        pid: id of the process; used only without a tmpfs.
        """
        if self.is_mounted:
            self._filler.unlink(missing_ok=True)
        else:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True, capture_output=True)
