"""A real Kafka for all tests, and Kafka's own tools."""

from __future__ import annotations

import gc
import logging
import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import coverage
import pytest
import structlog
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from kafka_ratchet.app.local.broker import ChosenBroker, open_broker
from kafka_ratchet.app.local.jars import kafka_jars as resolve_kafka_jars
from kafka_ratchet.app.local.java import SHORT_LIVED, find_java
from kafka_ratchet.producers import create_topic
from tests.containers import docker_answers, kafka
from tests.quick import DEFAULT_MARKS, in_order, is_of_matrix, is_quick, runs_plain, scope, share_of

pytest_plugins = ["kafka_ratchet.testing.fixtures"]

# A machine at work is no fault of a test: examples may take as long as they take.
default = settings.default
assert default is not None
settings.register_profile(
    "facts",
    default,
    deadline=None,
    suppress_health_check=[*default.suppress_health_check, HealthCheck.too_slow],
)
settings.load_profile("facts")

# Brokers and Sparks of tests: a Kafka with little to do needs half of the processor time to start.
os.environ.setdefault("JAVA_TOOL_OPTIONS", SHORT_LIVED)
# Tests start hundreds of commands: each would compile every module of the clone anew, a fifth of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only the tests that take less than two minutes together")
    parser.addoption("--slow", action="store_true", help="only the tests that --quick leaves out")
    parser.addoption("--all", action="store_true", help="every test, also those marked matrix, long or browser")
    parser.addoption(
        "--plain-kernels", action="store_true", help="only the tests of what Numba compiles, as plain Python"
    )
    parser.addoption("--share", help="of the tests marked matrix, only share N of M: 3/8")
    parser.addoption("--quick-share", help="of the tests of --quick, only share N of M: 3/4")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all") and config.option.markexpr == DEFAULT_MARKS:
        config.option.markexpr = ""
    if config.getoption("--plain-kernels"):
        if os.environ.get("NUMBA_DISABLE_JIT") != "1":  # read when Numba is imported, which may be long before this
            raise pytest.UsageError("--plain-kernels: set NUMBA_DISABLE_JIT=1 as well")
        # Hashes multiply modulo 2^64: of NumPy's numbers too, which say so.
        config.addinivalue_line("filterwarnings", "ignore:overflow encountered in scalar:RuntimeWarning")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Save the coverage of a test process before pytest-xdist can kill it.

    pytest-xdist waits ten seconds for a process to exit. At high load an exit takes longer, and the file of coverage,
    which is written at the exit, was lost.
    """
    if hasattr(config, "workerinput") and (measured := coverage.Coverage.current()) is not None:
        measured.save()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    options: dict[str, Callable[[pytest.Item], bool]] = {
        "--quick": is_quick,
        "--slow": lambda item: not is_quick(item),
        "--plain-kernels": runs_plain,
    }
    wanted = [chosen for option, chosen in options.items() if config.getoption(option)]
    for option, group in {"--share": is_of_matrix, "--quick-share": is_quick}.items():
        if share := config.getoption(option):
            try:
                wanted.append(share_of(group, share))
            except ValueError as error:
                raise pytest.UsageError(f"{option} {share}: {error}") from None
    for chosen in wanted:
        config.hook.pytest_deselected(items=[item for item in items if not chosen(item)])
        items[:] = [item for item in items if chosen(item)]
    items[:] = in_order(items)


class _FilesTogether(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist`
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: LoadFileScheduling) -> None:
    """End the run if a test process dies.

    pytest-xdist gives the files of the dead process to the others, with the test that ended it.
    """
    sched.config.hook.pytest_runtest_logreport(report=report)
    pytest.exit(f"a test process died in {crashitem}", returncode=3)


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """`--dist loadfile` gives some files to one process."""
    return _FilesTogether(config, log) if config.getvalue("dist") == "loadfile" else None


_configure = structlog.configure


def _configure_without_cache(**chosen: Any) -> None:
    """A logger that keeps what was set up when it was first used would tell each test what an earlier one chose."""
    _configure(**{**chosen, "cache_logger_on_first_use": False})


structlog.configure = _configure_without_cache  # type: ignore[assignment] # it passes on what it is given


@pytest.fixture(autouse=True)
def _logging_of_this_test() -> Iterator[None]:
    """A command that runs in the tests' process sets up logging, to a standard error that is closed with its test."""
    level = logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.setLevel(level)
    for handler in logging.root.handlers[:]:
        if type(handler) is logging.StreamHandler:  # pytest's own ones are of other types
            logging.root.removeHandler(handler)


