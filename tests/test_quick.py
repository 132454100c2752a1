"""The lists of tests name what is there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.quick import COMPILED, DEFAULT_MARKS, FIRST, PLAIN, SLOW, TOGETHER, WITH_BROKER, is_of_share, scope

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


def test_the_shares_of_the_matrix_are_the_whole_matrix_and_have_nothing_in_common() -> None:
    tests = [f"tests/test_a.py::test_{number}[{case}]" for number in range(40) for case in "ab"]
    shares = [{test for test in tests if is_of_share(item(test, "matrix"), number, 8)} for number in range(1, 9)]
    assert sorted(test for share in shares for test in share) == sorted(tests)
    assert all(test.replace("[a]", "[b]") in share for share in shares for test in share)
    assert sum(bool(share) for share in shares) > 5
    assert is_of_share(item("tests/test_a.py::test_1"), 3, 8)
