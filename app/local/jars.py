"""Jars that Ratchet runs: the Kafka broker with its tools, and Spark's Kafka connector.

Apache Ivy, which pyspark ships, fetches them once from Maven Central into the user's cache folder, or into
`RATCHET_CACHE`. Later starts need no network. `app/local/jars.lock` has each jar's path in Maven Central and its
SHA-256. At each start, a jar in the cache that differs from the lock is fetched again; a fetched jar that differs is
refused.

After raising a version:

    python -m kafka_ratchet.app.local.jars > jars.lock.new && mv jars.lock.new app/local/jars.lock
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from rich.console import Console

from kafka_ratchet.app.local import ivy
from kafka_ratchet.app.local.fetch_display import fetch_display
from kafka_ratchet.errors import SetupError
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.spark.versions import RELEASES, SparkRelease, installed_release

__all__ = ["KAFKA", "KAFKA_VERSION", "JarSet", "cache_folder", "kafka_jars", "resolve", "spark_jars"]

KAFKA_VERSION = "4.3.0"

LOCK_FILE = Path(__file__).with_name("jars.lock")


@dataclass(frozen=True)
class JarSet:
    """Set of jars on one class path: some modules with all their dependencies."""

    name: str
    coordinates: tuple[str, ...]
    """organisation:module:revision of each module."""
    left_out: tuple[str, ...] = ()
    """organisation:module of dependencies to omit; * stands for any module."""


KAFKA = JarSet(
    "kafka",
    (
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
        # The broker logs through slf4j 1.7; its own distribution adds this binding, its published dependencies do not.
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ),
    # The tools depend on all of Kafka Connect with its web server, 40 jars; the ones used here do without.
    (
        "*:connect-api",
        "*:connect-json",
        "*:connect-runtime",
        "*:connect-transforms",
        "com.fasterxml.jackson.jakarta.rs:*",
    ),
)


def kafka_jars(console: Console | None = None) -> list[Path]:
    """Return the jars of the broker and of Kafka's tools; see `resolve`."""
    return resolve(KAFKA, console)


def spark_jars(console: Console | None = None, release: SparkRelease | None = None) -> list[Path]:
    """Return the jars that PySpark needs in addition to its own, to read from Kafka; see `resolve`.

    Args:
        console: see `resolve`.
        release: release of Spark; by default the installed pyspark's.

    Raises:
        SetupError: see `resolve`; or Ratchet's job was not tested on that release.
    """
    try:
        return resolve(spark_set(release or installed_release()), console)
    except OptionRefused as error:
        raise SetupError(str(error)) from None


def spark_set(release: SparkRelease) -> JarSet:
    """Return the jars of the Kafka connector for a release of Spark."""
    # pyspark ships these in the very same versions.
    shipped = (
        "org.apache.hadoop:*",
        "org.scala-lang:*",
        "org.scala-lang.modules:*",
        "org.slf4j:*",
        "org.lz4:*",
        "at.yawk.lz4:*",
        "org.xerial.snappy:*",
        "com.google.code.findbugs:*",
        f"org.apache.spark:spark-tags_{release.scala}",
    )
    return JarSet(f"spark-{release.version}", (release.connector,), shipped)


def cache_folder() -> Path:
    """Return the folder of `RATCHET_CACHE`, else the user's cache folder on this platform."""
    named = os.environ.get("RATCHET_CACHE")
    return Path(named).expanduser().resolve() if named else platformdirs.user_cache_path("ratchet", appauthor=False)


def resolve(jars: JarSet, console: Console | None = None, *, lock: Mapping[str, str] | None = None) -> list[Path]:
    """Return a set's jars, verified by SHA-256; fetch missing or damaged jars first.

    Args:
        jars: set to resolve.
        console: console for the progress; by default on standard error.
        lock: SHA-256 of each jar, by Maven path or by file name; None: the set's part of `app/local/jars.lock`.

    Raises:
        SetupError: Java is missing, the jars cannot be fetched or stored, or a fetched one differs from the lock.
    """
    lock = read_lock(jars.name) if lock is None else lock
    locked = _by_file_name(lock)
    console = console or Console(stderr=True)
    # Named after its content: two versions of Ratchet on one machine do not fight over one folder.
    content = hashlib.sha256("".join(f"{name}{digest}" for name, digest in sorted(locked.items())).encode()).hexdigest()
    folder = cache_folder() / f"{jars.name}-{content[:12]}"
    if not _differing(folder, locked):
        return [folder / name for name in sorted(locked)]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_process_at_a_time(folder.with_name(f"{jars.name}.lock"), console):
            if _differing(folder, locked):  # another process may have fetched them in between
                _fetch_and_verify(jars, folder, lock, console)
    except OSError as error:
        raise SetupError(
            f"the {jars.name} jars cannot be stored in {folder.parent}: {error}. Free some space there or name another "
            "folder in RATCHET_CACHE"
        ) from error
    return [folder / name for name in sorted(locked)]


