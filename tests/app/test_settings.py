"""Settings: where they come from, who wins, and what each refusal says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import ValidationError

from kafka_ratchet.app.cli import cli
from kafka_ratchet.app.settings import OTHER_VARIABLES, Settings, StreamSettings, WebSettings, load
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.identity import Identity
from tests.app.written_settings import STREAM, other_stream, refusal, written

pytestmark = pytest.mark.usefixtures("no_settings_of_ones_own")


# Where settings come from


def test_nothing_given_is_all_defaults() -> None:
    assert load() == Settings()
    assert load().commit_interval_ms == 100
    assert load().web.host == "127.0.0.1"


def test_file_named_by_argument(tmp_path: Path) -> None:
    settings = load(written(tmp_path, STREAM))
    assert settings.streams["events"] == StreamSettings(
        input="events", output="events-once", dead_letters="events-invalid"
    )
    assert settings.streams["events"].identity is Identity.PRODUCER
    assert settings.streams["events"].sequence == "header:ratchet-sequence"


def test_file_in_the_working_folder(tmp_path: Path) -> None:
    written(tmp_path, 'app = "here"', "ratchet.toml")
    assert load().app == "here"


def test_file_named_by_variable_beats_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, 'app = "here"', "ratchet.toml")
    monkeypatch.setenv("RATCHET_CONFIG", str(written(tmp_path, 'app = "named"')))
    assert load().app == "named"


def test_argument_beats_the_variable_that_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_CONFIG", str(tmp_path / "not-there.toml"))
    assert load(written(tmp_path, 'app = "given"')).app == "given"


def test_variable_wins_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_BOOTSTRAP", "from-variable:9092")
    assert load(written(tmp_path, 'bootstrap = "from-file:9092"')).bootstrap == "from-variable:9092"


def test_nested_variable_wins_over_file_and_leaves_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_STREAMS__EVENTS__IDENTITY", "key")
    monkeypatch.setenv("RATCHET_STREAMS__EVENTS__PARTITIONS", "6")
    stream = load(written(tmp_path, STREAM + 'identity = "partition"\nreplication = 3')).streams["events"]
    assert (stream.identity, stream.partitions, stream.replication, stream.input) == (Identity.KEY, 6, 3, "events")


def test_stream_from_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for field, value in {"INPUT": "a", "OUTPUT": "b", "DEAD_LETTERS": "c"}.items():
        monkeypatch.setenv(f"RATCHET_STREAMS__EVENTS__{field}", value)
    assert load().stream() == ("events", StreamSettings(input="a", output="b", dead_letters="c"))


def test_section_as_json_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_WEB", '{"port": 8080}')
    assert load().web == WebSettings(port=8080)


def test_override_wins_over_variable_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_BOOTSTRAP", "from-variable:9092")
    settings = load(written(tmp_path, 'bootstrap = "from-file:9092"'), bootstrap="given:9092")
    assert settings.bootstrap == "given:9092"


def test_override_of_one_setting_in_a_section_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_WEB__HOST", "0.0.0.0")  # noqa: S104
    assert load(web={"port": 8080}).web == WebSettings(host="0.0.0.0", port=8080)  # noqa: S104


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValidationError):
        load().app = "other"


# Client options


def test_client_options_quoted_and_dotted_are_the_same(tmp_path: Path) -> None:
    quoted = load(written(tmp_path, '[kafka]\n"security.protocol" = "SSL"\n"sasl.mechanism" = "PLAIN"'))
    dotted = load(written(tmp_path, '[kafka]\nsecurity.protocol = "SSL"\nsasl.mechanism = "PLAIN"'))
    assert quoted.kafka == dotted.kafka == {"security.protocol": "SSL", "sasl.mechanism": "PLAIN"}


def test_client_options_keep_their_types(tmp_path: Path) -> None:
    options = '[kafka]\n"enable.ssl.certificate.verification" = false\n"socket.timeout.ms" = 7000'
    kafka = load(written(tmp_path, options)).kafka
    assert kafka["enable.ssl.certificate.verification"] is False
    assert kafka["socket.timeout.ms"] == 7000


@pytest.mark.parametrize("password", ["0042", "42", "1e5", "true", "null", '"quoted"', "{", "a__b=c"])
def test_client_option_from_a_variable_is_text_untouched(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    monkeypatch.setenv("RATCHET_KAFKA__SASL__PASSWORD", password)
    assert load().kafka == {"sasl.password": password}


def test_client_option_from_a_variable_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_KAFKA__SASL__PASSWORD", "right")
    settings = load(written(tmp_path, '[kafka]\nsasl.password = "wrong"\nsasl.username = "me"'))
    assert settings.kafka == {"sasl.password": "right", "sasl.username": "me"}


def test_client_option_that_is_no_value_is_refused_without_showing_it(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, '[kafka]\nsasl.password = ["secret"]')
    assert "kafka: option 'sasl.password' must be text, a whole number, true or false" in sentence
    assert "secret" not in sentence


@pytest.mark.parametrize("option", ["bootstrap.servers", "metadata.broker.list"])
def test_addresses_among_the_client_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """librdkafka would connect to them, and the worker's own client to `bootstrap`."""
    sentence = f"kafka: option '{option}' is not possible here. Remove it, and set bootstrap instead"
    assert sentence in refusal(tmp_path, f'bootstrap = "a:1"\n[kafka]\n{option} = "b:1"')
    monkeypatch.setenv(f"RATCHET_KAFKA__{option.upper().replace('.', '__')}", "b:1")
    assert sentence in refusal(tmp_path, 'bootstrap = "a:1"')


