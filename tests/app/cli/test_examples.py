"""Examples in the help of commands: each command has one, and it can be parsed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from kafka_ratchet.app.cli import TOOLS, cli

EXAMPLE = "Example: ratchet "


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words and the object of each command that a user can run, without the tools of a clone."""
    inner = getattr(command, "commands", None)
    if inner is None or command.invoke_without_command:
        yield words, command
    for name, each in (inner or {}).items():
        if words or name not in TOOLS:
            yield from commands(each, (*words, name))


COMMANDS = [each for each in commands(typer.main.get_command(cli)) if each[0]]


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_the_help_has_an_example_that_can_be_parsed(words: tuple[str, ...], command: Any) -> None:
    assert command.epilog
    assert command.epilog.startswith(EXAMPLE)
    given = shlex.split(command.epilog.removeprefix(EXAMPLE))
    assert tuple(given[: len(words)]) == words
    command.make_context(words[-1], given[len(words) :])
