"""`ratchet sink`: settings in, the job as a child, its exit code out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from app.cli.sink import sink


@pytest.fixture
def ratchet() -> typer.Typer:
    cli = typer.Typer()
    cli.command()(sink)
    return cli


@pytest.fixture
def settings_file(broker: str, new_topic: Callable[..., str], table: str, tmp_path: Path) -> Path:
    path = tmp_path / "settings of --name=x.toml"
    path.write_text(
        f"""
        bootstrap = {json.dumps(broker)}
        [kafka]
        "client.id" = "a b=c"
        "socket.keepalive.enable" = true
        [streams.events]
        input = "in"
        output = "{new_topic()}"
        dead_letters = "dead"
        [sink]
        path = {json.dumps(table, ensure_ascii=False)}
        columns = "who string, n long"
        """,
        "utf-8",
    )
    return path


def test_the_stream_of_the_settings_is_read(
    ratchet: typer.Typer, settings_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = CliRunner().invoke(ratchet, ["--config", str(settings_file), "--json"])
    assert done.exit_code == 0, done.output
    said = capfd.readouterr()
    assert json.loads(said.out.splitlines()[-1])["offsets"] == {}
    assert "is up to date: 0 rows added" in said.err


def test_the_exit_code_is_the_jobs(
    ratchet: typer.Typer, settings_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings_file.write_text(settings_file.read_text("utf-8").replace('output = "', 'output = "x-'), "utf-8")
    done = CliRunner().invoke(ratchet, ["--config", str(settings_file)])
    assert done.exit_code == 2
    assert "refused: topic x-" in capfd.readouterr().err
