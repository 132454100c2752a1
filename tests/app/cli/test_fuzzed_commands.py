"""Settings and command lines that nobody would write: the answer is a sentence and an exit code, never a traceback.

No Kafka answers here, so a command that is taken at its word ends where it would ask one.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer.main
from hypothesis import HealthCheck, given
from hypothesis import settings as with_settings
from hypothesis import strategies as st

from kafka_ratchet.app.cli import cli, run
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.app.settings import SECTIONS, Settings, load
from kafka_ratchet.app.web.server import WebServer
from kafka_ratchet.errors import SettingsError, SetupError

GROUP = typer.main.get_command(cli)
EXIT_CODES = {0, 1, 2, 3, 4}

ONLY_PARSED = {"demo", "bench", "faults", "setup"}
"""They start brokers, workers and other programs by the dozen, or fetch jars: of these only the parser is tried."""

# What argv can hold: no NUL, and bytes that are not UTF-8 as surrogates. No slash: `sink package` writes where it is
# told to.
ODD = ["", " ", "-", "--", "\udcff\udc80", "none", "NaN", "inf", "-1", "0", "1e309", "9" * 400, "true", "..", "a" * 300]
TEXT = st.text(st.characters(exclude_characters="\0/", codec="utf-8"), max_size=12) | st.sampled_from(ODD)
VALUES: st.SearchStrategy[Any] = st.recursive(
    TEXT.filter(lambda text: not any(0xD800 <= ord(each) < 0xE000 for each in text))
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(
        ["key", "json", "delta", "input", "header:x", "field:a.b", "function:os:getcwd", "127.0.0.1:1", 1, 4]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def section(model: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some fields of a model, and now and then one that it does not have, with any values."""
    names = st.sampled_from(sorted(model.model_fields)) | st.sampled_from(["", "_x", "nonsense", "app.x"])
    return st.dictionaries(names, VALUES, max_size=4)


STREAM = st.builds(
    lambda more, name: {"input": f"{name}i", "output": f"{name}o", "dead_letters": f"{name}d"} | more,
    section(SECTIONS["streams"]),
    st.sampled_from(["a", "b"]),
)
TABLES = st.fixed_dictionaries(
    {},
    optional={
        "streams": st.dictionaries(st.sampled_from(["a", "b", "A b", ""]), STREAM, max_size=2) | VALUES,
        "web": section(SECTIONS["web"]),
        "sink": section(SECTIONS["sink"]),
        "kafka": st.dictionaries(
            st.sampled_from(
                ["security.protocol", "sasl.mechanism", "sasl.password", "no.such", "client.id", "ssl.ca.location"]
            )
            | st.text(max_size=4),
            VALUES,
            max_size=3,
        ),
    },
)
GIVEN = st.builds(lambda top, tables: {**top, **tables}, section(Settings), TABLES)

tried = {"settings": 0, "commands": 0}


@pytest.fixture(scope="module", autouse=True)
def _told() -> Iterator[None]:
    yield
    print(f"\ninputs tried: {tried['settings']} settings, {tried['commands']} command lines", file=sys.__stderr__)


def toml(value: Any) -> str:
    """Return a value in TOML; JSON's strings are TOML's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(name))} = {toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and not isinstance(value, bool):
        return repr(value)
    return json.dumps(value, ensure_ascii=True)


@contextmanager
def variables(values: dict[str, str]) -> Iterator[None]:
    """Only these RATCHET_* variables."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("RATCHET_")}
    with mock.patch.dict(os.environ, kept | values, clear=True):
        yield


def try_settings(folder: Path, values: dict[str, Any], route: str) -> None:
    tried["settings"] += 1
    config = folder / "fuzz.toml"
    config.write_text("")
    chosen: dict[str, str] = {}
    overrides: dict[str, Any] = {}
    if route == "file":
        config.write_text("".join(f"{json.dumps(name)} = {toml(value)}\n" for name, value in values.items()))
    elif route == "variable":
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
        chosen = {f"RATCHET_{name.upper()}": text for name, text in texts.items() if "\0" not in name + text}
    else:
        overrides = {name: value for name, value in values.items() if name.isidentifier() and name != "path"}
    with variables(chosen):
        with suppress(SettingsError):
            load(config, **overrides)


