"""Files of a folder in the order of their writing, including rotated logs."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_ratchet.errors import SourceError
from kafka_ratchet.producers.compression import without_compression
from kafka_ratchet.producers.file_mark import Place

_INDEX = re.compile(r"[0-9]{1,4}")
_DATE = re.compile(r"(19|20)[0-9]{2}[-_.]?[0-9]{2}.*")
"""Pattern of a date with the year first, perhaps with a time or number: such tags sort by `_parts`."""
_DIGITS = re.compile(r"([0-9]+)")


class RotationUnclear(SourceError):
    """Error for files in an order that can exist only for a moment, while a program rotates a log."""


@dataclass(frozen=True, slots=True)
class PresentFile:
    """File present in a folder."""

    path: Path
    base: str
    """Name of the log that the file is, or was before its rotation."""
    tag: str | None
    """Part of the name that rotation added; None: the file is the log itself."""
    device: int
    inode: int
    size: int
    """Size on disk in bytes."""
    changed_ns: int

    @property
    def identity(self) -> tuple[int, int]:
        """Return device and inode, which all names of a file share."""
        return self.device, self.inode

    @property
    def place(self) -> Place:
        """Return device, inode and time of change, which a renamed file keeps."""
        return self.device, self.inode, self.changed_ns

    @property
    def state(self) -> tuple[int, int, int, int]:
        """Return a value that changes when a program writes to the file, but not when the file is renamed."""
        return self.device, self.inode, self.size, self.changed_ns


def tag_of(name: str, base: str) -> str | None:
    """Return the part that rotation added to a log's name; None: the name is not that of a rotated log.

    The forms are those of logrotate and of loggers: `app.log.1`, `app.log-20260131`, `app.log.1.gz`; with the extension
    kept, `app-20260131.log` or `app.1.log.gz`; and `app.log.gz`.
    """
    plain = without_compression(name)
    if plain == base:
        return "" if name != base else None
    tag = None
    stem, dot, extension = base.rpartition(".")
    if plain.startswith(base) and plain[len(base)] in ".-_":
        tag = plain[len(base) + 1 :]
    elif dot and stem and plain.startswith(stem) and plain.endswith(dot + extension) and plain[len(stem)] in ".-":
        tag = plain[len(stem) + 1 : -len(dot + extension)]
    return tag if tag and tag[0].isdigit() else None


def list_folder(folder: Path, known: Iterable[str] = (), only: str | None = None) -> list[PresentFile]:
    """Return the files of a folder in reading order.

    Logs are sorted by their names, each preceded by its rotated files, oldest first. Left out are files that begin with
    a dot, compressed files with their original present, and symbolic links to files of the list.

    Args:
        folder: folder to list.
        known: names of logs that may be missing for a moment.
        only: name of the only log to list, with its rotated files; None: all logs.

    Raises:
        RotationUnclear: a file has several names, and more than one of them is not a symbolic link.
        SourceError: the folder cannot be read, or the order of rotated files is ambiguous.
    """
    try:
        there = {path.name: path for path in folder.iterdir() if path.name[:1] != "."}
    except OSError as error:
        raise SourceError(f"{folder}: cannot be read: {error.strerror}") from None
    names = {name for name in there if without_compression(name) == name or without_compression(name) not in there}
    logs = sorted({*names, *known} if only is None else {only}, key=lambda name: (len(name), name))
    found = []
    for name in names:
        base, tag = next(
            ((log, tag) for log in logs if log != name and (tag := tag_of(name, log)) is not None), (name, None)
        )
        if only is not None and only not in (base, name):
            continue
        try:
            status = there[name].stat()
        except OSError:
            continue  # gone between two looks
        if stat.S_ISREG(status.st_mode):
            state = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            found.append(PresentFile(there[name], base, tag, *state))
    found = _without_links(found)
    _refuse_unknown_order(found)
    return sorted(found, key=_age)


def list_files(paths: Sequence[Path]) -> list[PresentFile]:
    """Return a description of each given file, in the given order; none counts as rotated from another.

    Raises:
        SourceError: a file is missing, cannot be read, or has two of the given names.
    """
    found: list[PresentFile] = []
    for number, path in enumerate(paths):
        try:
            status = path.stat()
        except FileNotFoundError:
            raise SourceError(f"{path}: there is no such file") from None
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
        state = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        file = PresentFile(path, f"{number}/{path}", None, *state)
        if twin := next((each for each in found if each.identity == file.identity and each.path != path), None):
            raise SourceError(f"{_several_names([twin, file])}. Remove all but one of the names")
        found.append(file)
    return found


def _without_links(found: list[PresentFile]) -> list[PresentFile]:
    """Leave out symbolic links to files of the list, such as the link to the current log that cronolog makes."""
    files: dict[tuple[int, int], list[PresentFile]] = {}
    for file in found:
        files.setdefault(file.identity, []).append(file)
    for identity, same in files.items():
        if len(same) > 1:
            plain = [file for file in same if not file.path.is_symlink()]
            if len(plain) != 1:
                raise RotationUnclear(
                    f"{_several_names(same)}. Remove all but one of the names, or make the others symbolic links to it"
                )
            files[identity] = plain
    return [file for same in files.values() for file in same]


def _several_names(files: list[PresentFile]) -> str:
    return (
        f"{files[0].path.parent}: {_names(files)} are one file under two names, so its lines would be published twice"
    )


def _age(file: PresentFile) -> tuple[str, bool, bool, int, tuple[str | int, ...], str]:
    tag = file.tag
    is_index = tag is not None and _INDEX.fullmatch(tag) is not None
    return file.base, tag is None, tag == "", -int(tag) if tag and is_index else 0, _parts(tag or ""), tag or ""


def _parts(tag: str) -> tuple[str | int, ...]:
    """Split a tag into texts and numbers in turn, because loggers write a date's files as .9 and .10."""
    return tuple(int(part) if at % 2 else part for at, part in enumerate(_DIGITS.split(tag)))


def _refuse_unknown_order(found: list[PresentFile]) -> None:
    rotated: dict[str, list[PresentFile]] = {}
    for file in found:
        if file.tag:
            rotated.setdefault(file.base, []).append(file)
    for files in rotated.values():
        tags = [file.tag or "" for file in files]
        if len(tags) > 1 and not (all(map(_INDEX.fullmatch, tags)) or all(map(_DATE.fullmatch, tags))):
            raise SourceError(
                f"{files[0].path.parent}: the order of {_names(files)} is ambiguous: rotated logs are numbered "
                "(.1 is the newest), or dated with the year first (logrotate: dateformat -%Y%m%d). Rename them, or "
                "move "
                "published files out of the folder"
            )


def _names(files: list[PresentFile]) -> str:
    names = sorted(file.path.name for file in files)
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