# The file


def test_file_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml: there is no such settings file"):
        load(tmp_path / "nowhere.toml")


def test_file_named_by_variable_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_CONFIG", str(tmp_path / "nowhere.toml"))
    with pytest.raises(SettingsError, match=r"nowhere\.toml: there is no such settings file"):
        load()


def test_file_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    path = tmp_path / "ratchet.toml"
    path.write_bytes(b'\xef\xbb\xbfapp = "shop"\n')
    assert load(path).app == "shop"


@pytest.mark.parametrize("content", [b"app = ", b"app = 'a'\napp = 'b'", b"\x00", b"app = '\xff'"])
def test_file_is_not_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"settings\.toml: not valid TOML: "):
        load(path)


# Unknown names


@pytest.mark.parametrize(
    ("toml", "name", "meant"),
    [
        ('bootsrap = "a:1"', "bootsrap", "bootstrap"),
        ("[web]\nprt = 1", "web.prt", "port"),
        ('[sink]\ncolums = "a int"', "sink.colums", "columns"),
        (STREAM + 'identiti = "key"', "streams.events.identiti", "identity"),
    ],
)
def test_unknown_name_in_the_file(tmp_path: Path, toml: str, name: str, meant: str) -> None:
    assert refusal(tmp_path, toml) == (
        f"{name}: there is no such setting (did you mean {meant}?). Remove it or correct its name"
    )


def test_unknown_name_that_resembles_none_lists_what_there_is(tmp_path: Path) -> None:
    known = ", ".join(sorted(WebSettings.model_fields))
    assert refusal(tmp_path, "[web]\nzzz = 1").startswith(f"web.zzz: there is no such setting (there are: {known})")


@pytest.mark.parametrize("name", ["_env_prefix", "_cli_parse_args", "__class__"])
def test_name_with_an_underscore_in_front_reaches_no_machinery(tmp_path: Path, name: str) -> None:
    assert refusal(tmp_path, f"{name} = true").startswith(f"{name}: there is no such setting")


def test_unknown_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_COMIT_INTERVAL_MS", "5")
    sentence = refusal(tmp_path)
    assert "RATCHET_COMIT_INTERVAL_MS: there is no such setting (did you mean commit_interval_ms?)" in sentence
    assert "Unset the variable" in sentence


def test_unknown_variable_in_a_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_WEB__PRT", "5")
    assert "web.prt: there is no such setting (did you mean port?)" in refusal(tmp_path)


def test_unknown_override(tmp_path: Path) -> None:
    assert "bootstrp: there is no such setting (did you mean bootstrap?)" in refusal(tmp_path, bootstrp="a:1")


@pytest.mark.parametrize("variable", sorted(OTHER_VARIABLES - {"RATCHET_CONFIG"}))
def test_variables_of_the_script_are_no_mistake(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "anything")
    assert load() == Settings()


def test_variables_of_the_command_line_are_no_mistake() -> None:
    def named(command: Any) -> Iterator[str]:
        for option in command.params:
            yield from [option.envvar] if isinstance(option.envvar, str) else option.envvar or ()
        for each in getattr(command, "commands", {}).values():
            yield from named(each)

    found = set(named(typer.main.get_command(cli)))
    assert "RATCHET_READER_DSN" in found
    assert found <= OTHER_VARIABLES


