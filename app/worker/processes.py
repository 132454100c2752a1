"""Worker of several processes: imports, compilation and requests are done once before the fork."""

from __future__ import annotations

import asyncio
import gc
import importlib
import socket
import sys
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.event_loop import loop_factory
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.http import CannotBind, is_wildcard, listen, reachable_host, url_of
from kafka_ratchet.app.status.together import CombinedServer
from kafka_ratchet.app.worker.compile import compile_kernels
from kafka_ratchet.app.worker.parent import NotReady, Parent, ProcessRole, ask, refuse_threads
from kafka_ratchet.app.worker.process import STOP_WITHIN_S, PreparedTopics, ProcessSlot, prepare, serve, state_folder
from kafka_ratchet.errors import BrokerUnavailable, SettingsError, SetupError
from kafka_ratchet.rule.extraction import computed_identity_reader, reader_for
from kafka_ratchet.rule.identity import SequenceSource

log = structlog.get_logger(__name__)

LATE_IMPORTS: Final = ("faust.app.router", "faust.tables.objects", "faust.tables.sets", "faust.topics", "faust.worker")
"""Modules to import before the fork, so that the processes need not import them."""

KILL_AFTER_S: Final = STOP_WITHIN_S + 15.0
"""Seconds after which the parent kills a stopping process. Before that, the process ends itself and logs why."""


def run(settings: Settings, program: App | None = None) -> int:
    """Run `settings.processes` worker processes until SIGINT or SIGTERM.

    Returns:
        exit code: 0, or 1 if a process did not end properly on request

    Raises:
        RatchetError: the processes cannot start, or one of them cannot work; the text says why.
    """
    if sys.platform != "linux":
        raise SettingsError("processes: more than one needs Linux. Set processes = 1, and start several workers")
    if settings.bootstrap is None:
        raise SettingsError(
            "processes: more than one process needs the address of a Kafka. Set bootstrap in the settings file, or "
            "RATCHET_BOOTSTRAP"
        )
    with state_folder(settings.state_folder):
        say_unused(settings)
        compile_kernels()
        _import_late(settings)
        refuse_threads()
        bootstrap = settings.bootstrap
        seats, shared = _seats(settings)
        prepared = decoded(ask(lambda: encoded(prepare(settings, bootstrap, program))))
        # The processes' collectors must not examine present objects, which would copy them.
        gc.collect()
        gc.freeze()
        gc.enable()
        addresses = [_address(settings.web.host, seat.listening) for seat in seats]

        def worker(number: int) -> None:
            structlog.contextvars.bind_contextvars(process=number)
            own = settings_of(settings, number)
            try:
                with state_folder(own.state_folder):
                    serve(own, bootstrap, prepared, program, seats[number])
            except BrokerUnavailable as error:
                raise NotReady(str(error)) from None

        def status() -> None:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(CombinedServer(addresses, parent.replaced).serve(settings.web.host, shared))

        roles = [ProcessRole(f"ratchet/{number}", partial(worker, number)) for number in range(settings.processes)]
        parent = Parent([*roles, ProcessRole("ratchet/status", status, ends_last=True)], KILL_AFTER_S)
        url = url_of(reachable_host(settings.web.host), shared.getsockname()[1])
        log.info("worker has processes", app=settings.app, processes=settings.processes, status_of_all=url)
        return parent.run()


def settings_of(settings: Settings, number: int) -> Settings:
    """Return the settings of one process, with its own state folder and its share of `state_memory_mb`."""
    share = max(1, settings.state_memory_mb // settings.processes)
    return settings.model_copy(update={"state_folder": settings.state_folder / str(number), "state_memory_mb": share})


def say_unused(settings: Settings) -> None:
    """Log the local stores that remain from a worker with another number of processes."""
    if unused := unused_stores(settings):
        log.info(
            "local stores of a worker with another number of processes are not used now. The changelogs have their "
            "contents: remove these folders while no worker runs, if you need the space",
            folders=[str(folder) for folder in unused],
        )


def unused_stores(settings: Settings) -> list[Path]:
    """Return the folders with stores of this application that no process of these settings uses."""
    folder, used = settings.state_folder, range(settings.processes) if settings.processes > 1 else range(0)
    numbered = [each for each in sorted(folder.glob("*")) if each.name.isdecimal() and each.name.isascii()]
    found = [each for each in numbered if (each / settings.app).is_dir() and each.name not in map(str, used)]
    whole = folder / settings.app
    if settings.processes > 1 and whole.is_dir() and any((whole / name).is_dir() for name in settings.streams):
        found.append(whole)
    return found


def encoded(prepared: PreparedTopics) -> bytes:
    """Return the topics as JSON."""

    def plain(value: Any) -> dict[str, Any]:
        if isinstance(value, Mapping):
            return dict(value)
        raise NotImplementedError

    return msgspec.json.encode(prepared, enc_hook=plain)


def decoded(text: bytes) -> PreparedTopics:
    """Return the topics from the JSON of `encoded`."""
    return msgspec.json.decode(text, type=PreparedTopics)


def _import_late(settings: Settings) -> None:
    for module in LATE_IMPORTS:
        importlib.import_module(module)
    loop_factory()
    for stream in settings.streams.values():  # functions of the user's own
        reader_for(SequenceSource.parse(stream.sequence), stream.sequence_form)
        computed_identity_reader(stream.identity)


def _seats(settings: Settings) -> tuple[list[ProcessSlot], socket.socket]:
    """Return the slot of each process, and the listening socket of their common status address.

    Each worker draws its own instance ids: two members with the same id would remove each other from the group.
    """
    worker = uuid.uuid4().hex[:12]
    web = settings.web
    try:
        seats = [ProcessSlot(f"ratchet-{worker}-{number}", listen(web.host, 0)) for number in range(settings.processes)]
        return seats, listen(web.host, web.status_port)
    except CannotBind as error:
        raise SetupError(
            f"the worker's status cannot be served on {web.host!r}, port {web.status_port or 'any'}: {error}. Choose "
            "another web.status_port (each worker on a machine needs its own; 0 takes a free one) or another web.host"
        ) from None


def _address(host: str, listening: socket.socket) -> str:
    """Return the URL at which this machine reaches a listening socket."""
    here = {socket.AF_INET6: "::1"}.get(listening.family, "127.0.0.1") if is_wildcard(host) else host
    return url_of(here, listening.getsockname()[1])
