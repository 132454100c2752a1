"""The lists of tests name what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quick import COMPILED, DEFAULT_MARKS, FIRST, PLAIN, SLOW, TOGETHER, WITH_BROKER, scope

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
