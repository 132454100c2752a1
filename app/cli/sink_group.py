"""How `ratchet sink NAME` is read: a word that is no command names a sink."""

from __future__ import annotations

from typing import Final

import typer
from typer.core import TyperGroup

KEY: Final = "ratchet sink"


def sink_name(context: typer.Context) -> str | None:
    """The NAME that was given to a group of this class; None: none was."""
    name = context.meta.get(KEY)
    return None if name is None else str(name)


class SinkGroup(TyperGroup):
    """Commands with a NAME in their place: options of the group may stand before it and behind it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # noqa: D102
        # A group takes no option behind its first word, so the name is taken out before.
        _, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
        if rest and rest[0] not in self.commands:
            name, *behind = rest
            ctx.meta[KEY] = name
            args = [*args[: len(args) - len(rest)], *behind]
            again = self.make_parser(ctx).parse_args(args=list(args))[1]
            if again and again[0] in self.commands:
                ctx.fail(f"the name stands behind the command: {ctx.command_path} {again[0]} {name}")
            if again:
                ctx.fail(f"{again[0]!r}: one sink at a time is run, and {name!r} is named already")
        return super().parse_args(ctx, args)
