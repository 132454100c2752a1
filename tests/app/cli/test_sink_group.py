"""`ratchet sink NAME`: where the name may stand, and what is said where it stands elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from typer.testing import CliRunner, Result

from kafka_ratchet.app.cli.sink import sink
from kafka_ratchet.errors import SettingsError


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Two sinks whose settings no job takes, each for a reason of its own: nothing is started."""
    path = tmp_path / "settings.toml"
    path.write_text(
        f"""
        bootstrap = "127.0.0.1:1"
        [streams.events]
        input = "in"
        output = "out"
        dead_letters = "dead"
        [sink]
        path = {json.dumps(str(tmp_path / "x"))}
        format = "json"
        [sinks.second]
        path = {json.dumps(str(tmp_path / "second"))}
        format = "avro"
        """,
        "utf-8",
    )
    return str(path)


def asked(*words: str) -> Result:
    return CliRunner().invoke(sink, words)


def test_a_name_stands_before_options_and_behind_them(file: str) -> None:
    for words in (
        ("second", "--config", file, "--mode", "stream"),
        ("--config", file, "second", "--mode", "stream"),
        ("--config", file, "--mode", "stream", "--json", "second"),
        (f"--config={file}", "second", "--second-job"),
    ):
        done = asked(*words)
        assert done.exit_code == 2
        assert done.output.startswith("refused: format avro needs a schema")
    known = (("--config", file), ("results", "--config", file), ("--config", file, "--mode", "stream"))
    for words_of_one in known:
        assert asked(*words_of_one).output.startswith("refused: format json needs columns")
    unknown = asked("--config", file, "thrid").exception
    assert isinstance(unknown, SettingsError)
    assert str(unknown) == "no sink 'thrid' in the settings (they have: results, second). Correct the name"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("second", "status"), "the name stands after the command: root status second"),
        (("second", "third"), "'third': one sink at a time is run, and 'second' is named already"),
        (("second", "--mode", "quick"), "Invalid value for '--mode'"),
        (("second", "--no-such-option"), "No such option: --no-such-option"),
    ],
)
def test_what_else_stands_there_is_refused(words: tuple[str, ...], sentence: str) -> None:
    done = asked(*words)
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.replace("│", " ").split())


def test_vacuum_takes_a_name(file: str, tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "second"), schema=Schema([Field("who", PrimitiveType("string"))]))
    done = asked("vacuum", "second", "--config", file, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["table"] == str(tmp_path / "second")
    assert "there is no result table" in str(asked("vacuum", "--config", file).exception)


def test_help_names_it() -> None:
    assert "[NAME] | COMMAND [ARGS]..." in " ".join(asked("--help").output.split())


@pytest.mark.parametrize("command", [[], ["status"], ["resume"], ["vacuum"], ["compact"]])
def test_the_help_names_the_sections_of_the_settings(command: list[str]) -> None:
    """Escape brackets, which are markup to rich: it would leave them out."""
    assert "[sinks.NAME]" in CliRunner().invoke(sink, [*command, "--help"], env={"COLUMNS": "100"}).output
