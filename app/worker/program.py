"""Loader of the programs named as MODULE:NAME in options of `ratchet worker`, and the digest of their code."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.program_errors import INSTALLED, STANDARD
from kafka_ratchet.errors import SettingsError

EXAMPLES: Final = {"--app": "app = App()", "--faust": "app = faust.App(...)"}
"""Example line of shop.py, by option, for the error about a wrong MODULE:NAME."""
DIGEST_DIGITS: Final = 12
"""Hexadecimal digits of a program's digest."""
_OWN: Final = __name__.partition(".")[0]


def names_in(text: str, option: str) -> tuple[str, str]:
    """Split MODULE:NAME into module and name; without NAME, the name is `app`.

    Raises:
        SettingsError: module or name is no Python identifier.
    """
    module, _, name = text.partition(":")
    name = name or "app"
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise SettingsError(f"{option} {text!r}: write MODULE:NAME, as shop:app for `{EXAMPLES[option]}` in shop.py")
    return module, name


def not_there(text: str, option: str, module: str, folder: Path) -> SettingsError:
    """Return the error about a module that cannot be found."""
    return SettingsError(
        f"{option} {text}: there is no module {module} in {folder}, nor an installed one. Correct the name"
    )


def load_object(text: str, option: str) -> Any:
    """Import a module, and return the object of the given name. The working folder is searched first.

    Args:
        text: MODULE:NAME, as `shop:app`; without NAME: `app`
        option: option of the command, for error texts

    Raises:
        SettingsError: the module cannot be imported, or has no such object.
    """
    module, name = names_in(text, option)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.partition(".")[0]):
            raise SettingsError(
                f"{option} {text}: {module} imports {error.name}, which is not installed. Install its package"
            ) from error
        raise not_there(text, option, module, Path(here)) from None
    except Exception as error:
        raise SettingsError(f"{option} {text}: {module} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        return getattr(loaded, name)
    except AttributeError:
        raise SettingsError(
            f"{option} {text}: module {module} has no {name}. Write MODULE:NAME with a name that the module defines"
        ) from None


def load_program(text: str) -> App:
    """Import a module, and return the kafka_ratchet.App of the given name.

    Args:
        text: MODULE:NAME, as `shop:app`; without NAME: `app`

    Raises:
        SettingsError: the import fails, or the object is no kafka_ratchet.App.
    """
    found = load_object(text, "--app")
    _, name = names_in(text, "--app")
    if any(base.__module__.partition(".")[0] == "faust" for base in type(found).__mro__):
        raise SettingsError(
            f"--app {text}: {name} is an object of Faust. A Faust program runs as it is with "
            f"`ratchet worker --faust {text}`; docs/guide/faust.md says what differs"
        )
    if not isinstance(found, App):
        raise SettingsError(
            f"--app {text}: {name} is a {type(found).__name__}, not an App of kafka_ratchet. Name the object that "
            "`kafka_ratchet.App()` returned"
        )
    return found


def digest_of(functions: Iterable[Any]) -> str:
    """Return a digest of a program's source, equal on all machines with the same code.

    The digest covers the modules of these functions, and all modules of the program that these import, directly or
    not. It covers neither libraries, nor data, nor modules that only a function's body imports.

    functions: the program's agents, timers and tasks; without a source file of theirs, the digest is ""
    """
    left = [found for each in functions if (found := _module_of(each)) is not None]
    packages = {_package_of(module) for module in left}
    sources: dict[str, bytes] = {}
    while left:
        module = left.pop()
        path = Path(getattr(module, "__file__", None) or "")
        name = path.stem if module.__name__ == "__main__" else module.__name__
        if name not in sources and path.suffix == ".py" and path.is_file():
            sources[name] = path.read_bytes()
            left += [each for each in _imported(module, sources[name]) if _is_of_program(each, packages)]
    if not sources:
        return ""
    content = [f"{name} {hashlib.sha256(source).hexdigest()}" for name, source in sorted(sources.items())]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:DIGEST_DIGITS]


def functions_of(program: App) -> Iterator[Any]:
    """Yield the functions of a program: agents, timers and tasks."""
    for stream in program.streams.values():
        yield from (agent.function for agent in stream.agents if not agent.is_step)
        yield from (timer.function for timer in stream.timers)
    yield from (timer.function for timer in program.timers)
    yield from program.tasks


def _module_of(function: Any) -> ModuleType | None:
    function = inspect.unwrap(getattr(function, "__func__", function))
    return sys.modules.get(getattr(function, "__module__", None) or "")


def _imported(module: ModuleType, source: bytes) -> Iterator[ModuleType]:
    """Yield the modules that a module imports at its top level, outside functions."""
    left: list[ast.AST] = [ast.parse(source)]
    while left:
        node = left.pop()
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.__package__)
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)
        for name in names:
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                if (found := sys.modules.get(".".join(parts[:end]))) is not None:
                    yield found


def _package_of(module: ModuleType) -> str:
    return module.__name__.partition(".")[0]


def _is_of_program(module: ModuleType, packages: set[str]) -> bool:
    """Return True if a module is in one of the program's packages, or belongs to no library."""
    package = _package_of(module)
    if package == _OWN:
        return False  # it has a version of its own
    path = getattr(module, "__file__", None)
    return package in packages or (path is not None and not path.startswith((*STANDARD, *INSTALLED)))
