"""Decorator of every function that Numba compiles, and its cache on disk.

Numba keeps the machine code of a function until the function's file changes. After an update of Ratchet, two things
would go wrong. First, compiled code contains constants and functions of other files, so the kept code would judge by an
old rule. Therefore this module keeps code only while no file of `SHARED` changes. Second, Numba unpickles the index of
its cache before it compares sources. The index names the classes in signatures, so a worker could not start after one
of these classes has moved. Therefore this module treats an unreadable index as empty.
"""

# ruff: noqa: SLF001  Numba lets nobody choose the file of a cache.

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from numba import njit
from numba.core.caching import IndexDataCacheFile

OPTIONS: Final = {"cache": True, "nogil": True, "_nrt": False}
"""Numba options of every compiled pass.

No pass allocates, so none needs Numba's reference counting. Reference counting would make each helper increase and
decrease every array's count atomically, which took four fifths of the time of `read_records`.
"""

SHARED: Final = (
    "app/survey/kernels.py",
    "rule/kernels.py",
    "rule/nesting.py",
    "rule/number_forms.py",
    "rule/parts.py",
    "rule/reasons.py",
    "rule/windows.py",
    "transport/batch/compiled.py",
    "transport/batch/kernels.py",
    "transport/publishing/lines.py",
)
"""Files with functions and constants that compiled functions of other files use."""

PACKAGE: Final = Path(__file__).parents[2]


def compiled(**options: Any) -> Callable[[Any], Any]:
    """Return the decorator that compiles a function at its first call.

    options: arguments of `numba.njit` in addition to `OPTIONS`.
    """

    def compile_later(function: Any) -> Any:
        made = njit(**OPTIONS, **options)(function)
        cache = getattr(made, "_cache", None)
        if cache is not None:  # None with NUMBA_DISABLE_JIT: the function stays plain Python
            place, base, stamp = cache.cache_path, cache._impl.filename_base, cache._impl.locator.get_source_stamp()
            cache._cache_file = SafeIndex(place, base, (stamp, STAMP))
        return made

    return compile_later


def stamp_of(package: Path) -> tuple[tuple[int, int], ...]:
    """Return (modification time, size) of each shared module (`SHARED`); a changed one makes its users compile again.

    Inside a zip archive, return (): Numba itself compares the date of the archive.
    """
    try:
        found = [(package / name).stat() for name in SHARED]
    except OSError:
        return ()
    return tuple((each.st_mtime_ns, each.st_size) for each in found)


STAMP: Final = stamp_of(PACKAGE)


class SafeIndex(IndexDataCacheFile):  # type: ignore[misc]  # Numba has no types
    """Index of a function's compiled versions in Numba's cache; empty if the file cannot be read."""

    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except Exception:
            # Unpickling raises anything: of a class that moved, a truncated file, another pickle's protocol. The code
            # is compiled again, and the index replaced.
            return {}
