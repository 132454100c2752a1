"""The `ratchet` script at the root: what it says when something is missing, and what it hands over.

The environment it makes is stood in for by a recording `python`; the real installation is what a fresh clone does.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-dev.lock")
TOOLS = ("sh", "cat", "cksum", "dirname", "env", "head", "mkdir", "readlink", "rm", "sed", "cp", "chmod")

JAVA = """#!/bin/sh
echo 'openjdk version "{version}" 2025-04-15' >&2
"""

PYTHON = """#!/bin/sh
# Takes part in making an environment as python does, and writes down what it is asked.
case "$*" in
    -c* | "-m compileall "*) exit 0 ;;
    "-m venv --clear "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
    "-m pip "*) [ -z "${{PIP_FAILS:-}}" ] || exit 1 ;;
esac
echo "$*" >>"{record}"
if [ -n "${{SHOW:-}}" ]; then
    case "$*" in "-m kafka_ratchet setup") ;; "-m kafka_ratchet"*|"-m pytest"*)
        echo "cwd=$(pwd -P)"; echo "pid=$$"; env ;;
    esac
fi
if [ "$*" = "-m kafka_ratchet setup" ] && [ -n "${{SETUP_FAILS:-}}" ]; then exit 3; fi
if [ "$*" = "-m kafka_ratchet fail" ]; then exit 9; fi
case "$*" in
    "-m coverage report") [ -z "${{BELOW_GATE:-}}" ] || exit 2 ;;
    "-m coverage run -m pytest "*) [ -z "${{TESTS_FAIL:-}}" ] || exit 1 ;;
