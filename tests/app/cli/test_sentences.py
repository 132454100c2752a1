"""Mistakes about folders and addresses, which end in a sentence, not in a traceback."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

import kafka_ratchet
from kafka_ratchet.app.cli import run
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.server import StatusServer
from kafka_ratchet.app.web.server import WebServer
from kafka_ratchet.app.worker.process import state_folder
from kafka_ratchet.errors import SettingsError, SetupError
from tests.app.worker.known_worker import KnownWorker
from tests.app.worker_process import Site

STREAM = """
[web]
host = "{host}"
[streams.orders]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
partitions = 1
"""
NOT_OURS = "203.0.113.7"
"""Address of TEST-NET-3 (RFC 5737): no machine has it."""


@pytest.mark.parametrize("name", ["a file", "a file/below", "a" * 300, "no\0name"])
def test_a_state_folder_that_cannot_be_one_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(SettingsError, match=r"state_folder: .* cannot be used: .*--state-folder"):
        with state_folder(tmp_path / name):
            pass


@pytest.mark.parametrize("host", [NOT_OURS, "no such host", "a..b", "x" * 70 + ".example", "ä" * 300, "1.2.3.4.5:6"])
async def test_an_address_that_cannot_be_bound_is_named(host: str) -> None:
    with pytest.raises(SetupError, match=r"cannot be served on .*web\.host"):
        await StatusServer(KnownWorker(), host).start()
    with pytest.raises(SetupError, match=r"cannot be served on .*web\.host"):
        await WebServer("127.0.0.1:1", Settings(web={"host": host})).start()  # type: ignore[arg-type]


def test_usage_calls_the_command_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert run(["nonsense"]) == 2
    out, err = capsys.readouterr()
    assert "Usage: ratchet [OPTIONS]" in out
    assert "Try 'ratchet --help'" in err


@pytest.mark.parametrize("arguments", [[], ["worker"], ["tables"], ["verify"], ["sink"]])
def test_an_empty_folder_gets_the_first_steps(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RATCHET_")]:
        monkeypatch.delenv(name)
    run(arguments)
    said = "".join(capsys.readouterr())
    assert "There is no ratchet.toml in this folder" in said
    assert "ratchet init TOPIC --bootstrap HOST:PORT" in said
    Path("ratchet.toml").write_text("")
    run(arguments)
    assert "There is no ratchet.toml" not in "".join(capsys.readouterr())


def test_a_named_file_or_faust_program_needs_no_first_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATCHET_CONFIG", raising=False)
    for arguments in (["worker", "-c", "none.toml"], ["worker", "--faust", "none:app"]):
        assert run(arguments) == 2
        assert "There is no ratchet.toml" not in capsys.readouterr().err


def test_a_refusal_of_init_does_not_advise_init(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", "orders"]) == 2
    err = capsys.readouterr().err
    assert "--bootstrap is missing" in err
    assert "There is no ratchet.toml" not in err


def test_a_worker_without_a_stream_is_refused_before_any_kafka_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATCHET_BOOTSTRAP", raising=False)

    def start(_: object) -> None:
        raise AssertionError("a broker is started")

    monkeypatch.setattr("kafka_ratchet.app.local.broker.open_broker", start)
    assert run(["worker"]) == 2
    assert "the settings have no stream" in capsys.readouterr().err


SASL = {"security.protocol": "SASL_PLAINTEXT"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (SASL | {"sasl.mechanism": "OAUTHBEARER"}, "kafka.sasl.oauthbearer.method: OAUTHBEARER needs a token server"),
        (
            SASL | {"sasl.mechanism": "SECRETBEARER"},
            "kafka.sasl.mechanism: the worker does not support the given value",
        ),
        (SASL | {"sasl.mechanism": "PLAIN"}, "kafka.sasl.username and kafka.sasl.password: PLAIN needs both"),
        (SASL | {"sasl.mechanisms": "SCRAM-SHA-256", "sasl.username": "u"}, "SCRAM-SHA-256 needs both"),
        (
            {"security.protocol": "carrier-pigeon"},
            "kafka.security.protocol: the worker does not support the given value",
        ),
        ({"no.such": "1"}, "kafka.no.such: the Kafka client refuses it: there is no such option"),
    ],
    ids=lambda each: str(each)[:40],
)
@pytest.mark.parametrize("command", ["worker", "tables", "producers", "policy get", "verify"])
def test_a_login_that_the_worker_cannot_use_is_named(
    command: str,
    options: dict[str, str],
    sentence: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    kafka = "".join(f'"{name}" = "{value}"\n' for name, value in options.items())
    stream = STREAM.format(app="a", host="127.0.0.1")
    Path("ratchet.toml").write_text(f'bootstrap = "127.0.0.1:1"\nkafka_timeout_s = 1\n{stream}[kafka]\n{kafka}')
    assert run(command.split()) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.matrix
def test_the_worker_says_both_and_ends(broker: str, tmp_path: Path) -> None:
    app = f"sentences-{uuid.uuid4().hex[:8]}"
    place = Site(tmp_path, broker, app, STREAM.format(app=app, host=NOT_OURS))
    (tmp_path / "file").write_text("")
    for arguments, sentence in (
        (["--state-folder", str(tmp_path / "file")], f"state_folder: '{tmp_path / 'file'}' cannot be used"),
        ([], f"the worker's status cannot be served on '{NOT_OURS}'"),
    ):
        refused = place.command("worker", *arguments)
        assert refused.returncode == 2, refused.stderr
        assert sentence in refused.stderr
        assert "Traceback" not in refused.stderr


def test_ending_an_open_transaction_needs_its_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "ratchet.toml"
    config.write_text('app = "here"\nbootstrap = "127.0.0.1:1"' + STREAM.format(host="127.0.0.1", app="here"))
    command = ["resume", "--stream", "orders", "--open-transaction", "abort", "--execute", "--reason", "hangs"]
    assert run([*command, "--config", str(config)]) == 2
    assert "--open-transaction with --execute needs --partition" in capsys.readouterr().err


def test_the_package_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"ratchet {kafka_ratchet.__version__}\n"
