import re
from pathlib import Path

from tables import REASONS
from tables import _kernels as kernels

HEADERS = Path(__file__).parents[2] / "docs" / "reference" / "headers.md"


def test_the_reference_lists_the_reasons_there_are() -> None:
    rows = HEADERS.read_text("utf-8").partition("| reason |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `([a-z-]+)` \|", rows, re.MULTILINE)
    assert sorted(listed) == sorted(REASONS[1:])


def test_a_reason_has_one_name_and_one_number() -> None:
    names = [name.replace("-", "_").upper() for name in REASONS]
    assert [getattr(kernels, name) for name in names[1:]] == list(range(1, len(REASONS)))
    assert (REASONS[0], kernels.NONE) == ("", 0)
