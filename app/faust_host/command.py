"""`ratchet worker --faust MODULE:NAME`: run of an unchanged Faust program on lanes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import faust
from faust.exceptions import ImproperlyConfigured

from kafka_ratchet.app.faust_host.check import modules_of, refuse_shown
from kafka_ratchet.app.faust_host.transport import NoConductor, Transport
from kafka_ratchet.app.settings import given as given_settings
from kafka_ratchet.app.worker.parent import Parent, ProcessRole
from kafka_ratchet.app.worker.process import STOP_WITHIN_S
from kafka_ratchet.app.worker.program import load_object, names_in
from kafka_ratchet.errors import SettingsError

KILL_AFTER_S: Final = STOP_WITHIN_S + 15.0
_READY: Final[WeakSet[Any]] = WeakSet()
"""Apps that `make_ready` has prepared."""


def load_app(text: str) -> Any:
    """Import a Faust app by its name, and the modules that the app discovers.

    Args:
        text: MODULE:NAME, as `shop:app`; without NAME: `app`

    Raises:
        SettingsError: a module cannot be imported, or has no such app.
    """
    found = load_object(text, "--faust")
    if not isinstance(found, faust.App):
        raise SettingsError(f"--faust {text}: is a {type(found).__name__}, not a faust.App. Name the faust.App")
    make_ready(found, names_in(text, "--faust")[0])
    return found


def make_ready(app: Any, module: str | None = None) -> None:
    """Prepare an app as Faust's command line does: fixups, discovery, then the signal `on_worker_init`.

    Without the discovery, a program would lack the tables and agents of its other modules. Later calls for the same app
    do nothing.

    Args:
        app: the Faust app
        module: module of the app, the default of its `origin`

    Raises:
        SettingsError: the app discovers a module that does not exist, or does not know its package.
    """
    if app in _READY:
        return
    app.finalize()
    if app.conf._origin is None:
        app.conf._origin = module
    app.worker_init()
    if app.conf.autodiscover:
        try:
            app.discover()
        except (ModuleNotFoundError, ImproperlyConfigured) as error:
            reason = str(error).strip().partition("\n")[0]
            raise SettingsError(
                f"Faust app {app.conf.id}: autodiscover failed: {reason}. Correct autodiscover= of faust.App, or name "
                "the program's package in origin="
            ) from error
    app.worker_init_post_autodiscover()
    _READY.add(app)


def use_lanes(app: Any, config: Path | None = None, given: Mapping[str, Any] | None = None) -> None:
    """Make a Faust app run on lanes (Ratchet's partition runners), regardless of its broker's URL.

    Args:
        app: the Faust app
        config: path of ratchet.toml, as for `load`
        given: settings of the command line
    """
    app.finalize()
    urls = [url.with_scheme("ratchet") for url in app.conf.broker]
    app._transport = Transport(urls, app)
    app._transport.config, app._transport.given = config, dict(given or {})
    app._producer = app._consumer = None
    app.__dict__["topics"] = NoConductor(app=app)


def run(text: str, config: Path | None, given: Mapping[str, Any], log_level: str = "info") -> int:
    """Run a Faust program until SIGINT or SIGTERM. Returns the exit code.

    Args:
        text: MODULE:NAME
        config: path of ratchet.toml, as for `load`
        given: settings of the command line
        log_level: level of Faust's log.

    Raises:
        SettingsError: the program cannot be loaded, or has statements that cannot have their effects exactly once.
    """
    refuse_shown(modules_of(text, Path.cwd()))
    processes = int(given.get("processes") or given_settings(config).get("processes") or 1)
    if processes > 1:
        roles = [
            ProcessRole(f"ratchet/{number}", partial(_process, text, config, given, log_level, number))
            for number in range(processes)
        ]
        return Parent(roles, KILL_AFTER_S).run()
    return _run(text, config, given, log_level)


def _process(text: str, config: Path | None, given: Mapping[str, Any], log_level: str, number: int) -> None:
    _run(text, config, given, log_level, number)


def _run(text: str, config: Path | None, given: Mapping[str, Any], log_level: str, number: int | None = None) -> int:
    """Run one process of a Faust program.

    number: number of this process among several; each has its own folder, and its own port for Faust's pages. None:
    there is only one process.
    """
    app = load_app(text)
    own: dict[str, Any] = {name: value for name, value in given.items() if name != "processes"}
    if number is not None:
        folder = own.get("state_folder") or given_settings(config).get("state_folder")
        whole = Path(folder or Path(app.conf.datadir) / "ratchet")
        own["state_folder"] = whole / str(number)
        app.conf.web_port += number
        app.conf.canonical_url = f"http://{app.conf.web_host}:{app.conf.web_port}"
    use_lanes(app, config, own)
    if number is not None:
        app._transport.folder = whole
    worker = app.Worker(loglevel=log_level)
    try:
        worker.execute_from_commandline()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
