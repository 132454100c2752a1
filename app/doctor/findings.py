"""Finding of one of doctor's checks: a sentence, and the result of the check."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Mark(StrEnum):
    """Result of a check. NOT_CHECKED: the check was impossible."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    NOT_CHECKED = "not checked"


class Finding(NamedTuple):
    """Finding of a check, with its result and a sentence.

    check: settings, sinks, broker, rights, topics, group, formats, clock, progress or disk.
    """

    check: str
    mark: Mark
    sentence: str


def exit_code(findings: list[Finding]) -> int:
    """Return doctor's exit code: 2 if a check was impossible, else 1 with an error, else 0."""
    marks = {finding.mark for finding in findings}
    return 2 if Mark.NOT_CHECKED in marks else 1 if Mark.ERROR in marks else 0
