"""Finds the program that `ratchet worker --app MODULE:NAME` names."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from kafka_ratchet.agents.program import App
from kafka_ratchet.errors import SettingsError


def load_program(text: str) -> App:
    """The App of that name in that module, which is looked for in the working directory first.

    Args:
        text: MODULE:NAME, as `shop:app`; without NAME: `app`

    Raises:
        SettingsError: there is none, or the module cannot be imported.
    """
    module, _, name = text.partition(":")
    name = name or "app"
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise SettingsError(f"--app {text!r}: write MODULE:NAME, as shop:app for `app = App()` in shop.py")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise SettingsError(f"--app {text}: {module} imports {error.name}, which is not installed") from error
        raise SettingsError(f"--app {text}: there is no module {module} in {here}, nor is one installed") from None
    except AttributeError:
        raise SettingsError(f"--app {text}: module {module} has no {name}") from None
    except Exception as error:
        raise SettingsError(f"--app {text}: {module} cannot be imported: {type(error).__name__}: {error}") from error
    if any(base.__module__.partition(".")[0] == "faust" for base in type(found).__mro__):
        raise SettingsError(
            f"--app {text}: {name} is an object of Faust, whose agents run outside the transactions. Write "
            "`app = kafka_ratchet.App()`; docs/guide/from-faust.md says what else changes"
        )
    if not isinstance(found, App):
        raise SettingsError(f"--app {text}: {name} is a {type(found).__name__}, not an App of kafka_ratchet")
    return found
