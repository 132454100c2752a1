"""The command line. One module per command; each imports what it needs when it runs, so `--help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from app.cli.bench import bench
from app.cli.broker import broker
from app.cli.demo import demo
from app.cli.faults import faults
from app.cli.policy import policy
from app.cli.producers import producers
from app.cli.publish import publish
from app.cli.resume import resume
from app.cli.setup import setup
from app.cli.sink import sink
from app.cli.status import status
from app.cli.tables import tables
from app.cli.verify import verify
from app.cli.web import web
from app.cli.worker import worker
from errors import RatchetError

cli = typer.Typer(
    name="ratchet",
    help="Events that arrive more than once count exactly once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for command in (demo, broker, worker, web, publish, tables, producers, status, resume, verify, setup):
    cli.command()(command)
cli.add_typer(policy, name="policy")
cli.add_typer(bench, name="bench")
cli.add_typer(faults, name="faults")
cli.add_typer(sink, name="sink")


def main() -> None:
    """Entry point of `ratchet`: an error of ours becomes its sentence on stderr and exit code 2."""
    from app._logging import configure
    from spark_sink._secrets import hide_in_tracebacks

    hide_in_tracebacks()
    configure("warning")  # commands that run as services set the level of their settings
    sys.exit(run())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. arguments: without the program's name; None: the process's own."""
    try:
        cli(arguments, prog_name="ratchet")
    except RatchetError as error:
        from spark_sink._secrets import hidden

        print(hidden(f"ratchet: {error}"), file=sys.stderr)
        return 2
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 2
    return 0
