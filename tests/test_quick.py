"""The lists of tests name what is there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.quick import (
    COMPILED,
    DEFAULT_MARKS,
    FIRST,
    PLAIN,
    SLOW,
    TOGETHER,
    WITH_BROKER,
    is_of_matrix,
    scope,
    share_of,
)

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("line", [*SLOW, *FIRST, *TOGETHER, *WITH_BROKER, *PLAIN, *COMPILED])
def test_each_line_is_a_folder_a_file_or_a_test(line: str) -> None:
    path, _, test = line.partition("::")
    assert (ROOT / path).exists()
    assert not test or f"def {test}(" in (ROOT / path).read_text("utf-8")


def test_the_default_tests_leave_out_what_all_brings() -> None:
    assert f"-m '{DEFAULT_MARKS}'" in (ROOT / "pyproject.toml").read_text("utf-8")


def test_a_process_runs_a_file_or_files_that_share_what_takes_long_to_start() -> None:
    assert scope("tests/tables/test_jumps.py::test_one[a::b]") == "tests/tables/test_jumps.py"
    assert scope("tests/spark_sink/stores/test_stores.py::test_one") == "tests/spark_sink/stores"
    assert scope("tests/spark_sink/rows/test_ddl.py::test_one") == scope("tests/spark_sink/job/test_job.py::test_two")


def item(nodeid: str, *marks: str) -> Any:
    return SimpleNamespace(nodeid=nodeid, get_closest_marker=lambda name: name in marks or None)


def test_the_shares_of_a_group_are_the_whole_group_and_have_nothing_in_common() -> None:
    tests = [f"tests/test_a.py::test_{number}[{case}]" for number in range(40) for case in "ab"]
    chosen = [share_of(is_of_matrix, f"{number}/8") for number in range(1, 9)]
    shares = [{test for test in tests if is_chosen(item(test, "matrix"))} for is_chosen in chosen]
    assert sorted(test for share in shares for test in share) == sorted(tests)
    assert all(test.replace("[a]", "[b]") in share for share in shares for test in share)
    assert sum(bool(share) for share in shares) > 5
    assert all(is_chosen(item(tests[0])) for is_chosen in chosen)


@pytest.mark.parametrize("share", ["3", "0/8", "9/8", "a/8", "3/"])
def test_a_share_is_two_numbers(share: str) -> None:
    with pytest.raises(ValueError, match="such as 3/8"):
        share_of(is_of_matrix, share)
