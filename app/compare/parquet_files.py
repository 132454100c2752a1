"""Parquet files of a folder: types of columns, values in folder names, and committed files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from kafka_ratchet.app.compare.values import Kind
from kafka_ratchet.errors import SettingsError, SourceError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"

SPARK_LOG: Final = "_spark_metadata"
"""Folder in which Spark's streaming file sink lists the files that it has committed."""

SPARK_BATCH: Final = re.compile(r"(\d+)(\.compact)?\Z")

OTHER_TABLES: Final[Mapping[str, str]] = {
    "_delta_log": "is in a Delta table, which also has files of older versions. Write delta:PATH",
    ".hoodie": "is in a Hudi table, which also has files of older versions. Hudi tables cannot be compared",
}
"""Reason and remedy for a refused folder, by the name of the subfolder that reveals its kind."""

NUMBERS: Final[frozenset[Kind]] = frozenset({"number", "float32", "float64"})


def folder_values(path: str) -> dict[str, str | None]:
    """Return the values in the folder names of a path, such as day=2026-01-01."""
    found: dict[str, str | None] = {}
    for part in PurePosixPath(path).parent.parts:
        name, equals, value = part.partition("=")
        if equals and name:
            found[unquote(name)] = None if value == NULL_FOLDER else unquote(value)
    return found


def common_kind(kinds: Iterable[Kind]) -> Kind:
    """Return one type for a column that several files declare with these types."""
    found = set(kinds)
    if len(found) == 1:
        return found.pop()
    return "float64" if found and found <= NUMBERS else "any"


def require_plain_files(files: FileSystem, path: str, address: object) -> None:
    """Refuse a path in a Delta or Hudi table.

    Only the table's log says which files are current.

    Raises:
        SettingsError: the path is in a Delta or Hudi table.
    """
    for folder in (PurePosixPath(path), *PurePosixPath(path).parents):
        for name, why in OTHER_TABLES.items():
            if _has_folder(files, folder, name):
                raise SettingsError(f"{address} {why}")


def require_no_list(files: FileSystem, paths: Iterable[str], address: object) -> None:
    """Refuse paths in a folder of Spark's file sink.

    Ratchet does not read the sink's list of committed files for such a path.

    Raises:
        SettingsError: a path or a folder above it has the list.
    """
    for folder in {folder for path in paths for folder in (PurePosixPath(path), *PurePosixPath(path).parents)}:
        if _has_folder(files, folder, SPARK_LOG):
            raise SettingsError(
                f"{address}: Spark's file sink lists its committed files in {folder / SPARK_LOG}, and other files "
                "there may be left over from a crash. Give the local path of the sink's folder, without a "
                "pattern; a sink in object storage cannot be compared"
            )


def _has_folder(files: FileSystem, folder: PurePosixPath, name: str) -> bool:
    return str(folder) not in ("/", ".") and bool(files.get_file_info(str(folder / name)).type.name == "Directory")


def committed_names(folder: Path, address: object) -> set[str] | None:
    """Return the names of files committed by Spark's streaming sink; None without its log.

    Raises:
        SourceError: the log cannot be read.
    """
    log = folder / SPARK_LOG
    if not log.is_dir():
        return None
    batches = [(int(found[1]), found[2] is not None, each) for each in log.iterdir() if (found := _batch(each))]
    compact = max((number for number, is_compact, _ in batches if is_compact), default=-1)
    names: set[str] = set()
    for number, is_compact, file in sorted(batches):
        if number < compact or (number == compact and not is_compact):
            continue
        version, *lines = file.read_text("utf-8").splitlines()
        if version != "v1":
            raise SourceError(
                f"{address}: {file} is in version {version!r} of Spark's list of files, and Ratchet reads only v1"
            )
        for line in lines:
            entry: Any = json.loads(line)
            name = unquote(PurePosixPath(entry["path"]).name)
            (names.discard if entry.get("action") == "delete" else names.add)(name)
    return names


def _batch(file: Path) -> re.Match[str] | None:
    return SPARK_BATCH.match(file.name)
