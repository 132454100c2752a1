"""Error texts about mistakes in the settings. They do not show values that may be secrets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from pydantic import BaseModel, ValidationError
from pydantic_settings import SettingsError as UnreadableVariable

PREFIX = "RATCHET_"

Sections = Mapping[str, type[BaseModel]]


def unreadable(error: UnreadableVariable) -> str:
    """Return the message for a variable with invalid JSON."""
    named = re.search(r'field "(\w+)"', str(error))
    variable = f"{PREFIX}{named[1].upper()}" if named else f"A {PREFIX}* variable"
    return f"{variable}: not valid JSON. Write the section as a JSON object, or name a setting in it: {PREFIX}WEB__PORT"


def sentences(error: ValidationError, model: type[BaseModel], sections: Sections) -> Iterator[str]:
    """Yield one error text for each invalid setting, with its name and the remedy.

    Args:
        error: validation errors of the model.
        model: the validated model.
        sections: the model of each section.
    """
    for mistake in error.errors():
        where = [str(part) for part in mistake["loc"]]
        name = ".".join(where) or "settings"
        if mistake["type"] == "extra_forbidden":
            known = _siblings(where, model, sections)
            yield f"{name}: {no_such_setting(where[-1], known)}. Remove it or correct its name"
        elif mistake["type"] == "missing":
            yield f"{name}: is missing. Add it to the settings file or set {PREFIX}{'__'.join(where).upper()}"
        else:
            message = mistake["msg"].removeprefix("Value error, ")
            yield f"{name}: {message}{_given(where, mistake['input'])}"


def _given(where: list[str], value: object) -> str:
    """Return " (given: VALUE)"; "" if the value may be a secret, or is a section."""
    may_be_secret = (
        not where or where[0] in {"kafka", "sink", "sinks"} or (where[0] == "bootstrap" and "@" in str(value))
    )
    if may_be_secret or isinstance(value, (dict, BaseModel)):
        return ""
    return f" (given: {value!r})"


def _siblings(where: list[str], model: type[BaseModel], sections: Sections) -> set[str]:
    return set((sections.get(where[0], model) if len(where) > 1 else model).model_fields)


def no_such_setting(name: str, known: set[str]) -> str:
    """Return the message for an unknown setting. known: the valid names."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(known))}"
    return f"there is no such setting ({hint})"
