"""The folder that a table lies in, as those see it who write its files and those who remove them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class FileInfo:
    """A file in a folder."""

    name: str
    bytes: int
    modified_s: float
    """When it was last written, in seconds since 1970."""


class LocalFolder:
    """A folder on a local or mounted disk.

    Nothing here follows a symbolic link below the folder itself: what is listed and removed lies in it.

    Args:
        path: absolute path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = str(path)
        self.options: dict[str, str] | None = None
        self.filesystem: Any = None
        """pyarrow's own, where a folder has one."""

    def __str__(self) -> str:
        return str(self.path)

    def inside(self, *names: str) -> str:
        """What lies in the folder, as `filesystem` calls it."""
        return str(self.path.joinpath(*names))

    def make(self, *folders: str) -> None:
        """Make the folder, or one below it.

        Raises:
            OSError: it cannot be made.
        """
        self.path.joinpath(*folders).mkdir(parents=True, exist_ok=True)

    def is_there(self) -> bool:
        """Whether there is such a folder."""
        return self.path.is_dir()

    def remove_folder(self, *folders: str) -> None:
        """Remove a folder below this one and what is in it, as far as that can be."""
        shutil.rmtree(self.path.joinpath(*folders), ignore_errors=True)

    def files(self, *folders: str) -> list[FileInfo]:
        """The plain files of a folder below this one.

        Raises:
            OSError: it cannot be read.
        """
        found = []
        with self._entered(folders) as folder, os.scandir(folder) as entries:
            for entry in entries:
                # A holder at work removes its files too.
                with suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found.append(FileInfo(entry.name, status.st_size, status.st_mtime))
        return found

    def folders(self, *folders: str) -> list[str]:
        """The names of the folders in one below this one; none where that is no folder.

        Raises:
            OSError: it cannot be read.
        """
        try:
            with self._entered(folders) as folder, os.scandir(folder) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return []
            raise

    def read(self, name: str, *folders: str) -> bytes | None:
        """A file of a folder below this one; None: there is none.

        Raises:
            OSError: it cannot be read.
        """
        try:
            with self._entered(folders) as folder:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
                with os.fdopen(file, "rb") as opened:
                    return opened.read()
        except FileNotFoundError:
            return None

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """Bytes of each of these files of the folder; None: it is not there.

        Raises:
            OSError: they cannot be looked at.
        """
        found: list[int | None] = []
        with self._entered(()) as folder:
            for name in names:
                try:
                    found.append(os.stat(name, dir_fd=folder, follow_symlinks=False).st_size)
                except FileNotFoundError:
                    found.append(None)
        return found

    def remove(self, name: str, *folders: str) -> None:
        """Remove a file of a folder below this one, where it is still there.

        Raises:
            OSError: it cannot be removed.
        """
        with suppress(FileNotFoundError), self._entered(folders) as folder:
            os.unlink(name, dir_fd=folder)

    @contextmanager
    def _entered(self, folders: tuple[str, ...]) -> Iterator[int]:
        # Step by step and by descriptor: a name that becomes a link in between leads nowhere.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for folder in folders:
                inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)
