"""Java is found, and an old or broken one is refused with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ratchet.app.local.java import OLDEST_JAVA, find_java, java_version
from kafka_ratchet.errors import SetupError


def java_home(folder: Path, script: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return folder


def test_the_java_of_this_machine_is_new_enough() -> None:
    assert java_version(str(find_java())) >= OLDEST_JAVA


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "1.8.0_412"', 8),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion=1\nopenjdk version "25.0.1" 2025-10-21', 25),
    ],
)
def test_versions_as_vendors_write_them(tmp_path: Path, said: str, version: int) -> None:
    home = java_home(tmp_path, f"cat >&2 <<'END'\n{said}\nEND")
    assert java_version(str(home / "bin" / "java")) == version


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_home(tmp_path, """echo 'openjdk version "99"' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == home / "bin" / "java"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("""echo 'openjdk version "11.0.2"' >&2""", "is Java 11; Kafka and Spark need 17 or newer.*apt install"),
        ("exit 1", "does not run.*apt install"),
        ("echo hello", "printed no version of Java, but 'hello'"),
    ],
)
def test_a_java_that_will_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, sentence: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, script)))
    with pytest.raises(SetupError, match=sentence):
        find_java()


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"no Java on PATH.*apt install.*dnf install.*brew install"):
        find_java()