# Bad values


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ('app = ""', "app: String should match"),
        ('app = "a/b"', "app: String should match"),
        ('bootstrap = "kafka"', "bootstrap: write host:port"),
        ('bootstrap = ""', "bootstrap: write host:port"),
        ('bootstrap = "kafka:9092,"', "bootstrap: write host:port"),
        ('bootstrap = "http://kafka:9092"', "bootstrap: write host:port"),
        ("commit_interval_ms = 0", "commit_interval_ms: Input should be greater than or equal to 1 (given: 0)"),
        ('commit_interval_ms = "soon"', "commit_interval_ms: Input should be a valid integer"),
        ("records_per_transaction = 0", "records_per_transaction: Input should be greater than or equal to 1"),
        ("kafka_timeout_s = 0", "kafka_timeout_s: Input should be greater than 0 (given: 0)"),
        ("kafka_timeout_s = inf", "kafka_timeout_s: Input should be a finite number"),
        ('state_folder = ""', "state_folder: name a folder"),
        ('log_level = "loud"', "log_level: Input should be 'debug', 'info', 'warning' or 'error' (given: 'loud')"),
        ("[web]\nport = 65536", "web.port: Input should be less than or equal to 65535 (given: 65536)"),
        ('[web]\nhost = ""', "web.host: String should have at least 1 character"),
        ("web = 3", "web: Input should be a valid dictionary"),
        ("kafka = 3", "kafka: Input should be a valid dictionary"),
        ('[sink]\nname = "../results"', "sink.name: String should match"),
        (
            '[sink]\nstore = "shelf"',
            "sink.store: Input should be 'delta', 'postgres', 'mysql', 'duckdb' or 'iceberg'",
        ),
        (
            STREAM + 'identity = "user"',
            "streams.events.identity: 'user' is not an identity; write producer, key, partition, ",
        ),
        (STREAM + 'compression = "lz5"', "streams.events.compression: Input should be 'input', 'none', 'gzip'"),
        (STREAM + "partitions = 0", "streams.events.partitions: Input should be greater than or equal to 1"),
        (STREAM + "replication = 33", "streams.events.replication: Input should be less than or equal to 32"),
        (
            STREAM + 'sequence = "header"',
            "'header' names no part of a record; write header:NAME, field:PATH or function:",
        ),
        (
            STREAM + 'sequence = "trailer:x"',
            "a sequence cannot be read from 'trailer'; write header:NAME, field:PATH or",
        ),
        (STREAM + 'sequence = "field:a..b"', "'a..b' has an empty part; write a path such as field:meta.sequence"),
        (STREAM + 'sequence = "function:os.system"', "is not a function; write function:package.module:name"),
        (STREAM.replace("[streams.events]", '[streams."Events"]'), "stream name 'Events': use a lower-case letter"),
    ],
)
def test_bad_value(tmp_path: Path, toml: str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, toml)


def test_bad_value_in_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_WEB__PORT", "99999")
    assert refusal(tmp_path) == "web.port: Input should be less than or equal to 65535 (given: '99999')"


@pytest.mark.parametrize("section", ["WEB", "STREAMS", "KAFKA"])
def test_variable_that_is_not_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str) -> None:
    monkeypatch.setenv(f"RATCHET_{section}", '{"port": ')
    assert refusal(tmp_path).startswith(f"RATCHET_{section}: not valid JSON. Write the section as a JSON object")


def test_bad_override(tmp_path: Path) -> None:
    assert "commit_interval_ms: Input should be greater than or equal to 1" in refusal(tmp_path, commit_interval_ms=-5)


def test_missing_settings_say_how_to_give_them(tmp_path: Path) -> None:
    assert refusal(tmp_path, '[streams.events]\ninput = "events"').splitlines() == [
        "streams.events.output: is missing. Add it to the settings file or set RATCHET_STREAMS__EVENTS__OUTPUT",
        "streams.events.dead_letters: is missing. Add it to the settings file or set "
        "RATCHET_STREAMS__EVENTS__DEAD_LETTERS",
    ]


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    sentences = refusal(tmp_path, 'commit_interval_ms = 0\nbootsrap = "a:1"\n[web]\nport = -1').splitlines()
    assert sorted(sentence.split(":")[0] for sentence in sentences) == ["bootsrap", "commit_interval_ms", "web.port"]


# Settings that contradict each other


def test_commit_interval_must_fit_the_transaction_timeout(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, "commit_interval_ms = 1000\ntransaction_timeout_ms = 2999")
    assert "transaction_timeout_ms must be at least three times commit_interval_ms" in sentence
    load(written(tmp_path, "commit_interval_ms = 1000\ntransaction_timeout_ms = 3000"))


# Which stream


def test_the_only_stream_needs_no_name(tmp_path: Path) -> None:
    assert load(written(tmp_path, STREAM)).stream()[0] == "events"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (None, r"the stream is not named\. Give --stream NAME; the settings have the streams: events, more"),
        ("mor", r"no stream 'mor' in the settings \(they have: events, more\)"),
    ],
)
def test_which_stream(tmp_path: Path, name: str | None, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        load(written(tmp_path, other_stream())).stream(name)


def test_no_stream_at_all() -> None:
    with pytest.raises(
        SettingsError, match=r"the stream is not named\. Give --stream NAME; the settings have the streams: none"
    ):
        load().stream()
