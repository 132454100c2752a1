"""Several sinks in one settings file: their names, which one is meant, and no two that fill a table from one topic."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kafka_ratchet.app.cli.sink import sink
from kafka_ratchet.app.settings import Settings, load
from kafka_ratchet.app.sinks import COMMANDS
from kafka_ratchet.app.status.results import access_of, result_stream, settings_for_results, sinks_of
from kafka_ratchet.app.web.pages.settings import rows
from kafka_ratchet.errors import SettingsError

STREAMS = """
[streams.orders]
input = "orders.raw"
output = "orders.once"
dead_letters = "orders.dead"
[streams.clicks]
input = "clicks.raw"
output = "clicks.once"
dead_letters = "clicks.dead"
"""


@pytest.fixture(autouse=True)
def _clean_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in os.environ:
        if variable.upper().startswith("RATCHET_"):
            monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


def loaded(toml: str) -> Settings:
    Path("settings.toml").write_text(STREAMS + toml, "utf-8")
    return load(Path("settings.toml"))


TWO = '[sinks.a]\nstream = "orders"\npath = "a"\n[sinks.b]\nstream = "clicks"\npath = "b"\nname = "old-name"\n'


def test_a_section_names_its_job_and_either_name_means_the_sink() -> None:
    settings = loaded(TWO)
    assert [(name, kept.name) for name, kept in settings.every_sink().items()] == [("a", "a"), ("b", "old-name")]
    for name in ("b", "old-name"):
        one = settings.of_sink(name)
        assert (one.sink.path, one.sinks, one.of_sink()) == ("b", {}, one)
    with pytest.raises(SettingsError, match=r"the sink is not named. Give its name; the settings have the sinks: a, b"):
        settings.of_sink()
    with pytest.raises(SettingsError, match=r"no sink 'c' in the settings \(they have: a, b\)"):
        settings.of_sink("c")
    assert loaded('[sinks.a]\npath = "a"\n').of_sink().sink.path == "a"


def test_a_sink_without_a_stream_is_told_which_line_to_add() -> None:
    line = r"say which stream .*add `stream = \"orders\"`.* to \[sink\]"
    settings = loaded('[sink]\npath = "a"\n')
    with pytest.raises(SettingsError, match=line):
        result_stream(settings.of_sink())
    assert result_stream(settings, "clicks")[0] == "clicks"
    with pytest.raises(SettingsError, match=f"no sink of the settings reads stream 'clicks'; {line}"):
        settings_for_results(loaded('[sinks.x]\npath = "a"\n[sinks.y]\npath = "b"\n'), "clicks", None)
    with pytest.raises(
        SettingsError,
        match=r"the stream is not named\. Give --stream NAME; the settings have the streams: orders, clicks$",
    ):
        result_stream(loaded(""))


def test_without_sections_everything_is_as_it_was() -> None:
    none = loaded("")
    assert (none.every_sink(), none.of_sink(), none.of_sink("results").sink.path) == ({}, none, "ratchet-results")
    only = loaded('[sink]\npath = "x"\nname = "job"\n')
    assert (only.of_sink(), only.of_sink("job").sink.path, [*only.every_sink()]) == (only, "x", ["job"])
    with pytest.raises(SettingsError, match=r"no sink 'results' in the settings \(they have: job\)"):
        only.of_sink("results")


def test_a_sink_without_a_name_stays_the_one_that_commands_take() -> None:
    settings = loaded('[sink]\nstream = "orders"\npath = "x"\n' + TWO)
    assert [*settings.every_sink()] == ["results", "a", "b"]
    assert settings.of_sink().sink.path == "x"
    assert settings.of_sink("a").sink.path == "a"


def test_variables_name_a_sink_and_a_password_of_digits_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_SINKS__A__PASSWORD", "1234567890")
    monkeypatch.setenv("RATCHET_SINKS__A__STORAGE_OPTIONS", '{"AWS_REGION": "eu-central-1"}')
    monkeypatch.setenv("RATCHET_SINKS__C__TABLE", "7")
    settings = loaded(TWO)
    assert access_of(settings.of_sink("a")).password == "1234567890"  # noqa: S105
    assert access_of(settings.of_sink("a")).storage_options == {"AWS_REGION": "eu-central-1"}
    assert (settings.sinks["a"].path, settings.sinks["c"].table) == ("a", "7")
    assert "1234567890" not in repr(settings) + json.dumps(rows(settings, {}))
    monkeypatch.setenv("RATCHET_SINKS__A__PATHS", "x")
    with pytest.raises(SettingsError, match=r"sinks\.a\.paths: there is no such setting \(did you mean path"):
        loaded(TWO)


def test_a_variable_makes_no_second_sink_beside_those_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have the default table, and commands without a name would take it."""
    monkeypatch.setenv("RATCHET_SINK__PASSWORD", "1234567890")
    with pytest.raises(SettingsError, match=r"RATCHET_SINK__PASSWORD: .* as in RATCHET_SINKS__A__PASSWORD") as refused:
        loaded(TWO)
    assert "1234567890" not in str(refused.value)
    assert loaded('[sink]\nstream = "orders"\npath = "x"\n' + TWO).sink.path == "x"
    monkeypatch.setenv("RATCHET_SINKS__C__PATH", "c")
    assert [*loaded("").every_sink()] == ["results", "c"]  # variables alone may set both


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ('[sinks.A]\npath = "a"\n', "sink name 'A': use a lower-case letter"),
        ('[sinks.status]\npath = "a"\n', "`ratchet sink status` is a command"),
        ('[sink]\nname = "a"\n[sinks.a]\npath = "a"\n', r"\[sink\] and \[sinks.a\] both have the name 'a'"),
        ('[sinks.a]\nname = "b"\npath = "a"\n[sinks.b]\npath = "b"\n', "sinks 'a' and 'b' both have the name 'b'"),
        ('[sinks.a]\nname = "x"\npath = "a"\n[sinks.b]\nname = "x"\npath = "b"\n', "both have the name 'x'"),
        ('[sinks.a]\npath = "a"\nshop = 1\n', r"sinks\.a\.shop: there is no such setting"),
        ('[sinks.a]\nmetrics_file = "m"\n[sinks.b]\npath = "b"\nmetrics_file = "m"\n', "the same metrics_file"),
    ],
)
def test_what_a_sink_may_not_be_called(toml: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        loaded(toml)


def test_every_command_is_a_word_that_names_no_sink() -> None:
    assert {command.name or command.callback.__name__ for command in sink.registered_commands if command.callback} <= (
        COMMANDS
    )


DATABASE = 'store = "postgres"\nurl = "postgresql://{}@db:5432/x"\n'


@pytest.mark.parametrize(
    ("one", "other", "is_one_table"),
    [
        ('path = "t"', 'path = "./t/"\ntable = "other"', True),  # Delta's table is the folder
        ('path = "s3://b/t"', 'path = "s3://b/t/"', True),
        ('path = "t"', 'path = "u"', False),
        ('store = "duckdb"\npath = "t"', 'store = "duckdb"\npath = "t"\ntable = "other"', False),
        ('store = "duckdb"\npath = "t"', 'store = "duckdb"\npath = "t"', True),
        ('store = "duckdb"\npath = "t"', 'store = "iceberg"\npath = "t"', False),
        (DATABASE.format("me:secret"), DATABASE.format("you").replace(":5432", ""), True),
        (DATABASE.format("me"), DATABASE.format("me") + 'table = "other"', False),
        (DATABASE.format("me"), DATABASE.format("me").replace("/x", "/y"), False),
    ],
)
@pytest.mark.parametrize("form", ["[sink]", "[sinks.a]"])
def test_one_table_is_filled_from_one_topic_once(form: str, one: str, other: str, is_one_table: bool) -> None:
    def both(first: str, second: str) -> Settings:
        return loaded(f'{form}\nstream = "{first}"\n{one}\n[sinks.b]\nstream = "{second}"\n{other}\n')

    assert len(both("orders", "clicks").every_sink()) == 2
    if not is_one_table:
        assert len(both("orders", "orders").every_sink()) == 2
        return
    with pytest.raises(SettingsError, match="write records of the same topic to the same table") as refused:
        both("orders", "orders")
    assert "secret" not in str(refused.value)


def test_which_sinks_are_of_a_stream() -> None:
    settings = loaded(TWO + '[sinks.c]\nstream = "clicks"\npath = "c"\n')
    assert [each.sink.name for each in sinks_of(settings, "clicks")] == ["old-name", "c"]
    assert [each.sink.name for each in sinks_of(settings, "orders")] == ["a"]
    assert settings_for_results(settings, "orders", None).sink.name == "a"
    assert settings_for_results(settings, None, "c").sink.name == "c"
    with pytest.raises(
        SettingsError, match=r"'clicks' is read into several tables\. Name the sink: --sink b or --sink c"
    ):
        settings_for_results(settings, "clicks", None)
    with pytest.raises(SettingsError, match="no sink of the settings reads stream 'more'"):
        settings_for_results(settings, "more", None)
    with pytest.raises(SettingsError, match="the sink is not named"):
        settings_for_results(settings, None, None)
