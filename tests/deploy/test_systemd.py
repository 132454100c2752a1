"""deploy/systemd: units that systemd accepts, and commands that are ours."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from kafka_ratchet.app.settings import OTHER_VARIABLES, Settings
from kafka_ratchet.app.worker.process import STOP_WITHIN_S

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
PROGRAM = "/opt/ratchet/.venv/bin/ratchet"
WORST = 3.0
"""`systemd-analyze security` says OK up to here, of 10; a unit without any limits has 9.6."""


@pytest.fixture
def analyze(tmp_path: Path) -> Path:
    """systemd-analyze, and in tmp_path the units, with a program that is there in the place of the installed one."""
    found = shutil.which("systemd-analyze")
    assert found is not None, "there is no systemd-analyze: apt-get install systemd (Debian, Ubuntu), as .ci/run does"
    for unit in UNITS:
        name = unit.name.replace("@", "@1")  # an instance
        (tmp_path / name).write_text(unit.read_text("utf-8").replace(PROGRAM, "/bin/true"), "utf-8")
    return Path(found)


def test_the_units_are_there() -> None:
    assert [unit.name for unit in UNITS] == [
        "ratchet-sink.service",
        "ratchet-sink@.service",
        "ratchet-web.service",
        "ratchet-worker@.service",
    ]


def test_systemd_accepts_them(analyze: Path, tmp_path: Path) -> None:
    units = sorted(tmp_path.glob("*.service"))
    done = subprocess.run([analyze, "verify", "--man=no", *units], capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if "ratchet" in line] == []
    assert done.returncode == 0, done.stderr


def test_systemd_refuses_a_misspelt_setting(analyze: Path, tmp_path: Path) -> None:
    unit = tmp_path / "ratchet-web.service"
    unit.write_text(unit.read_text("utf-8").replace("NoNewPrivileges=", "NoNewPrivilege="), "utf-8")
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True)
    assert "NoNewPrivilege" in done.stderr


@pytest.mark.parametrize("name", ["ratchet-sink", "ratchet-sink@1", "ratchet-web", "ratchet-worker@1"])
def test_a_unit_may_do_little(name: str, analyze: Path, tmp_path: Path) -> None:
    command = [str(analyze), "security", "--offline=true", "--no-pager", str(tmp_path / f"{name}.service")]
    done = subprocess.run(command, capture_output=True, text=True)
    said = re.search(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    assert said is not None, done.stderr
    assert float(said[1]) <= WORST, done.stdout


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_its_command_is_one_of_ours(unit: Path) -> None:
    """Parsed by the command line itself, up to where it would run."""
    from typer.main import get_command

    from kafka_ratchet.app.cli import cli

    (command,) = values(unit, "ExecStart")
    program, name, *options = shlex.split(command)
    assert program == PROGRAM
    found = get_command(cli).commands[name]  # type: ignore[attr-defined]
    with found.make_context(name, options) as context:
        assert context.params["config"] == Path("/etc/ratchet/ratchet.toml")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_its_variables_are_known(unit: Path) -> None:
    named = {each.partition("=")[0] for line in values(unit, "Environment") for each in line.split()}
    ours = {name for name in named if name.startswith("RATCHET_")} - OTHER_VARIABLES
    assert {name.removeprefix("RATCHET_").partition("__")[0].lower() for name in ours} <= Settings.model_fields.keys()


def test_a_worker_has_the_time_it_takes_to_stop_and_a_folder_of_its_own() -> None:
    (worker,) = (unit for unit in UNITS if "worker" in unit.name)
    assert float(values(worker, "TimeoutStopSec")[0]) > STOP_WITHIN_S
    assert values(worker, "StateDirectory") == ["ratchet/worker-%i"]
    assert "--state-folder ${STATE_DIRECTORY}" in values(worker, "ExecStart")[0]


def test_the_page_reads_its_token_where_systemd_puts_it() -> None:
    (page,) = (unit for unit in UNITS if "web" in unit.name)
    (name,) = (each.partition(":")[0] for each in values(page, "LoadCredential"))
    assert f"RATCHET_WEB__TOKEN_FILE=%d/{name}" in values(page, "Environment")


def test_the_page_and_the_sinks_have_the_same_relative_paths() -> None:
    """`sink.path` is relative by default."""
    (page,) = (unit for unit in UNITS if "web" in unit.name)
    sinks = {folder for unit in UNITS if "sink" in unit.name for folder in values(unit, "WorkingDirectory")}
    (folder,) = sinks
    assert values(page, "WorkingDirectory") == [f"-{folder}"]  # the sink's unit makes it
    assert folder == f"%S/{values(UNITS[0], 'StateDirectory')[0]}"
    assert values(page, "User") == values(UNITS[0], "User")  # it may be read by its owner alone
    assert values(page, "StateDirectory") == []


def test_a_sink_that_was_taken_over_is_not_started_again() -> None:
    from kafka_ratchet.spark_sink.cli import EXIT_FENCED

    for sink in (unit for unit in UNITS if "sink" in unit.name):
        assert values(sink, "RestartPreventExitStatus") == [str(EXIT_FENCED)]
