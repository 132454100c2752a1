"""Jars are fetched once, verified always, and refused when they are not what the lock says.

The fetching tests run the real Ivy against a repository folder of their own, so they need no network.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from pathlib import Path, PurePath

import pytest
from rich.console import Console

from kafka_ratchet.app.local.ivy import JARS_EACH
from kafka_ratchet.app.local.jars import (
    KAFKA,
    KAFKA_VERSION,
    JarSet,
    cache_folder,
    lock_lines,
    read_lock,
    resolve,
    spark_set,
)
from kafka_ratchet.errors import SetupError
from kafka_ratchet.spark_sink.spark.versions import RELEASES, installed_release

ROOT = Path(__file__).parents[3]

SET = JarSet("letters", ("org.example:alpha:1.0",), ("org.example:unwanted",))
ALPHA, BETA = b"alpha's content", b"beta's content"
NAMES = {"alpha-1.0.jar": hashlib.sha256(ALPHA).hexdigest(), "beta-2.0.jar": hashlib.sha256(BETA).hexdigest()}
LOCK = {f"org/example/{name.replace('-', '/')[:-4]}/{name}": digest for name, digest in NAMES.items()}


def publish(repository: Path, name: str, revision: str, content: bytes, *dependencies: tuple[str, str]) -> None:
    folder = repository / "local" / "org.example" / name / revision
    (folder / "jars").mkdir(parents=True)
    (folder / "jars" / f"{name}.jar").write_bytes(content)
    needed = "".join(
        f'<dependency org="org.example" name="{other}" rev="{version}" conf="default->default"/>'
        for other, version in dependencies
    )
    (folder / "ivys").mkdir()
    (folder / "ivys" / "ivy.xml").write_text(
        f'<ivy-module version="2.0"><info organisation="org.example" module="{name}" revision="{revision}"/>'
        '<configurations><conf name="default"/></configurations>'
        f'<publications><artifact name="{name}" conf="default"/></publications>'
        f"<dependencies>{needed}</dependencies></ivy-module>"
    )


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A repository that Ivy looks into first, and a cache of our own."""
    folder = tmp_path / "repository"
    publish(folder, "alpha", "1.0", ALPHA, ("beta", "2.0"), ("unwanted", "3.0"))
    publish(folder, "beta", "2.0", BETA)
    publish(folder, "unwanted", "3.0", b"unwanted")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Divy.default.ivy.user.dir={folder}")
    monkeypatch.setenv("RATCHET_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def quiet() -> Console:
    return Console(file=io.StringIO())


def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent all downloads from here on."""
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")


@pytest.mark.parametrize("lock", [LOCK, NAMES], ids=["by path", "by name"])
def test_jars_come_with_what_they_depend_on_and_are_kept(
    lock: dict[str, str], monkeypatch: pytest.MonkeyPatch, quiet: Console
) -> None:
    jars = resolve(SET, quiet, lock=lock)
    assert [jar.name for jar in jars] == ["alpha-1.0.jar", "beta-2.0.jar"]
    assert [jar.read_bytes() for jar in jars] == [ALPHA, BETA]
    assert all(jar.is_relative_to(cache_folder()) for jar in jars)

    no_java(monkeypatch)
    assert resolve(SET, quiet, lock=LOCK) == resolve(SET, quiet, lock=NAMES) == jars


def test_a_long_list_is_shared_and_comes_whole(repository: Path, quiet: Console) -> None:
    lock = {}
    for number in range(2 * JARS_EACH + 1):
        publish(repository, f"many-{number}", "1", content := f"content {number}".encode())
        lock[f"org/example/many-{number}/1/many-{number}-1.jar"] = hashlib.sha256(content).hexdigest()
    jars = resolve(SET, quiet, lock=lock)
    assert [jar.name for jar in jars] == sorted(f"many-{number}-1.jar" for number in range(2 * JARS_EACH + 1))


def test_what_the_lock_names_by_path_is_all_that_is_fetched(repository: Path, quiet: Console) -> None:
    """No description is needed: the lock was written from what they say."""
    publish(repository, "broken", "1", ALPHA, ("nowhere", "1"))
    jars = resolve(SET, quiet, lock={"org/example/broken/1/broken-1.jar": NAMES["alpha-1.0.jar"]})
    assert [jar.name for jar in jars] == ["broken-1.jar"]


def test_the_lock_is_written_from_what_the_set_depends_on(quiet: Console) -> None:
    assert list(lock_lines(SET, quiet)) == [f"{digest}  letters/{path}" for path, digest in LOCK.items()]


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    output = io.StringIO()
    resolve(SET, Console(file=output, force_terminal=False, width=40), lock=LOCK)
    lines = output.getvalue().splitlines()
    assert lines[0] == "Fetching the letters jars (2), once"
    assert sorted(lines[1:]) == ["  fetched 1 of 2: alpha 1.0", "  fetched 2 of 2: beta 2.0"]


def test_progress_is_a_bar_on_a_terminal() -> None:
    output = io.StringIO()
    resolve(SET, Console(file=output, force_terminal=True, width=120), lock=LOCK)
    assert "4/4" in output.getvalue()
    assert "fetched beta 2.0" in output.getvalue()


@pytest.mark.parametrize("damage", ["altered", "missing", "stranger"])
def test_a_damaged_cache_is_resolved_again(damage: str, quiet: Console) -> None:
    alpha, _ = resolve(SET, quiet, lock=LOCK)
    if damage == "altered":
        alpha.write_bytes(ALPHA[:5])
    elif damage == "missing":
        alpha.unlink()
    else:
        alpha.with_name("intruder.jar").write_bytes(b"on the class path")
    jars = resolve(SET, quiet, lock=LOCK)
    assert [jar.read_bytes() for jar in jars] == [ALPHA, BETA]
    assert sorted(path.name for path in alpha.parent.iterdir()) == sorted(NAMES)


def test_what_a_killed_run_left_behind_is_not_used(quiet: Console) -> None:
    folder = resolve(SET, quiet, lock=LOCK)[0].parent
    folder.rename(folder.with_name(f"{folder.name}.partial"))
    (folder.with_name(f"{folder.name}.partial") / "beta-2.0.jar").write_bytes(b"half")
    assert [jar.read_bytes() for jar in resolve(SET, quiet, lock=LOCK)] == [ALPHA, BETA]
    assert sorted(path.name for path in folder.parent.iterdir()) == sorted([folder.name, "letters.lock"])


def test_an_altered_jar_is_refused(repository: Path, quiet: Console) -> None:
    (repository / "local/org.example/beta/2.0/jars/beta.jar").write_bytes(b"something else")
    with pytest.raises(SetupError, match=r"org\.example:alpha:1\.0 differ from jars\.lock: beta-2\.0\.jar"):
        resolve(SET, quiet, lock=LOCK)
    assert not list(cache_folder().rglob("*.jar"))


def test_a_jar_that_the_lock_does_not_know_is_refused(quiet: Console) -> None:
    with pytest.raises(SetupError, match=r"beta-2\.0\.jar"):
        resolve(SET, quiet, lock={"alpha-1.0.jar": NAMES["alpha-1.0.jar"]})


def test_jars_that_cannot_be_fetched_say_what_ivy_said(repository: Path, quiet: Console) -> None:
    (repository / "local/org.example/beta/2.0/jars/beta.jar").unlink()
    with pytest.raises(SetupError, match=r"(?s)could not be fetched.*proxy.*beta"):
        resolve(SET, quiet, lock=LOCK)


def test_a_cache_that_cannot_be_written_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: Console
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RATCHET_CACHE", str(tmp_path / "file"))
    with pytest.raises(SetupError, match="RATCHET_CACHE"):
        resolve(SET, quiet, lock=LOCK)


def test_two_processes_at_once(tmp_path: Path) -> None:
    code = f"from kafka_ratchet.app.local.jars import *\nprint(*resolve({SET!r}, lock={LOCK!r}))"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for _ in range(2)
    ]
    printed = {process.communicate(timeout=120)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    (paths,) = printed
    assert [Path(path).read_bytes() for path in paths.split()] == [ALPHA, BETA]


def named(lock: dict[str, str]) -> set[str]:
    return {PurePath(path).name for path in lock}


def test_the_lock_covers_each_set_in_the_versions_it_names() -> None:
    kafka = read_lock("kafka")
    assert {f"kafka_2.13-{KAFKA_VERSION}.jar", f"kafka-tools-{KAFKA_VERSION}.jar"} <= named(kafka)
    for jars in (KAFKA, *map(spark_set, RELEASES.values())):
        locked = read_lock(jars.name)
        for coordinate in jars.coordinates:
            organisation, name, revision = coordinate.split(":")
            assert f"{organisation.replace('.', '/')}/{name}/{revision}/{name}-{revision}.jar" in locked


def test_spark_gets_no_jar_that_pyspark_ships() -> None:
    import pyspark

    shipped = {path.name for path in Path(pyspark.__file__).with_name("jars").iterdir()}
    assert not shipped & named(read_lock(spark_set(installed_release()).name))


def test_the_real_jars_are_what_the_lock_says(kafka_jars: list[Path]) -> None:
    locked = {PurePath(path).name: digest for path, digest in read_lock("kafka").items()}
    assert {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in kafka_jars} == locked


def test_a_set_without_lock_lines_is_refused() -> None:
    with pytest.raises(SetupError, match="lists no jars of the set 'letters'"):
        read_lock("letters")
