"""Folder of a table, for writers and removers of its files."""

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
    """Name, size and time of a file in a folder."""

    name: str
    bytes: int
    modified_s: float
    """Time of the last write, in seconds since 1970."""


class LocalFolder:
    """Folder on a local or mounted disk.

    The methods follow no symbolic link below the folder, except `make` and `remove_folder`.

    Args:
        path: absolute path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = str(path)
        self.options: dict[str, str] | None = None
        self.filesystem: Any = None
        """pyarrow's file system for the paths that `inside` returns; None: this machine's."""

    def __str__(self) -> str:
        return str(self.path)

    def inside(self, *names: str) -> str:
        """Return the path of an entry of the folder, for use with `filesystem`."""
        return str(self.path.joinpath(*names))

    def make(self, *folders: str) -> None:
        """Make the folder, or a folder below it.

        Raises:
            OSError: the folder cannot be made.
        """
        self.path.joinpath(*folders).mkdir(parents=True, exist_ok=True)

    def is_there(self) -> bool:
        """Return True if the folder exists."""
        return self.path.is_dir()

    def remove_folder(self, *folders: str) -> None:
        """Remove a folder below this one with its entries, and ignore errors."""
        shutil.rmtree(self.path.joinpath(*folders), ignore_errors=True)

    def files(self, *folders: str) -> list[FileInfo]:
        """List the plain files of a folder below this one.

        Raises:
            OSError: the folder cannot be read.
        """
        found = []
        with self._entered(folders) as folder, os.scandir(folder) as entries:
            for entry in entries:
                # A running holder removes its files too.
                with suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found.append(FileInfo(entry.name, status.st_size, status.st_mtime))
        return found

    def folders(self, *folders: str) -> list[str]:
        """Return the names of the subfolders of `folders`, a path below this folder.

        The list is empty if the path does not exist.

        Raises:
            OSError: the folder cannot be read.
        """
        try:
            with self._entered(folders) as folder, os.scandir(folder) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return []
            raise

    def read(self, name: str, *folders: str) -> bytes | None:
        """Return the contents of a file of a folder below this one; None if the file is missing.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            with self._entered(folders) as folder:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
                with os.fdopen(file, "rb") as opened:
                    return opened.read()
        except FileNotFoundError:
            return None

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """Return the size of each file of the folder in bytes; None for a missing file.

        Raises:
            OSError: a size cannot be read.
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
        """Remove a file of a folder below this one, if it exists.

        Raises:
            OSError: the file cannot be removed.
        """
        with suppress(FileNotFoundError), self._entered(folders) as folder:
            os.unlink(name, dir_fd=folder)

    @contextmanager
    def _entered(self, folders: tuple[str, ...]) -> Iterator[int]:
        # One descriptor after the other: a name that becomes a link in between leads nowhere.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for folder in folders:
                inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)