ROUTES = st.sampled_from(["file", "variable", "override"])
FEW = with_settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
MANY = with_settings(max_examples=30_000, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(GIVEN, ROUTES)
def test_settings_are_taken_or_refused_with_a_sentence(values: dict[str, Any], route: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try_settings(Path(folder), values, route)


@pytest.mark.long
@pytest.mark.timeout(7200)
@MANY
@given(GIVEN, ROUTES)
def test_very_many_settings(values: dict[str, Any], route: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try_settings(Path(folder), values, route)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that can be run, with its words."""
    subcommands = getattr(command, "commands", None)
    if not subcommands or getattr(command, "invoke_without_command", False):
        yield path, command
    for name, inner in (subcommands or {}).items():
        yield from leaves(inner, (*path, name))


LEAVES = list(leaves(GROUP))
for words_of, each in LEAVES:
    if words_of[0] in ONLY_PARSED:
        each.callback = lambda **_: None


@st.composite
def command_lines(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[str]:
    """A command with some of its options, each with any text or one that it might take, and sometimes more words."""
    path, command = draw(st.sampled_from(LEAVES))
    words = [*path]
    likely = st.sampled_from(["1", "0", "a", "65535", "0.5", "on", "batch", "ff", "-1", "fuzz.txt"])
    for parameter in draw(st.lists(st.sampled_from(command.params), max_size=4)) if command.params else []:
        if parameter.param_type_name == "argument":
            words.append(draw(TEXT | likely))
        elif getattr(parameter, "is_flag", False):
            words.append(parameter.opts[0])
        elif "--config" not in parameter.opts or draw(st.booleans()):
            words += [parameter.opts[0], draw(TEXT | likely)]
    if draw(st.integers(0, 7)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(TEXT))
    return words


SETTINGS = """
bootstrap = "127.0.0.1:{port}"
kafka_timeout_s = 0.05
[streams.a]
input = "ai"
output = "ao"
dead_letters = "ad"
identity = "key"
"""


def try_command(words: list[str], port: int) -> None:
    tried["commands"] += 1
    here = Path.cwd()
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(os.chdir, here)
        for number in (signal.SIGINT, signal.SIGTERM):  # commands that run as services take them over
            stack.callback(signal.signal, number, signal.getsignal(number))
        os.chdir(folder)
        Path("ratchet.toml").write_text(SETTINGS.format(port=port))
        Path("fuzz.txt").write_text("one\ntwo\n")
        stack.enter_context(variables({}))
        for target, name, instead in (
            (EmbeddedBroker, "start", refuse),
            (WebServer, "start", started(WebServer.start)),
        ):
            stack.enter_context(mock.patch.object(target, name, instead))
        replaced: tuple[tuple[str, object], ...] = (
            ("kafka_ratchet.app.cli.cli", GROUP),
            ("kafka_ratchet.app.worker.process.compile_kernels", lambda: None),
            ("kafka_ratchet.app.log_setup.configure", lambda *_: None),  # for the whole process, other tests too
            ("kafka_ratchet.app.local.jars.spark_jars", lambda **_: []),
            ("kafka_ratchet.app.local.connectivity.REFUSED_FOR_S", 0.0),
            ("kafka_ratchet.app.local.connectivity.ASK_FOR_S", 0.02),
        )
        for path, other in replaced:
            stack.enter_context(mock.patch(path, other))
        stack.enter_context(mock.patch("sys.stdin", stack.enter_context(open("fuzz.txt"))))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        code = run(words)
    said = bytes(err.buffer.getvalue()).decode()
    assert code in EXIT_CODES
    assert "Traceback" not in said
    assert code == 0 or said.strip() or out.buffer.getvalue()


def refuse(*_: object, **__: Any) -> None:
    raise SetupError("no broker is started here")


def started(start: Callable[[WebServer], Any]) -> Callable[[WebServer], Any]:
    """The page is served, for a moment."""

    async def start_and_end(self: WebServer) -> str:
        await start(self)
        await self.stop()
        raise SetupError("the page was served")

    return start_and_end


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module", autouse=True)
def _logging_stays() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@with_settings(FEW, max_examples=80)
@given(command_lines())
def test_command_lines_are_answered_with_a_sentence_and_an_exit_code(port: int, words: list[str]) -> None:
    try_command(words, port)


@pytest.mark.long
@pytest.mark.timeout(7200)
@with_settings(MANY, max_examples=10_000)
@given(command_lines())
def test_very_many_command_lines(port: int, words: list[str]) -> None:
    try_command(words, port)
