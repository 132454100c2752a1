"""The file of Spark's classes: written by one JVM, taken by the next ones, and left alone where it does not fit."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_ratchet.app.local import spark_classes
from kafka_ratchet.app.local.jars import spark_jars
from kafka_ratchet.app.local.spark_classes import OPTIONS, kept_classes, using, with_classes, write_classes

START = """
import sys
from kafka_ratchet.spark_sink.spark.session import spark_session

with spark_session("test", sys.argv[1:], "local[1]") as spark:
    print("rows", spark.range(5).count())
"""
WRITE = """
import os, shlex
first, *_ = shlex.split(os.environ["SPARK_SUBMIT_OPTS"])
open(first.partition("=")[2], "w").write("new")
"""
KEPT = "source: shared objects file (top)"
"""Words of Java's log about a class from the shared file, and not from one of its own."""


@pytest.fixture
def jars() -> list[Path]:
    """Return the jars that the tests have already."""
    return spark_jars()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RATCHET_CACHE", str(tmp_path / "cache"))
    for name in spark_classes.ASKED:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


def keep(cache: Path, content: bytes = b"classes") -> Path:
    """A file that passes for one that Java has written."""
    cache.mkdir(exist_ok=True)
    file = cache / f"{spark_classes._beginning()}-{hashlib.sha256(content).hexdigest()}.jsa"
    file.write_bytes(content)
    return file


def test_a_file_that_is_there_stands_before_the_users_options(cache: Path) -> None:
    before = {OPTIONS: "-Dmine=1", "OTHER": "x"}
    assert with_classes(before) == before
    file = keep(cache)
    assert kept_classes() == file
    assert with_classes(before) == {OPTIONS: f"{using(file)} -Dmine=1", "OTHER": "x"}
    assert with_classes({}) == {OPTIONS: using(file)}


@pytest.mark.parametrize("content", [b"", b"classe", b"classez", b"classes and more"])
def test_a_damaged_file_is_not_used(cache: Path, content: bytes) -> None:
    keep(cache).write_bytes(content)
    assert kept_classes() is None
    assert with_classes({OPTIONS: "-Dmine=1"}) == {OPTIONS: "-Dmine=1"}


def test_where_spark_is_elsewhere_or_there_is_no_java_nothing_is_added(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(cache)
    assert with_classes({"SPARK_REMOTE": "sc://host"}) == {"SPARK_REMOTE": "sc://host"}
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert with_classes({"OTHER": "x"}) == {"OTHER": "x"}


@pytest.mark.parametrize("name", spark_classes.ASKED)
@pytest.mark.parametrize("option", ["-XX:SharedArchiveFile=x.jsa", "-XX:ArchiveClassesAtExit=x.jsa", "-Xshare:off"])
def test_who_decides_by_options_of_his_own_is_left_alone(cache: Path, name: str, option: str) -> None:
    keep(cache)
    assert with_classes({name: f"-Dmine=1 {option}"}) == {name: f"-Dmine=1 {option}"}


def test_another_spark_and_another_java_have_files_of_their_own(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = keep(cache)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert kept_classes() is None
    theirs = keep(cache)
    assert kept_classes() == theirs
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    assert kept_classes() is None
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.delenv("JAVA_HOME")
    assert kept_classes() == ours


@pytest.mark.matrix
def test_spark_starts_with_the_classes_that_one_has_written(jars: list[Path], cache: Path, tmp_path: Path) -> None:
    shutil.copytree(jars[0].parent, cache / jars[0].parent.name)
    file = write_classes()
    assert file is not None
    assert file.parent == cache
    written = file.stat()
    assert write_classes() == file
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)  # once
    assert _kept_classes(tmp_path) > 1_000

    file.chmod(0o600)
    os.truncate(file, written.st_size // 2)
    assert _kept_classes(tmp_path) == 0
    assert len(os.listdir(cache)) == 2  # with the jars


def _kept_classes(folder: Path) -> int:
    """Start Spark as the command does; how many classes came from the file."""
    loaded = folder / "loaded"
    logged = {OPTIONS: f"-Xlog:class+load:file={loaded}"}
    with subprocess.Popen(
        [sys.executable, "-c", START, *map(str, spark_jars())],
        env=with_classes({**os.environ, **logged}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        said, _ = program.communicate()
    assert said.splitlines()[-1] == "rows 5"
    assert "[warning]" not in said
    return loaded.read_text().count(KEPT)


def test_a_java_that_writes_nothing_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xshare:off")
    monkeypatch.setattr(spark_classes, "_COMMAND", [sys.executable, "-c", "import time"])
    assert write_classes() is None
    assert os.listdir(cache) == []


def test_what_is_damaged_goes_when_it_is_written_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(cache).write_bytes(b"damaged")
    monkeypatch.setattr(spark_classes, "_COMMAND", [sys.executable, "-c", WRITE])
    file = write_classes()
    assert file is not None
    assert file.read_bytes() == b"new"
    assert os.listdir(cache) == [file.name]