def read_lock(name: str, file: Path = LOCK_FILE) -> dict[str, str]:
    """Return the SHA-256 of each jar of one set, by Maven path, from a lock file."""
    locked = {}
    for line in file.read_text("ascii").splitlines():
        if line and not line.startswith("#"):
            digest, path = line.split()
            jar_set, _, maven_path = path.partition("/")
            if jar_set == name:
                locked[maven_path] = digest
    if not locked:
        raise SetupError(
            f"{file} lists no jars of the set {name!r}: this installation of Ratchet is incomplete. Install it again"
        )
    return locked


def _by_file_name(lock: Mapping[str, str]) -> dict[str, str]:
    return {path.rpartition("/")[2]: digest for path, digest in lock.items()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _differing(folder: Path, locked: Mapping[str, str]) -> list[str]:
    """Return the names of the folder's jars that differ from the lock: missing, altered or not in the lock."""
    if not folder.is_dir():
        return sorted(locked)
    present = {path.name for path in folder.iterdir()}
    wrong = {name for name in present & locked.keys() if _sha256(folder / name) != locked[name]}
    return sorted(wrong | (present ^ locked.keys()))


@contextmanager
def _one_process_at_a_time(path: Path, console: Console) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"Another process fetches the same jars (lock: {path}); waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_and_verify(jars: JarSet, folder: Path, lock: Mapping[str, str], console: Console) -> None:
    locked = _by_file_name(lock)
    # Fixed names, under the lock: remains of a killed run are used (downloads) or discarded (the rest).
    downloads = folder.with_name(f"{jars.name}.downloads")
    partial = folder.with_name(f"{folder.name}.partial")
    replaced = folder.with_name(f"{folder.name}.replaced")
    for left_over in (partial, replaced):
        shutil.rmtree(left_over, ignore_errors=True)
    with fetch_display(f"Fetching the {jars.name} jars", len(locked), console) as display:
        if all("/" in path for path in lock):
            ivy.fetch(lock, downloads, partial, display)
        else:
            ivy.resolve_all(jars.coordinates, jars.left_out, downloads, f"{partial}/{ivy.FILES}", display)
    # Complete or wrong, they have served: a damaged jar must not be found there again.
    shutil.rmtree(downloads, ignore_errors=True)
    if differing := _differing(partial, locked):
        shutil.rmtree(partial, ignore_errors=True)
        raise SetupError(
            f"the jars fetched for {', '.join(jars.coordinates)} differ from {LOCK_FILE.name}: "
            f"{', '.join(differing[:5])}{', ...' if len(differing) > 5 else ''}. None of them is used. A proxy or "
            "mirror may have altered the jars; try again from another network"
        )
    if folder.exists():
        folder.rename(replaced)
    partial.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)


def lock_lines(jars: JarSet, console: Console) -> Iterator[str]:
    """Resolve and fetch a set again, and yield its lines of a lock file."""
    with tempfile.TemporaryDirectory(prefix="ratchet-lock-") as scratch:
        target = Path(scratch, "jars")
        with fetch_display(f"Resolving the {jars.name} jars", 50, console) as display:
            pattern = f"{target}/{ivy.MAVEN_PATHS}"
            ivy.resolve_all(jars.coordinates, jars.left_out, Path(scratch, "downloads"), pattern, display)
        for path in sorted(target.rglob("*.jar"), key=lambda path: path.name):
            yield f"{_sha256(path)}  {jars.name}/{path.relative_to(target)}"


def _write_lock() -> None:
    console = Console(stderr=True)
    print("# SHA-256 of every jar that Ratchet runs. Written by `python -m kafka_ratchet.app.local.jars`; do not edit.")
    for jars in (KAFKA, *map(spark_set, RELEASES.values())):
        print(*lock_lines(jars, console), sep="\n")


if __name__ == "__main__":
    _write_lock()
