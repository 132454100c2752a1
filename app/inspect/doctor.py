"""Checks of a machine and of a program: documents and lines for `ratchet doctor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_ratchet.app.doctor.findings import Finding, Mark, exit_code
from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.status.producers import shown
from kafka_ratchet.app.version import ratchet_version

if TYPE_CHECKING:
    from kafka_ratchet.app.faust_host import check


@dataclass(frozen=True, slots=True)
class Diagnosis(Document):
    """Findings of doctor's checks. Their sentences must not have secrets."""

    json_keys = ("version", "exit_code", "counts", "checks")

    checks: list[Finding]
    version: str = field(default_factory=ratchet_version)

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command."""
        return exit_code(self.checks)

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of findings by mark."""
        return {mark.name.lower(): sum(each.mark is mark for each in self.checks) for mark in Mark}


@dataclass(frozen=True, slots=True)
class ProgramCheck(Document):
    """Findings about a Faust program. program: MODULE:NAME."""

    json_keys = ("version", "exit_code", "program", "counts", "findings")

    program: str
    findings: list[check.Finding]
    version: str = field(default_factory=ratchet_version)

    @property
    def exit_code(self) -> int:
        """Return the exit code: 1 if Ratchet would refuse a part of the program, else 0."""
        return int(bool(self.counts["refused"]))

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of findings by verdict."""
        verdicts = ("exact", "rule", "refused")
        return {verdict: sum(each.verdict == verdict for each in self.findings) for verdict in verdicts}


def finding_line(found: Finding) -> str:
    """Return the line about a finding of doctor."""
    return f"{found.mark:<11}  {found.check:<8}  {shown(found.sentence.encode(errors='replace'))}"


def program_line(found: check.Finding) -> str:
    """Return the line about a finding in a Faust program."""
    place = f"{Path(found.file).name}:{found.line}"
    return f"{found.heading:<20}  {place:<20}  {found.what}{f': {found.why}' if found.why else ''}"