esac
if [ "$*" = "-m kafka_ratchet wait" ]; then echo waiting; exec sleep 600; fi
"""


class Clone:
    """A copy of what the script needs, and a PATH of which every program is known."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a clone"
        self.programs = folder / "programs"
        self.record = folder / "record"
        (self.root / "app" / "local").mkdir(parents=True)
        self.programs.mkdir()
        for name in ("ratchet", *LOCKS, "app/local/jars.lock"):
            shutil.copy(ROOT / name, self.root / name)
        for tool in (*TOOLS, "pwd", "sleep"):
            found = shutil.which(tool)
            assert found is not None
            (self.programs / tool).symlink_to(found)
        self.environment = {"PATH": str(self.programs), "HOME": str(folder)}

    def program(self, name: str, script: str) -> None:
        (self.programs / name).write_text(script)
        (self.programs / name).chmod(0o755)

    def complete(self) -> Clone:
        self.program("java", JAVA.format(version="17.0.15"))
        self.program("python3.12", PYTHON.format(record=self.record))
        return self

    def run(
        self, *arguments: str, cwd: Path | None = None, script: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [script or self.root / "ratchet", *arguments],
            env={**self.environment, **variables},
            cwd=cwd or self.root,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def recorded(self) -> list[str]:
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        self.record.unlink(missing_ok=True)
        return lines


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def variables(output: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


def test_it_is_posix_shell() -> None:
    assert (ROOT / "ratchet").read_text().startswith("#!/bin/sh\n")
    assert os.access(ROOT / "ratchet", os.X_OK)
    subprocess.run(["sh", "-n", ROOT / "ratchet"], check=True)


def test_no_python_is_one_sentence(clone: Clone) -> None:
    clone.program("java", JAVA.format(version="17.0.15"))
    clone.program("python3", "#!/bin/sh\nexit 1\n")  # too old, or a shim without a Python
    done = clone.run("demo")
    assert done.returncode == 2
    assert done.stderr.startswith("ratchet: Python 3.11 or newer is needed")
    assert all(way in done.stderr for way in ("apt install", "dnf install", "brew install"))
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("version", "home", "start"),
    [
        (None, None, "ratchet: Kafka and Spark need Java 17 or newer and java does not run; install one"),
        ("11.0.2", None, "ratchet: Kafka and Spark need Java 17 or newer and java is Java 11; install one"),
        ("1.8.0_412", None, "ratchet: Kafka and Spark need Java 17 or newer and java is Java 8; install one"),
        ("21", "/nonexistent", "ratchet: Kafka and Spark need Java 17 or newer and /nonexistent/bin/java does not run"),
    ],
)
def test_no_java_that_will_do_is_one_sentence(clone: Clone, version: str | None, home: str | None, start: str) -> None:
    clone.program("python3.12", PYTHON.format(record=clone.record))
    if version is not None:
        clone.program("java", JAVA.format(version=version))
    if home is not None:
        clone.environment["JAVA_HOME"] = home
    done = clone.run("demo")
    assert done.returncode == 2
    assert done.stderr.startswith(start)
    assert all(way in done.stderr for way in ("apt install", "dnf install", "brew install"))
    assert done.stderr.count("\n") == 1
    assert clone.recorded() == []


def test_the_first_use_makes_the_environment_and_the_second_does_not(clone: Clone) -> None:
    clone.complete()
    venv = clone.root / ".venv"
    assert clone.run("worker", "--config", "a b.toml").returncode == 0
    assert clone.recorded() == [
        f"-m venv --clear {venv}",
        installed(clone, "requirements.lock"),
        "-m kafka_ratchet setup",
        "-m kafka_ratchet worker --config a b.toml",
    ]
    assert clone.run("web").returncode == 0
    assert clone.recorded() == ["-m kafka_ratchet web"]


def installed(clone: Clone, lock: str) -> str:
    return f"-m pip install --disable-pip-version-check --no-compile --require-hashes -r {clone.root}/{lock}"


def test_tests_add_the_developers_packages_to_what_runs(clone: Clone) -> None:
    clone.complete().run("demo")
    clone.recorded()
    done = clone.run("test", "-k", "one")
    assert "adding the developers' packages" in done.stderr
    assert clone.recorded() == [installed(clone, "requirements-dev.lock"), "-m pytest -k one"]
    clone.run("demo")
    clone.run("test")
    assert not [line for line in clone.recorded() if "pip" in line]  # one environment for both


def test_set_up_for_developers(clone: Clone) -> None:
    assert clone.complete().run("setup", "--dev").returncode == 0
    expected = [f"-m venv --clear {clone.root / '.venv'}", installed(clone, "requirements-dev.lock")]
    assert clone.recorded() == [*expected, "-m kafka_ratchet setup"]
    assert clone.run("setup", "--dev").returncode == 0
    assert clone.recorded() == ["-m kafka_ratchet setup"]


def test_the_documentation_needs_the_developers_packages(clone: Clone) -> None:
    done = clone.complete().run("docs", cwd=clone.programs)
    assert done.returncode == 0, done.stderr
    lines = clone.recorded()
    assert installed(clone, "requirements-dev.lock") in lines
    assert lines[-1] == "-m sphinx -W --keep-going -E -q docs build/site"
    assert f"{clone.root}/build/site" in done.stderr


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_of_a_release_builds_nothing(clone: Clone, option: str) -> None:
    built = clone.root / "dist" / "before.whl"
    built.parent.mkdir()
    built.touch()
    result = clone.run("release", option)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Usage: ./ratchet release\n")
    assert "wheel and sdist" in result.stdout
    assert "Example: " in result.stdout
    assert built.exists()
    assert not clone.record.exists(), "no environment is made"


def test_a_release_takes_no_arguments(clone: Clone) -> None:
    result = clone.run("release", "--dry-run")
    assert result.returncode == 2
    assert "takes no argument '--dry-run'" in result.stderr
    assert not clone.record.exists()


def test_an_environment_for_developers_follows_their_lock(clone: Clone) -> None:
    clone.complete().run("setup", "--dev")
    clone.recorded()
    for lock, remade in (("requirements.lock", False), ("requirements-dev.lock", True)):
        with (clone.root / lock).open("a") as file:
            file.write("# changed\n")
        clone.run("web")
        lines = clone.recorded()
        assert (installed(clone, "requirements-dev.lock") in lines) == remade
        assert lines[-1] == "-m kafka_ratchet web"


def test_a_developers_set_up_that_was_cut_short_starts_again(clone: Clone) -> None:
    clone.complete().run("demo")
    clone.environment["PIP_FAILS"] = "1"
    assert clone.run("test").returncode == 2
    del clone.environment["PIP_FAILS"]
    clone.recorded()
    assert clone.run("test", "x").returncode == 0
    assert installed(clone, "requirements-dev.lock") in clone.recorded()


def test_the_runtimes_lock_is_a_part_of_the_developers() -> None:
    """The same versions by the same hashes. Conditions may differ: a tool may want a package in more places."""
    runtime, developers = (packages_of(ROOT / lock) for lock in LOCKS)
    assert runtime.items() <= developers.items()
    tools = {"pytest", "hypothesis", "mypy", "ruff", "moto", "selenium", "tables", "hatchling"}
    assert tools <= developers.keys()
    assert not tools & runtime.keys()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_place(lock: str) -> None:
    """It says which packages by their hashes, not where whoever made it got them from."""
    assert not re.search(r"://|--(extra-)?index|--find-links|file:|^-e |^/", (ROOT / lock).read_text(), re.MULTILINE)


def packages_of(lock: Path) -> dict[str, set[str]]:
    """Name to version and hashes."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in lock.read_text().splitlines():
        if line.strip().startswith("#"):
            continue
        if not line.startswith(" "):
            name = line.partition("==")[0]
        found.setdefault(name, set()).add(line.strip().rstrip(" \\").partition(" ;")[0])
    return found


def test_uv_is_used_where_there_is_one(clone: Clone) -> None:
    clone.complete()
    clone.program(
        "uv",
        f'#!/bin/sh\necho "uv $*" >>"{clone.record}"\n[ "$1" != venv ] || exec "$4" -m venv --clear "$5"\n',
    )
    assert clone.run("web").returncode == 0
    venv = clone.root / ".venv"
    recorded = clone.recorded()
    assert recorded[0] == f"uv venv --clear --python {clone.programs}/python3.12 {venv}"
    assert (
        f"uv pip sync --compile-bytecode --python {venv}/bin/python --require-hashes {clone.root}/requirements.lock"
        in recorded
    )
    assert recorded[-1] == "-m kafka_ratchet web"


@pytest.mark.parametrize("cut_short", ["PIP_FAILS", "SETUP_FAILS"])
def test_a_set_up_that_was_cut_short_starts_again(clone: Clone, cut_short: str) -> None:
    clone.complete()
    clone.environment[cut_short] = "1"
    assert clone.run("web").returncode != 0
    del clone.environment[cut_short]
    assert "-m kafka_ratchet web" not in clone.recorded()
    assert clone.run("web").returncode == 0
    again = clone.recorded()
    assert again[-2:] == ["-m kafka_ratchet setup", "-m kafka_ratchet web"]
    assert any(line.startswith("-m pip") for line in again) == (cut_short == "PIP_FAILS")


@pytest.mark.parametrize(("lock", "made_again"), [("requirements.lock", True), ("app/local/jars.lock", False)])
def test_a_changed_lock_is_followed(clone: Clone, lock: str, made_again: bool) -> None:
    clone.complete().run("web")
    clone.recorded()
    with (clone.root / lock).open("a") as file:
        file.write("# changed\n")
    assert clone.run("web").returncode == 0
    lines = clone.recorded()
    assert any(line.startswith("-m venv") for line in lines) == made_again
    assert lines[-2:] == ["-m kafka_ratchet setup", "-m kafka_ratchet web"]


def test_the_environment_goes_where_it_is_told(clone: Clone, tmp_path: Path) -> None:
    home = tmp_path / "else where"
    assert clone.complete().run("web", RATCHET_HOME=str(home)).returncode == 0
    assert (home / ".venv" / "bin" / "python").exists()
    assert not (clone.root / ".venv").exists()


def test_a_command_keeps_folder_and_variables_and_finds_the_clone(clone: Clone, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(clone.root / "ratchet")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = clone.complete().run(
        "web", cwd=elsewhere, script=tmp_path / "link", SHOW="1", RATCHET_APP="mine", PYTHONPATH="/theirs"
    )
    shown = variables(done.stdout)
    assert shown["cwd"] == str(elsewhere)
    assert shown["PYTHONPATH"] == f"/theirs:{clone.root}"  # their own app/ before the clone's
    assert shown["PYTHONSAFEPATH"] == "1"
    assert shown["RATCHET_APP"] == "mine"


def test_tests_run_without_the_callers_settings(clone: Clone, tmp_path: Path) -> None:
    done = clone.complete().run(
        *("test", "-k", "a or b"),
        cwd=tmp_path,
        SHOW="1",
        RATCHET_APP="mine",
        RATCHET_STREAMS__EVENTS__INPUT="in",
        RATCHET_BOOTSTRAP="kafka:9092",
    )
    assert clone.recorded()[-1] == "-m pytest -k a or b"
    shown = variables(done.stdout)
    assert shown["cwd"] == str(clone.root)
    assert {name for name in shown if name.startswith("RATCHET_")} == {"RATCHET_BOOTSTRAP"}


SIDE_BY_SIDE = "--numprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0"


def test_all_tests_run_some_files_at_a_time(clone: Clone) -> None:
    clone.complete().run("test")
    assert clone.recorded()[-1] == f"-m pytest {SIDE_BY_SIDE}"
    assert clone.run("test", "--durations=60").returncode == 0
    assert clone.recorded() == [f"-m pytest {SIDE_BY_SIDE} --durations=60"]
    assert clone.run("test", "-k", "x", "--durations=60").returncode == 0
    assert clone.recorded() == ["-m pytest -k x --durations=60"]
    clone.run("test", "--slow", "-x")
    assert clone.recorded() == [f"-m pytest --slow {SIDE_BY_SIDE} -x"]
    clone.run("test", "--all", "-x")
    assert clone.recorded() == [f"-m pytest --all {SIDE_BY_SIDE} -x"]
    clone.run("test", "--quick", "-x")
    assert clone.recorded() == ["-m pytest --quick --numprocesses 2 --dist loadfile --max-worker-restart 0 -x"]


PLAIN_KERNELS = (
    "-m coverage run -m pytest --plain-kernels --quiet --numprocesses 2 tests/agents tests/tables tests/transport"
)


@pytest.mark.parametrize("words", [("--quick", "--coverage"), ("--coverage", "--quick")])
def test_coverage_of_the_quick_tests_has_a_gate(clone: Clone, words: tuple[str, str]) -> None:
    clone.complete().run("setup", "--dev")
    clone.recorded()
    assert clone.run("test", *words).returncode == 0
    assert clone.recorded() == [
        "-m coverage erase",
        "-m coverage run -m pytest --quick --numprocesses 2 --dist loadfile --max-worker-restart 0",
        PLAIN_KERNELS,
        "-m coverage combine --quiet",
        "-m coverage report",
    ]
    clone.environment["BELOW_GATE"] = "1"
    assert clone.run("test", *words).returncode == 2


def test_coverage_of_some_tests_has_none(clone: Clone) -> None:
    clone.complete().run("setup", "--dev")
    clone.recorded()
    clone.run("test", "--coverage", "tests/tables", "-x")
    recorded = clone.recorded()
    assert recorded[1] == "-m coverage run -m pytest tests/tables -x"
    assert recorded[-1] == "-m coverage report --fail-under=0"


def test_a_failed_test_fails_the_coverage_run_too(clone: Clone) -> None:
    clone.complete().run("setup", "--dev")
    clone.recorded()
    clone.environment["TESTS_FAIL"] = "1"
    assert clone.run("test", "--coverage").returncode == 1
    recorded = clone.recorded()
    assert PLAIN_KERNELS not in recorded
    assert recorded[-1] == "-m coverage report --fail-under=0"


def test_exit_codes_come_through(clone: Clone) -> None:
    assert clone.complete().run("fail").returncode == 9


def test_signals_reach_the_command(clone: Clone) -> None:
    clone.complete().run("web")
    with subprocess.Popen(
        [clone.root / "ratchet", "wait"], env=clone.environment, stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "waiting\n"
        command.send_signal(signal.SIGTERM)
        assert command.wait(60) == -signal.SIGTERM


MARIADB = ("mariadbd", "mariadb-install-db")


def ci_with_stubs(tmp_path: Path, environment: Path, ratchet: str) -> dict[str, str]:
    """Copy CI's script to a folder where its programs only write down how they are called; return its variables.

    ratchet: further lines of the stub of `./ratchet`.
    """
    clone, record, programs = tmp_path / "clone", tmp_path / "record", tmp_path / "programs"
    (clone / ".ci").mkdir(parents=True)
    for name in ("run", "subjects"):
        shutil.copy(ROOT / ".ci" / name, clone / ".ci" / name)
    # Those that it would install otherwise are there.
    for program in (
        clone / "ratchet",
        *(environment / ".venv" / "bin" / name for name in ("ruff", "mypy")),
        *(programs / n for n in ("chromium", "chromedriver", "initdb", "systemd-analyze", "python3.13", *MARIADB)),
    ):
        program.parent.mkdir(parents=True, exist_ok=True)
        more = ratchet if program.name == "ratchet" else ""
        program.write_text(f'#!/bin/sh\necho "$0 $*" >>"{record}"\n{more}')
        program.chmod(0o755)
    home = {} if environment == clone else {"RATCHET_HOME": str(environment)}
    return {"PATH": f"{programs}:{os.environ['PATH']}"} | home


def test_ending_ci_ends_its_tests(tmp_path: Path) -> None:
    clone, begun = tmp_path / "clone", tmp_path / "begun"
    lines = f'case $1 in test) echo $$ >"{begun}.new"; mv "{begun}.new" "{begun}"; exec sleep 600 ;; esac\n'
    variables = ci_with_stubs(tmp_path, clone, lines)
    with subprocess.Popen([clone / ".ci" / "run"], env=variables, stdout=subprocess.DEVNULL) as ci:
        deadline = time.monotonic() + 60
        while not begun.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        ci.terminate()
        assert ci.wait(60) == 128 + signal.SIGTERM
    test = Path("/proc") / begun.read_text().strip()
    while test.exists():
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)


@pytest.mark.parametrize("home", ["elsewhere", ""])
def test_ci_uses_the_environment_that_the_script_made(tmp_path: Path, home: str) -> None:
    clone, record = tmp_path / "clone", tmp_path / "record"
    environment = tmp_path / home if home else clone
    tools = [environment / ".venv" / "bin" / name for name in ("ruff", "mypy")]
    variables = ci_with_stubs(tmp_path, environment, "")
    done = subprocess.run([clone / ".ci" / "run"], env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = record.read_text().splitlines()
    told = [line.split("ratchet ")[1].strip() for line in lines if "/ratchet " in line]
    assert told.count("setup --dev") == 2  # for Python 3.13 beside what follows
    shares = "--share=1/8 --quick-share=1/4"  # the clone is no repository, and has no hash
    hangs = "-o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true"
    assert [each for each in told if each != "setup --dev"] == [
        "docs",
        "bench regress --rounds 1",
        f"test --quick --coverage {hangs}",
        f"test --all -m not long and not browser {shares} {hangs}",
        "test -m browser",
    ]
    assert [line for line in lines if ".venv" in line] == [
        f"{tools[0] if home else './.venv/bin/ruff'} check .",
        f"{tools[0] if home else './.venv/bin/ruff'} format --check .",
        f"{tools[1] if home else './.venv/bin/mypy'} ",
    ]


def test_subjects_of_commits(tmp_path: Path) -> None:
    message = tmp_path / "message"
    for subject, is_right in {
        "sink: name the columns": True,
        "Sink: name the columns": False,
        "sink: Name the columns": False,
        "name the columns": False,
        "sink: " + "x" * 67: False,
    }.items():
        message.write_text(f"{subject}\n\nThe reason, of any length" + "." * 80 + "\n")
        done = subprocess.run([ROOT / ".ci" / "subjects", message], capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0) == is_right, subject
