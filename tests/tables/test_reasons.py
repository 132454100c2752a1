import re
from pathlib import Path

from kafka_ratchet.rule import reasons
from kafka_ratchet.rule.reasons import REASONS
from kafka_ratchet.rule.verdicts import CONTENT_DIFFERS, TOO_LATE

HEADERS = Path(__file__).parents[2] / "docs" / "reference" / "headers.md"


def test_the_reference_lists_the_reasons_there_are() -> None:
    first = "- `sequence-missing`:"
    items = first + HEADERS.read_text("utf-8").partition(first)[2].partition("\n\n")[0]
    listed = re.findall(r"^- `([a-z-]+)`:", items, re.MULTILINE)
    assert sorted(listed) == sorted([*REASONS[1:], TOO_LATE, CONTENT_DIFFERS])


def test_a_reason_has_one_name_and_one_number() -> None:
    names = [name.replace("-", "_").upper() for name in REASONS]
    assert [getattr(reasons, name) for name in names[1:]] == list(range(1, len(REASONS)))
    assert (REASONS[0], reasons.NONE) == ("", 0)
