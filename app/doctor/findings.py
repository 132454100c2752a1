"""What a check has found: one sentence and a mark."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Mark(StrEnum):
    """How it stands. NOT_CHECKED: nothing could be looked at."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    NOT_CHECKED = "not checked"


class Finding(NamedTuple):
    """check: settings, sinks, broker, rights, topics, group, formats, clock, progress or disk."""

    check: str
    mark: Mark
    sentence: str


def exit_code(findings: list[Finding]) -> int:
    """0: fine; 1: there is an error; 2: something could not be checked."""
    marks = {finding.mark for finding in findings}
    return 2 if Mark.NOT_CHECKED in marks else 1 if Mark.ERROR in marks else 0
