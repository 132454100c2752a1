"""Class file for Spark: an archive of its loaded classes, for quicker starts (Java's class data sharing, JEP 350).

Each start of Spark reads and checks some 20,000 classes from 250 jars. `ratchet setup` lets one JVM do that and write
the loaded classes to a file; `ratchet sink` passes the file to each JVM that it starts. Java uses the file only with
the same Java and the same, unchanged jars at the same paths; otherwise it starts without the file.

A truncated file would end Java with a signal (seen with Java 17). So a file is used only if its content has the SHA-256
in its name; to check the 160 MB takes 0.2 s.
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
"""Parts of the JVM options for a class file of the user's own.

If one of them is set, Ratchet passes no class file, because Java refuses two.
"""
ASKED: Final = (OPTIONS, "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS")
"""Environment variables that may contain options of the JVM."""
WRITTEN_WITHIN_S: Final = 900.0
"""Maximum seconds to write the class file. It takes half a minute on a quiet machine, and minutes on a busy one."""
LOOK_S: Final = 0.1
_COMMAND: Final = (sys.executable, "-m", "kafka_ratchet.app.local.spark_classes")
"""Command that runs `_work` in Spark."""


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
    """Return the environment variables for a process that starts Spark, with the option for the class file.

    They are unchanged without a class file, with the user's own one, and with a JVM elsewhere (Spark Connect).

    environment: the process's variables; this dict is not changed
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
    """Return the Java options that use a class file, quoted as one text.

    Spark splits the text like a shell.
    """
    return shlex.join([f"-XX:SharedArchiveFile={file}", QUIET])


def write_classes() -> Path | None:
    """Write the class file, unless it exists, by running Spark once on a few rows.

    Returns:
        path of the file; None if Spark did not start, or Java wrote no file; later starts of Spark then do without
        the file

    Raises:
        SetupError: Java is missing or too old.
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
    """Run the typical work of a job in Spark, without Kafka.

    So the JVM loads the classes that it writes to the file.
    """
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
