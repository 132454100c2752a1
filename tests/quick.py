"""Tests of `./ratchet test --quick`, `--slow` and `--coverage`, and the files begun first: see CONTRIBUTING.

A line may be a folder, a file or one test.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import pytest

DEFAULT_MARKS: Final = "not long and not matrix"
"""Mark expression of the default tests, as in pyproject.toml; `--all` takes it away."""

HEAVY_FIXTURES: Final = frozenset(
    {"broker", "chosen_broker", "kafka_jars", "mariadb", "own_broker", "postgres", "s3", "spark", "three_nodes"}
)
"""Each takes longer to start than a hundred quick tests take to run."""

SLOW: Final = (
    "tests/app/compare/test_engine.py::test_a_comparison_in_want_of_memory_takes_fewer_rows_at_a_time",
    "tests/app/compare/test_engine.py::test_memory_does_not_grow_with_the_rows",
    "tests/app/demo/test_demo.py",
    "tests/app/local/test_broker.py",
    "tests/app/local/test_spark_classes.py::test_spark_starts_with_the_classes_that_one_has_written",
    "tests/app/test_extras.py",
    "tests/app/test_kafka_away.py",
    "tests/app/test_rights.py",
    "tests/app/test_secured.py",
    "tests/app/worker/",
    "tests/app/operations/",
    "tests/bench/",
    "tests/browser/",
    "tests/faults/",
    "tests/app/faust_host/test_words.py",
    "tests/producers/test_producer.py::test_kafka_that_goes_away_is_waited_for",
    "tests/spark_sink/spark/",
    "tests/test_wheel.py",
    "tests/transport/batch/test_fuzzed_batches.py::test_compiled_code_that_checks_its_bounds_finds_no_read_outside",
    "tests/transport/client/test_topic_id.py",
    "tests/transport/test_commit_path.py",
    "tests/transport/test_model_finds_replaced.py",
    "tests/transport/transactions/test_outcome.py",
)
"""Without such a fixture, and yet longer than a second or two: they start workers, brokers or Spark by themselves, or
search for long."""

FIRST: Final = (
    "tests/spark_sink/test_repair_results.py",
    "tests/app/operations/test_resume.py",
    "tests/spark_sink/test_verify_results.py",
    "tests/spark_sink/stores/test_sequences.py",
    "tests/spark_sink/stores/test_stores.py",
    "tests/spark_sink/test_from_input.py",
    "tests/spark_sink/test_spark_engine.py",
    "tests/spark_sink/rows/test_pipeline.py",
    "tests/app/faust_host/test_words.py",
    "tests/app/faust_host/test_everything.py",
    "tests/app/local/test_spark_classes.py",
    "tests/app/test_rights.py",
    "tests/app/worker/test_worker_startup.py",
    "tests/transport/test_commit_path.py",
    "tests/app/operations/test_policy.py",
    "tests/transport/transactions/test_outcome.py",
    "tests/transport/client/test_topic_id.py",
    "tests/app/worker/test_crash_points.py",
    "tests/app/local/test_broker.py",
    "tests/app/cli/test_publish.py",
    "tests/app/operations/test_repairs.py",
    "tests/app/operations/test_state.py",
    "tests/test_tutorial.py",
    "tests/app/demo/test_demo.py",
    "tests/testing/test_faust_once.py",
    "tests/app/verify/test_verify.py",
    "tests/transport/test_lane.py",
    "tests/transport/test_model_finds_replaced.py",
    "tests/test_layers.py",
)
"""Files that take longest, or begin a group of `TOGETHER` that does, longest first.

One process runs a file: begun last, it would run on alone.
"""

TOGETHER: Final = {
    "tests/spark_sink/files/": "parts of the job",
    "tests/spark_sink/job/": "parts of the job",
    "tests/spark_sink/rows/": "parts of the job",
    "tests/spark_sink/spark/": "parts of the job",
    "tests/spark_sink/stores/": "tests/spark_sink/stores",
    "tests/spark_sink/": "tests/spark_sink",
    "tests/transport/transactions/test_late_end.py": "three nodes",
    "tests/transport/transactions/test_outcome.py": "three nodes",
}
"""Files that one process runs, by how they begin, the longer beginnings first: each process would start another Spark,
or three more nodes. Spark's are three, or they would be the last to end."""

WITH_BROKER: Final = (
    "tests/app/worker/test_worker.py::test_worker_serves_hands_over_and_is_found",
    "tests/producers/test_async.py",
)
"""Worth a broker's ten seconds: the way of an event through one worker, and the producer."""

PLAIN: Final = (
    "tests/agents/test_arrow.py",
    "tests/agents/test_extraction.py",
    "tests/rule/",
    "tests/tables/map/",
    "tests/tables/test_activity.py",
    "tests/tables/test_number_forms.py::test_eight_printable_bytes_that_are_no_decimal_number_are_noticed",
    "tests/tables/test_number_forms.py::test_decimal_numbers_and_unprintable_bytes_raise_no_alarm",
    "tests/transport/batch/",
)
"""Tests of compiled passes, which run as plain Python too, so that coverage sees them, ..."""

COMPILED: Final = (
    "tests/tables/map/test_judge.py::test_a_map_that_grows_keeps_its_open_transaction",
    "tests/transport/batch/test_fuzzed_batches.py",
    "tests/transport/batch/test_kernels.py::test_no_read_leaves_its_batch",
    "tests/transport/batch/test_kernels.py::test_no_write_leaves_its_room",
)
"""... except where that takes long, or where they take the compiled function apart."""


def is_quick(item: pytest.Item) -> bool:
    """Return True if a test belongs to the quick ones."""
    if is_of_matrix(item):
        return False
    if item.nodeid.startswith(WITH_BROKER):
        return True
    return not item.nodeid.startswith(SLOW) and HEAVY_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def is_of_matrix(item: pytest.Item) -> bool:
    """Return True if a test is marked matrix."""
    return item.get_closest_marker("matrix") is not None


def share_of(group: Callable[[pytest.Item], bool], share: str) -> Callable[[pytest.Item], bool]:
    """Return a function: True for each test outside a group, and for a share of the group.

    All cases of a test function are in one share. Its name decides, so that a share is the same on every machine.

    Args:
        group: function, True for the tests of the group.
        share: number of the share, and how many there are: 3/8.

    Raises:
        ValueError: the share is no such pair of numbers.
    """
    first, _, second = share.partition("/")
    if not (first.isdigit() and second.isdigit() and 1 <= int(first) <= int(second)):
        raise ValueError("give two numbers such as 3/8; the first must not be the larger one")
    number, shares = int(first) - 1, int(second)
    return lambda item: not group(item) or zlib.crc32(item.nodeid.partition("[")[0].encode()) % shares == number


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """The longest files first, the others as they were."""
    place = {path: number for number, path in enumerate(FIRST)}
    return sorted(items, key=lambda item: place.get(item.nodeid.partition("::")[0], len(FIRST)))


def scope(nodeid: str) -> str:
    """Return the unit that one process runs: a file, or files that share a slow start."""
    return next((name for begin, name in TOGETHER.items() if nodeid.startswith(begin)), nodeid.partition("::")[0])


def runs_plain(item: pytest.Item) -> bool:
    """Return True if a test belongs to those of the compiled passes as plain Python."""
    return item.nodeid.startswith(PLAIN) and not item.nodeid.startswith(COMPILED) and is_quick(item)
