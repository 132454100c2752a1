"""Command line: one module per command, with late imports so that `--help` is quick."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from kafka_ratchet.app.cli.dead_letters import dead_letters
from kafka_ratchet.app.cli.doctor import doctor
from kafka_ratchet.app.cli.forget import forget
from kafka_ratchet.app.cli.gaps import gaps
from kafka_ratchet.app.cli.local import broker, demo, setup
from kafka_ratchet.app.cli.policy import policy
from kafka_ratchet.app.cli.producers import producers
from kafka_ratchet.app.cli.publish import publish
from kafka_ratchet.app.cli.reader import reader
from kafka_ratchet.app.cli.repair import repair
from kafka_ratchet.app.cli.resume import resume
from kafka_ratchet.app.cli.sink import sink
from kafka_ratchet.app.cli.state import state
from kafka_ratchet.app.cli.status import status
from kafka_ratchet.app.cli.survey import init, survey
from kafka_ratchet.app.cli.tables import tables
from kafka_ratchet.app.cli.verify import verify
from kafka_ratchet.app.cli.web import web
from kafka_ratchet.app.cli.why import why
from kafka_ratchet.app.cli.worker import worker
from kafka_ratchet.app.clone import clone_root
from kafka_ratchet.errors import RatchetError, SettingsError

TOOLS: Final = ("bench", "faults")
"""Commands of a repository clone; the wheel and the image lack them."""

FIRST_STEPS: Final = """\
There is no ratchet.toml in this folder. To begin:
  ratchet demo                                 the whole pipeline on this machine, with crashes and the proof
  ratchet init TOPIC --bootstrap HOST:PORT     write a ratchet.toml for a topic, from a survey of it
  ratchet verify --from SOURCE --to TARGET     compare a topic with the table that another program fills"""

cli = typer.Typer(
    name="ratchet",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kafka_ratchet.app.version import ratchet_version

        typer.echo(f"ratchet {ratchet_version()}")
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exactly-once stream processing for Kafka: events that arrive more than once count exactly once."""


for command, example in (
    (demo, "demo"),
    (broker, "broker --port 9092 --folder kafka"),
    (init, "init orders --bootstrap 127.0.0.1:9092"),
    (survey, "survey orders --bootstrap 127.0.0.1:9092"),
    (doctor, "doctor"),
    (worker, "worker --processes 2"),
    (web, "web --port 8080"),
    (publish, "publish orders.ndjson --producer till-4 --key user"),
    (tables, "tables --stream orders --identity till-4"),
    (producers, "producers --stream orders"),
    (status, "status --producer till-4 --sequence 29"),
    (gaps, "gaps orders --limit 10"),
    (forget, "forget --stream orders --identity till-4 --reason 'new till'"),
    (resume, "resume --stream orders --partition 0 --from earliest --reason 'retention' --execute"),
    (verify, "verify --stream orders --results"),
    (repair, "repair --results --reason 'lost rows' --execute"),
    (why, "why --producer till-4 --sequence 29"),
    (setup, "setup"),
):
    cli.command(epilog=f"Example: ratchet {example}")(command)
cli.add_typer(policy, name="policy")
cli.add_typer(sink, name="sink")
cli.add_typer(reader, name="reader")
cli.add_typer(state, name="state")
cli.add_typer(dead_letters, name="dead-letters")
for tool in TOOLS:
    # Only those of the clone: any package of a user may be called `bench`.
    where, found = clone_root(), find_spec(tool)
    if where is not None and found is not None and found.origin == str(where / tool / "__init__.py"):
        cli.add_typer(getattr(import_module(f"{tool}.cli"), tool), name=tool)


def main() -> None:
    """Run the command of this process, and exit; a RatchetError becomes an error text on stderr and exit code 2."""
    _end_at_sigterm()
    _import_structlog()
    from kafka_ratchet.app.log_setup import configure
    from kafka_ratchet.spark_sink.secrets import hide_in_tracebacks

    hide_in_tracebacks()
    _escape_output()
    configure("warning")  # commands that run as services set the level of their settings
    sys.exit(run())


def _end_at_sigterm() -> None:
    """Let SIGTERM end process 1 of a container at once, as it ends any other process.

    The kernel keeps the signal from a process 1 without a handler. A worker sets its own handler only after its start,
    which waits for Kafka up to `kafka_timeout_s`. The command may end at once until then: no transaction is open.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


def _escape_output() -> None:
    """Make stdout and stderr escape characters that they cannot encode, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _import_structlog() -> None:
    """Import structlog without rich.

    structlog loads rich for tracebacks, which Ratchet does not show. This saves 50 ms at the start of each command. A
    later import of rich still works.
    """
    is_loaded = "rich" in sys.modules
    if not is_loaded:
        sys.modules["rich"] = None  # type: ignore[assignment] # as where it is not installed
    try:
        import structlog  # noqa: F401
    finally:
        if not is_loaded:
            del sys.modules["rich"]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    arguments: command line without the program's name; None: the arguments of this process.

    Raises:
        ModuleNotFoundError: a package is missing that no extra of kafka-ratchet installs.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        cli(arguments, prog_name="ratchet")
    except RatchetError as error:
        from kafka_ratchet.app.log_setup import say_error

        say_error(str(error))
        if isinstance(error, SettingsError) and given[:1] != ["init"] and not _has_settings(given):
            typer.echo(FIRST_STEPS, err=True)
        return 2
    except ModuleNotFoundError as error:
        from kafka_ratchet.app.extras import missing_extra

        if (sentence := missing_extra(error)) is None:
            raise
        from kafka_ratchet.app.log_setup import say_error

        say_error(sentence)
        return 2
    except SystemExit as ended:
        if not given and not _has_settings(given):
            typer.echo(FIRST_STEPS)
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 2
    return 0


def _has_settings(arguments: Sequence[str]) -> bool:
    """Return True if an option, a variable or ratchet.toml names settings or a Faust program."""
    variables = any(name == "RATCHET_CONFIG" or name.startswith("RATCHET_STREAMS") for name in os.environ)
    options = any(argument.split("=")[0] in ("-c", "--config", "--faust") for argument in arguments)
    return variables or options or Path("ratchet.toml").exists()