@pytest.fixture(scope="session")
def chosen_broker() -> Iterator[ChosenBroker]:
    with _in_docker() if not os.environ.get("RATCHET_BOOTSTRAP") and docker_answers() else open_broker() as chosen:
        yield chosen
        gc.collect()  # clients of tests that have ended would ask for it once a second, and say so


@contextmanager
def _in_docker() -> Iterator[ChosenBroker]:
    with kafka() as bootstrap:
        yield ChosenBroker(bootstrap, None)


@pytest.fixture(scope="session")
def broker(chosen_broker: ChosenBroker) -> str:
    """host:port of a running Kafka."""
    return chosen_broker.bootstrap


@pytest.fixture(scope="session")
def ratchet_broker(broker: str) -> str:
    """Return the broker for the fixtures of kafka_ratchet.testing."""
    return broker


@pytest.fixture(scope="session")
def broker_log_folder(chosen_broker: ChosenBroker) -> Path | None:
    """Kafka's log.dirs; None where the broker is not the embedded one."""
    return chosen_broker.log_folder


@pytest.fixture
def new_topic(broker: str, request: pytest.FixtureRequest) -> Callable[..., str]:
    """new_topic(partitions=4, **topic_config) creates a topic of an unused name and returns the name."""
    # A query of Spark keeps the frames of its test, and this client with them. When the broker has stopped, it would
    # print two lines a second until the last test process ends.
    admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
    test = re.sub(r"[^A-Za-z0-9_-]", "-", request.node.name)[:80]

    def create(partitions: int = 4, **config: Any) -> str:
        name = f"{test}-{uuid.uuid4().hex[:8]}"
        # Many records have a time of the seventies. By default Kafka deletes those with its next look, in five minutes.
        settings = {"retention.ms": "-1"} | {key.replace("_", "."): str(value) for key, value in config.items()}
        create_topic(admin, name, partitions=partitions, config=settings, timeout_s=60, say=print)
        deadline = time.monotonic() + 90
        while not _answers(admin, name, partitions):  # the answer may come before the broker itself knows
            assert time.monotonic() < deadline, f"{name} has no leaders"
            time.sleep(0.02)
        return name

    return create


def _answers(admin: AdminClient, name: str, partitions: int) -> bool:
    """Return True if the leader of each partition answers with its end.

    A broker names leaders before they lead: who asks the leader itself then still gets NOT_LEADER_FOR_PARTITION.
    """
    if len(admin.list_topics(name, timeout=60).topics[name].partitions) != partitions:
        return False
    ask = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
    return all(future.exception(timeout=60) is None for future in admin.list_offsets(ask).values())


@pytest.fixture(scope="session")
def kafka_jars() -> list[Path]:
    """Class path of Kafka's own tools."""
    return resolve_kafka_jars()


@pytest.fixture(scope="session")
def kafka_tool(kafka_jars: list[Path]) -> Callable[..., str]:
    """kafka_tool(main class, *arguments, given=standard input) runs one of Kafka's tools and returns what it prints.

    org.apache.kafka.tools.DumpLogSegments, org.apache.kafka.tools.consumer.ConsoleConsumer, ...
    """

    def run(*arguments: object, given: str = "") -> str:
        command = [str(find_java()), "-Xmx256m", "-cp", ":".join(map(str, kafka_jars)), *map(str, arguments)]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{arguments[0]} failed:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
