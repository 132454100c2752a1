"""Documents declare their JSON keys, and one encoder reads them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import NamedTuple

import pytest

from kafka_ratchet.app.compare.comparison import Comparison
from kafka_ratchet.app.inspect import dead_letters, doctor, policy, sinks
from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.inspect.event import EventTrace
from kafka_ratchet.app.repair.plan import RepairPlan
from kafka_ratchet.app.status.open_transactions import BlockedRange
from kafka_ratchet.app.survey import proposal, report
from kafka_ratchet.app.verify.findings import ResultsReport, SourceReport
from kafka_ratchet.app.verify.replay.report import ReplayReport
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.why.answer import Answer

DOCUMENTS = (
    Answer,
    BlockedRange,
    Comparison,
    dead_letters.Content,
    dead_letters.DroppedCounts,
    dead_letters.LetterRecord,
    dead_letters.ShownHeader,
    doctor.Diagnosis,
    doctor.ProgramCheck,
    EventTrace,
    policy.PolicyRow,
    policy.PolicyState,
    policy.StreamPolicy,
    proposal.Proposal,
    RepairPlan,
    ReplayReport,
    Report,
    report.Finding,
    report.NumberOrder,
    report.Report,
    ResultsReport,
    sinks.OpenTransactions,
    sinks.PartitionProgress,
    sinks.SinkFailure,
    sinks.SinkProgress,
    SourceReport,
)


class Colour(StrEnum):
    RED = "red"


class Pair(NamedTuple):
    left: int
    right: int | None


@dataclass
class Inner(Document):
    json_keys = ("name", "twice=doubled")
    name: str

    @property
    def doubled(self) -> str:
        return self.name * 2


@dataclass
class Outer(Document):
    json_keys = ("colour", "pair", "inner", "lost=counts.lost", "none", "absent?", "sum=total", "by_number")
    colour: Colour = Colour.RED
    pair: Pair = field(default_factory=lambda: Pair(1, None))
    inner: list[Inner] = field(default_factory=lambda: [Inner("a")])
    counts: Counter[str] = field(default_factory=Counter)
    none: int | None = None
    absent: int | None = None
    by_number: dict[int, tuple[int, ...]] = field(default_factory=lambda: {3: (1, 2)})

    def total(self) -> int:
        return 7


def test_keys_come_in_their_order_with_parts_methods_and_nested_documents() -> None:
    assert json.dumps(Outer().as_dict()) == (
        '{"colour": "red", "pair": {"left": 1, "right": null}, "inner": [{"name": "a", "twice": "aa"}], "lost": 0, '
        '"none": null, "sum": 7, "by_number": {"3": [1, 2]}}'
    )
    assert Outer(absent=1).as_dict()["absent"] == 1


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_key_is_an_attribute_of_the_document(document: type[Document]) -> None:
    names = {each.name for each in fields(document)} | set(dir(document))  # type: ignore[arg-type]
    paths = [(path or key.removesuffix("?")) for key, _, path in (each.partition("=") for each in document.json_keys)]
    assert paths
    assert {path.split(".")[0] for path in paths} <= names
    keys = [each.partition("=")[0] for each in document.json_keys]
    assert len(keys) == len(set(keys))
