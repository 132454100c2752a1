"""Names of Faust's App that an App does not have, and what stands for each."""

from __future__ import annotations

from typing import Final, NoReturn

from kafka_ratchet.errors import NotInApp

INSTEAD: Final = {
    "app": "there is no Faust app behind it, because a Faust agent or table runs outside the transactions. Write "
    "`@app.agent(app.stream(...))` and `app.Table(...)`",
    "SetTable": "write `app.Table(NAME, default=set, value_type=set[str])`",
    "SetGlobalTable": "write `app.Table(NAME, default=set, value_type=set[str])`",
    "actor": "write `@app.agent(app.stream(...))`",
    "channel": "call a function, or send to a topic",
    "command": "write a script of its own",
    "conf": "settings stand in ratchet.toml and RATCHET_* variables",
    "crontab": "write `@app.timer(60)` and look at the clock, or have a cron job publish an event",
    "main": "write `ratchet worker --app MODULE:app`",
    "page": "run a web server of its own; `ratchet web` shows tables",
    "service": "run it in a process of its own",
}
"""Only asked for names that App lacks: one that is added there needs no change here."""


def refuse(name: str) -> NoReturn:
    """Raise for an attribute that an App does not have.

    Raises:
        NotInApp: Faust's has it.
        AttributeError: no App has it.
    """
    if name in INSTEAD:
        raise NotInApp(f"app.{name}: {INSTEAD[name]}. docs/guide/from-faust.md has Faust's names side by side")
    raise AttributeError(f"an App of kafka_ratchet has no {name!r}")
