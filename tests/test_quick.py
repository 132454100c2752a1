"""The lists of tests name what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quick import COMPILED, FIRST, PLAIN, SLOW, WITH_BROKER

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("line", [*SLOW, *FIRST, *WITH_BROKER, *PLAIN, *COMPILED])
def test_each_line_is_a_folder_a_file_or_a_test(line: str) -> None:
    path, _, test = line.partition("::")
    assert (ROOT / path).exists()
    assert not test or f"def {test}(" in (ROOT / path).read_text("utf-8")
