"""Dead letters of other applications in a topic that applications share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kafka_ratchet.app.verify.letters import Letters
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rows import content
from kafka_ratchet.app.verify.rule import Headers, RecordView
from kafka_ratchet.app.verify.state import Baseline

GIVEN = RecordView(b"k", b"v", [("trace", b"1")], 0)


def letter(offset: int, app: bytes | None) -> RecordView:
    """Return the letter of an application's agents; app: None for a letter of an earlier version."""
    named: Headers = [] if app is None else [("ratchet-event-id", b"1"), ("ratchet-app", app)]
    origin: Headers = [("ratchet-topic", b"in"), ("ratchet-partition", b"0"), ("ratchet-offset", b"%d" % offset)]
    added: Headers = [*named, ("ratchet-agents", b"[]"), ("ratchet-reason", b"agent a: no"), *origin]
    return RecordView(GIVEN.key, GIVEN.value, [*GIVEN.headers, *added], 0)


@pytest.mark.parametrize(
    ("written", "found", "others"),
    [
        ([(5, b"shop"), (5, b"other")], {}, 1),
        ([(5, b"shop"), (5, b"other"), (6, b"other")], {}, 2),
        ([(5, b"other")], {"lost": 1}, 1),
        ([(5, None)], {}, 0),
    ],
)
def test_letters_of_another_application_neither_prove_nor_accuse(
    written: Sequence[tuple[int, bytes | None]], found: dict[str, int], others: int
) -> None:
    report = Report("events")
    letters = Letters("shop", "in", "dead", whole=True, report=report)
    letters.read((0, number, letter(*each)) for number, each in enumerate(written))
    letters.compare(0, {5: content(GIVEN, with_timestamp=False)}, 10, Baseline())
    letters.finish()
    assert (dict(report.counts), report.other_letters) == (found, others), report.findings
