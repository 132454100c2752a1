"""Commands that start the peers in Java and Python, after fetching jars, compiling, or making an environment.

After raising a version: `python -m bench.peer_programs > jars.lock.new && mv jars.lock.new bench/jars.lock`.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from kafka_ratchet.app.local.jars import KAFKA_VERSION, JarSet, cache_folder, lock_lines, read_lock, resolve
from kafka_ratchet.app.local.java import find_java
from kafka_ratchet.errors import BenchFailed

LOCK_FILE: Final = Path(__file__).with_name("jars.lock")
PEERS: Final = Path(__file__).with_name("peers")
KAFKA_STREAMS: Final = JarSet("kafka-streams", (f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",))
FLINK_VERSION: Final = "2.0.2"
FLINK: Final = JarSet(
    "flink",
    (
        f"org.apache.flink:flink-clients:{FLINK_VERSION}",
        f"org.apache.flink:flink-connector-base:{FLINK_VERSION}",
        "org.apache.flink:flink-connector-kafka:4.0.1-2.0",
        f"org.apache.flink:flink-statebackend-rocksdb:{FLINK_VERSION}",
    ),
    # Flink brings the same classes in a newer version under another name.
    ("org.lz4:*",),
)
DELTA_SPARK: Final = JarSet(
    "delta-spark",
    ("io.delta:delta-spark_4.2_2.13:4.4.0",),
    # pyspark ships these.
    (
        "org.scala-lang:*",
        "org.antlr:*",
        *(f"org.apache.{name}:*" for name in ("spark", "hadoop", "parquet", "logging.log4j")),
        *(f"com.fasterxml.jackson.{name}:*" for name in ("core", "datatype")),
        *("org.slf4j:*", "org.xerial.snappy:*", "com.github.luben:*", "org.roaringbitmap:*", "io.airlift:*"),
        *("commons-logging:*", "commons-pool:*", "com.google.code.findbugs:*", "javax.annotation:*"),
    ),
)
"""Jars of Delta's own Spark writer, which jobs that write to a Delta table usually use."""
HEAP: Final = ("-Xms1g", "-Xmx4g")
"""JVM options for a heap that holds a cache of a million keys without extra garbage collections."""


def kafka_streams() -> list[str]:
    """Return the command of the Kafka Streams peer, without the argument with the task."""
    return _java_command("KafkaStreamsPeer", KAFKA_STREAMS)


def kafka_streams_totals() -> list[str]:
    """Return the command of the Kafka Streams peer that keeps totals, without the argument with the task."""
    return _java_command("KafkaStreamsTotals", KAFKA_STREAMS)


def flink() -> list[str]:
    """Return the command of the Flink peer, without the argument with the task."""
    return _java_command("FlinkPeer", FLINK)


def _java_command(name: str, jars: JarSet) -> list[str]:
    class_path = [str(path) for path in resolve(jars, lock=read_lock(jars.name, LOCK_FILE))]
    classes = _compiled_classes(name, class_path)
    return [str(find_java()), *HEAP, "-cp", ":".join([str(classes), *class_path]), name]


def _compiled_classes(name: str, class_path: list[str]) -> Path:
    source = PEERS / f"{name}.java"
    digest = hashlib.sha256(source.read_bytes() + "".join(class_path).encode()).hexdigest()[:12]
    folder = cache_folder() / f"bench-{name}-{digest}"
    if folder.is_dir():
        return folder
    javac = shutil.which("javac") or str(find_java().with_name("javac"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        target = Path(scratch) / "classes"
        command = [javac, "-Xlint:all", "-Werror", "-cp", ":".join(class_path), "-d", str(target), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise BenchFailed(f"{name} cannot be compiled: {error}. Install a JDK for the peers in Java") from None
        if done.returncode:
            raise BenchFailed(f"{name} cannot be compiled:\n{done.stdout}{done.stderr}")
        target.rename(folder)
    return folder


def quix() -> list[str]:
    """Return the command of the Quix Streams peer, without the argument with the task."""
    return _python_command("quix", "quix")


def quix_totals() -> list[str]:
    """Return the command of the Quix Streams peer that keeps totals, without the argument with the task."""
    return _python_command("quix", "quix_totals")


def _python_command(name: str, program: str) -> list[str]:
    # Isolated: modules importable here, by PYTHONPATH or from the working folder, belong to another
    # environment.
    return [str(_environment(name) / "bin" / "python"), "-I", "-u", str(PEERS / f"{program}.py")]


def _environment(name: str) -> Path:
    requirements = PEERS / f"{name}.requirements"
    version = "{}.{}.{}".format(*sys.version_info)
    digest = hashlib.sha256(requirements.read_bytes() + version.encode()).hexdigest()[:12]
    folder = cache_folder() / f"bench-{name}-{digest}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        target = Path(scratch) / "environment"
        _run_installer([sys.executable, "-m", "venv", str(target)], name)
        python = str(target / "bin" / "python")
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary=:all:"]
        _run_installer([python, "-m", "pip", "install", *options, "--requirement", str(requirements)], name)
        # Moved, it still runs: only the scripts in bin/ hold the old path, and none of them is used.
        target.rename(folder)
    return folder


def _run_installer(command: list[str], name: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BenchFailed(f"the environment of {name} cannot be made: {error}") from None
    if done.returncode:
        raise BenchFailed(f"the environment of {name} cannot be made:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    print("# SHA-256 of every jar of the bench's peers. Written by `python -m bench.peer_programs`; do not edit.")
    for one in (KAFKA_STREAMS, FLINK, DELTA_SPARK):
        print(*lock_lines(one, Console(stderr=True)), sep="\n")
