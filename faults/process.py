"""CPU time and memory of a process and all its descendants, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")
_UTIME, _PPID = 11, 1
"""Indexes of fields in /proc/PID/stat, counted after the command's closing bracket."""


def tree(pid: int) -> list[int]:
    """Return the ids of a process and its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[_PPID]), []).append(int(entry.name))
    found, ahead = [], [pid]
    while ahead:
        one = ahead.pop()
        found.append(one)
        ahead += parents.get(one, [])
    return found


def named(pid: int, name: str) -> int | None:
    """Return the id of the descendant with this name, as `ps` shows it; None if there is none."""
    for one in tree(pid)[1:]:
        try:
            if Path(f"/proc/{one}/comm").read_text("utf-8", "replace").rstrip("\n") == name:
                return one
        except OSError:
            continue
    return None


def cpu_seconds(pid: int) -> float:
    """Return the seconds of user and system time of a process tree, with ended and awaited children."""
    ticks = 0
    for one in tree(pid):
        if fields := _stat(one):
            ticks += sum(map(int, fields[_UTIME : _UTIME + 4]))
    return ticks / TICKS


def peak_bytes(pid: int) -> int:
    """Return the sum of the peak resident sizes of a process tree, in bytes.

    The tree never needs more, because its processes have their peaks at different times.
    """
    total = 0
    for one in tree(pid):
        try:
            lines = Path(f"/proc/{one}/status").read_text("ascii", errors="replace").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    return total


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
