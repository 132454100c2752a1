"""Loader of programs that options of `ratchet worker` name as MODULE:NAME."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from kafka_ratchet.agents.program import App
from kafka_ratchet.errors import SettingsError

EXAMPLES: Final = {"--app": "app = App()", "--faust": "app = faust.App(...)"}
"""Line that an option's program has in shop.py."""


def names_in(text: str, option: str) -> tuple[str, str]:
    """Return module and name of MODULE:NAME; without NAME: `app`.

    Raises:
        SettingsError: one of them cannot be a name of Python.
    """
    module, _, name = text.partition(":")
    name = name or "app"
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise SettingsError(f"{option} {text!r}: write MODULE:NAME, as shop:app for `{EXAMPLES[option]}` in shop.py")
    return module, name


def not_there(text: str, option: str, module: str, folder: Path) -> SettingsError:
    """Return the error about a module that cannot be found."""
    return SettingsError(f"{option} {text}: there is no module {module} in {folder}, nor is one installed")


def load_object(text: str, option: str) -> Any:
    """Return the object of that name in that module. The working folder is searched first.

    Args:
        text: MODULE:NAME, as `shop:app`; without NAME: `app`
        option: of the command, for errors

    Raises:
        SettingsError: there is none, or the module cannot be imported.
    """
    module, name = names_in(text, option)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.partition(".")[0]):
            raise SettingsError(f"{option} {text}: {module} imports {error.name}, which is not installed") from error
        raise not_there(text, option, module, Path(here)) from None
    except Exception as error:
        raise SettingsError(f"{option} {text}: {module} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        return getattr(loaded, name)
    except AttributeError:
        raise SettingsError(f"{option} {text}: module {module} has no {name}") from None


def load_program(text: str) -> App:
    """Return the App that a text names.

    Args:
        text: MODULE:NAME, as `shop:app`; without NAME: `app`

    Raises:
        SettingsError: there is none, or the module cannot be imported.
    """
    found = load_object(text, "--app")
    _, name = names_in(text, "--app")
    if any(base.__module__.partition(".")[0] == "faust" for base in type(found).__mro__):
        raise SettingsError(
            f"--app {text}: {name} is an object of Faust. A Faust program runs as it is with "
            f"`ratchet worker --faust {text}`; docs/guide/faust.md says what differs"
        )
    if not isinstance(found, App):
        raise SettingsError(f"--app {text}: {name} is a {type(found).__name__}, not an App of kafka_ratchet")
    return found
