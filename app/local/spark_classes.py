"""Spark's classes as one JVM has loaded them, kept for the next ones (Java's class data sharing, JEP 350).

Each start of Spark reads some 20,000 classes out of 250 jars and checks them. `ratchet setup` has one JVM do that and
write down the result; `ratchet sink` hands the file to the JVMs that it starts. Java takes it only where it fits: the
same Java, the same jars in the same places, none of them changed. Otherwise it starts without the file.

A truncated file ends Java with a signal (seen with Java 17), so a file is used only if its content has the SHA-256 in
its name. That takes 0.2 s for the 160 MB.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from kafka_ratchet.app.local.jars import cache_folder, spark_jars
from kafka_ratchet.app.local.java import find_java
from kafka_ratchet.errors import SetupError
from kafka_ratchet.spark_sink.spark.session import REMOTE

ENDING: Final = ".jsa"
OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Variable with options for the driver's JVM, which Spark puts before its configured ones."""
QUIET: Final = "-Xlog:cds*=off"
"""JVM option that silences messages about an unfit file."""
OF_THE_USER: Final = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare")
"""Options of a user's own archive, which is left alone: two such files at once are an error to Java."""
ASKED: Final = (OPTIONS, "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS")
"""Variables that may have such options."""
WRITTEN_WITHIN_S: Final = 900.0
"""It takes half a minute on a quiet machine, the start of Spark included, and minutes where others work."""
LOOK_S: Final = 0.1
_COMMAND: Final = (sys.executable, "-m", "kafka_ratchet.app.local.spark_classes")
"""Runs `_work`."""


def kept_classes() -> Path | None:
    """Return the complete class file for this Java and this pyspark; None without one.

    Raises:
        SetupError: Java is missing or too old.
    """
    return next((file for file in _files() if _is_whole(file)), None)


def _files() -> list[Path]:
    return sorted(cache_folder().glob(f"{_beginning()}-*{ENDING}"))


def _beginning() -> str:
    """Return the prefix of the class file's name, which depends on Java and pyspark."""
    import pyspark

    java = find_java().resolve()
    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    known = f"{java} {java.stat().st_mtime_ns} {home} {pyspark.__version__}"
    return f"spark-classes-{hashlib.sha256(known.encode()).hexdigest()[:12]}"


def _is_whole(file: Path) -> bool:
    try:
        return file.name.endswith(f"-{_digest(file)}{ENDING}")
    except OSError:  # another process has replaced it
        return False


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def with_classes(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a process that starts Spark, with the option for the class file added if it exists.

    environment: the variables; not changed
    """
    changed = dict(environment)
    file: Path | None = None
    if REMOTE in environment or any(word in environment.get(name, "") for name in ASKED for word in OF_THE_USER):
        return changed
    with suppress(SetupError):  # the start of Spark reports the missing Java
        file = kept_classes()
    if file is not None:
        changed[OPTIONS] = f"{using(file)} {environment.get(OPTIONS, '')}".rstrip()
    return changed


def using(file: Path) -> str:
    """Return Java's options for using a class file, quoted for Spark, which splits them like a shell."""
    return shlex.join([f"-XX:SharedArchiveFile={file}", QUIET])


def write_classes() -> Path | None:
    """Write the class file, unless it exists, by running Spark once on a few rows.

    Returns:
        the file; None if Spark did not start or this Java wrote no file; later starts then work without the file

    Raises:
        SetupError: Java is missing.
        OSError: the cache folder cannot be written to.
    """
    if (file := kept_classes()) is not None:
        return file
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    damaged = _files()
    new = folder / f"{_beginning()}.{os.getpid()}"
    try:
        if write_down(_COMMAND, {}, new):
            file = folder / f"{_beginning()}-{_digest(new)}{ENDING}"
            for other in damaged:
                other.unlink(missing_ok=True)
            new.replace(file)  # whole or not at all: another process may start Spark now
    finally:
        new.unlink(missing_ok=True)
    return file


def write_down(command: Sequence[str], variables: Mapping[str, str], file: Path) -> bool:
    """Run a program that starts Spark, and let its JVM write the loaded classes to a file.

    Args:
        command: the program and its arguments
        variables: further variables of its environment
        file: file to write

    Returns:
        True if the program succeeded, and the file exists
    """
    given = variables.get(OPTIONS, os.environ.get(OPTIONS, ""))
    options = shlex.join([f"-XX:ArchiveClassesAtExit={file}", QUIET])
    here = {name: value for name, value in os.environ.items() if name != REMOTE}  # the JVM is elsewhere then
    deadline = time.monotonic() + WRITTEN_WITHIN_S
    with subprocess.Popen(
        command,
        env={**here, **variables, OPTIONS: f"{options} {given}".rstrip()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as program:
        with suppress(subprocess.TimeoutExpired):
            program.wait(WRITTEN_WITHIN_S)
        try:
            # The JVM is a child of the program, in its process group, and writes the file when the program has ended.
            while time.monotonic() < deadline:
                os.killpg(program.pid, 0)
                time.sleep(LOOK_S)
            os.killpg(program.pid, signal.SIGKILL)
        except ProcessLookupError:
            return program.returncode == 0 and file.is_file()
    return False


def _work() -> None:
    """Run typical work of a job in Spark without Kafka, so that Java loads the classes to write."""
    from pyspark.sql import functions as F

    from kafka_ratchet.spark_sink.spark.session import spark_session

    with spark_session("ratchet setup", [str(jar) for jar in spark_jars()]) as spark:
        values = spark.createDataFrame([(1, '{"user": "a", "amount": 1.5}'), (2, "none")], "offset long, value string")
        parsed = F.from_json("value", "user string, amount double")
        rows = values.repartition(2).select("offset", parsed.alias("row")).where("offset > 0").cache()
        rows.mapInArrow(lambda batches: batches, "offset long, row struct<user: string, amount: double>").collect()
        rows.groupBy("row.user").agg(F.count("*"), F.sum("row.amount")).orderBy("user").collect()
        rows.write.format("noop").mode("append").save()


if __name__ == "__main__":
    _work()
