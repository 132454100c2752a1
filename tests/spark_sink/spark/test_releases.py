"""The store suite and the kill tests on each release of Spark, in an environment of its own.

`./ratchet test -m spark-versions` runs them all, and `-k 3.5` behind it one; the first call fetches each pyspark.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final, cast

import pytest

from kafka_ratchet.spark_sink.spark.versions import DEFAULT, RELEASES
from tests.spark_sink.spark.environment import LOCKS, python_with

ROOT = Path(__file__).parents[3]

TESTS: Final = (
    "tests/spark_sink/job/test_structured.py",
    "tests/spark_sink/rows",
    "tests/spark_sink/spark",
    "tests/spark_sink/stores",
    "tests/spark_sink/test_from_input.py",
    "tests/spark_sink/test_library.py",
    "tests/spark_sink/test_many_topics.py",
    "tests/spark_sink/test_micro_batches.py",
    "tests/spark_sink/test_sink_killed.py",
    "tests/spark_sink/test_twenty_lines.py",
    "tests/spark_sink/test_verify_results.py",
)

LAST_PYTHON: Final = {"3.5": (3, 11)}
"""Spark 3.5 needs distutils, which later ones do not have."""


@pytest.mark.parametrize("release", RELEASES)
def test_each_release_is_locked_in_the_version_that_the_connector_has(release: str) -> None:
    assert f"pyspark=={RELEASES[release].version} " in (LOCKS / f"{release}.lock").read_text()


def test_the_lock_files_have_the_default() -> None:
    assert f"\npyspark=={RELEASES[DEFAULT].version} " in (ROOT / "requirements.lock").read_text()


@cast(pytest.MarkDecorator, getattr(pytest.mark, "spark-versions"))
@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("release", RELEASES)
def test_the_store_suite_and_the_kills(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    if sys.version_info[:2] > LAST_PYTHON.get(release, (3, 99)):
        pytest.skip(f"Spark {release} does not run on this Python")
    python = python_with(release)
    words = ["-m", "pytest", "--verbose", "-p", "no:cacheprovider", "-m", "not long or spark-versions"]
    words += [f"--ignore={Path(__file__).relative_to(ROOT)}"]
    # What a release says about its own future is not ours to mend.
    words += ["-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning", *TESTS]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # As it runs, and not at its end: a run of an hour that is cut short has said what failed.
    with capsys.disabled():
        print(f"\nSpark {RELEASES[release].version}, with {python}", flush=True)
        done = subprocess.run([python, *words], cwd=ROOT, env=kept)
    assert done.returncode == 0, f"Spark {release}: what failed stands above"
