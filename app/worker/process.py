"""Worker process: the application, its status address, and the lock on its state folder.

For several processes under one parent see `kafka_ratchet.app.worker.processes`.
"""

from __future__ import annotations

import asyncio
import faulthandler
import fcntl
import gc
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.event_loop import loop_factory
from kafka_ratchet.app.local.connectivity import wait_until_reachable
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.server import StatusServer
from kafka_ratchet.app.worker.application import Application
from kafka_ratchet.app.worker.compile import compile_kernels
from kafka_ratchet.app.worker.global_tables import prepare_global_tables
from kafka_ratchet.app.worker.program import digest_of, functions_of
from kafka_ratchet.app.worker.sent_topics import prepare_sent_topics
from kafka_ratchet.app.worker.steps import prepare_streams, refuse_abandoned
from kafka_ratchet.app.worker.topics import StreamTopics, check_event_time, prepare_policy
from kafka_ratchet.errors import BrokerUnavailable, SettingsError, StateFolderInUse
from kafka_ratchet.transport.sent_topics import SentTopic
from kafka_ratchet.transport.until_stopped import done_before

log = structlog.get_logger(__name__)

FILES_MOST: Final = 1 << 16
"""Maximum number of open files: enough for some 8,000 partitions."""
STOP_WITHIN_S: Final = 90.0
"""Seconds after which a stopping process is ended by force. It may wait a minute for a transaction (END_FOR_S)."""


class PreparedTopics(NamedTuple):
    """Topics of a worker as found in Kafka: topics of its streams, and topics of its program's sends."""

    topics: dict[str, StreamTopics]
    sends: dict[str, SentTopic]


class ProcessSlot(NamedTuple):
    """Identity of one of several worker processes, which its replacement inherits.

    instance_id: static id in the group (KIP-345), so that the replacement gets the same partitions
    listening: listening socket of the process's status address
    """

    instance_id: str
    listening: socket.socket


def run(settings: Settings, bootstrap: str, program: App | None = None) -> None:
    """Run a worker until SIGINT or SIGTERM. program: the user's agents and tables, if any.

    Raises:
        RatchetError: the worker cannot start; the text says why.
    """
    with state_folder(settings.state_folder), ThreadPoolExecutor(1) as beside:
        # During requests to Kafka, so that the first batch does not wait for it.
        kernels = beside.submit(compile_kernels)
        found = prepare(settings, bootstrap, program)
        kernels.result()
        serve(settings, bootstrap, found, program)


def serve(
    settings: Settings,
    bootstrap: str,
    prepared: PreparedTopics,
    program: App | None = None,
    seat: ProcessSlot | None = None,
) -> None:
    """Run a worker over prepared topics until SIGINT or SIGTERM. seat: None for a worker of one process.

    Raises:
        RatchetError: the worker cannot start; the text says why.
    """
    allow_many_files()
    # Objects of the start are not examined again: nearly none of half a million is ever garbage.
    gc.freeze()
    gc.enable()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings, bootstrap, prepared, program, seat))


def allow_many_files() -> None:
    """Raise this process's limit of open files: each running partition has six files and two connections open.

    The usual limit of 1,024 protects programs that use select(), which asyncio does not. Java raises it as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MOST if hard == resource.RLIM_INFINITY else min(hard, FILES_MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # then it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def prepare(settings: Settings, bootstrap: str, program: App | None) -> PreparedTopics:
    """Create a worker's missing topics, and check that all fit the settings.

    If Kafka becomes unreachable, the preparation starts again until `kafka_timeout_s` has passed.

    Raises:
        RatchetError: the worker cannot start; the text says why.
    """
    deadline = time.monotonic() + settings.kafka_timeout_s
    while True:
        wait_until_reachable(bootstrap, settings.kafka, settings.kafka_timeout_s, log.warning)
        try:
            prepare_policy(bootstrap, settings)
            refuse_abandoned(bootstrap, settings)
            topics = prepare_streams(bootstrap, settings, program)
            prepare_global_tables(bootstrap, settings, program.global_tables.values() if program else [])
            if program is not None:
                check_event_time(bootstrap, settings, program)
            sends = prepare_sent_topics(bootstrap, settings, program, topics) if program else {}
            return PreparedTopics(topics, sends)
        except BrokerUnavailable as error:
            if time.monotonic() > deadline:
                raise
            log.warning("Kafka went away while the topics were prepared; trying again", reason=str(error))


async def _serve(
    settings: Settings, bootstrap: str, prepared: PreparedTopics, program: App | None, seat: ProcessSlot | None
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def request_stop() -> None:
        stop.set()
        _end_in_any_case()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, request_stop)
    instance_id, listening = seat or (None, None)
    application = Application(settings, bootstrap, prepared.topics, program, prepared.sends, instance_id)
    digest = digest_of(functions_of(program)) if program else ""
    status = StatusServer(
        application.answers,
        settings.web.host,
        settings.web.status_port,
        history=application.past,
        listening=listening,
        program=digest,
    )
    url = await status.start()
    try:
        if await done_before(stop, application.start(url)):
            code = {"program": digest} if digest else {}
            log.info("worker runs", app=settings.app, streams=list(settings.streams), status=url, **code)
            await application.run_until(stop)
    finally:
        log.info("worker stops", app=settings.app)
        _end_in_any_case()
        await application.stop()
        await status.stop()


def _end_in_any_case() -> None:
    """Have this process end after `STOP_WITHIN_S` even if a thread hangs, and write all threads' tracebacks then.

    Faust waits for one of its threads without a limit, and so blocks the event loop. Only a thread outside Python can
    still end the process then. To other workers this is a crash: the next owner ends the open transaction.
    """
    faulthandler.dump_traceback_later(STOP_WITHIN_S, exit=True)


@contextmanager
def state_folder(folder: Path) -> Iterator[None]:
    """Create and lock the state folder for this process. The lock also ends when the process dies.

    Raises:
        SettingsError: the folder is a file, or cannot be created or written.
        StateFolderInUse: another worker has locked the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / "worker.lock").open("a+")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(
            f"state_folder: {str(folder)!r} cannot be used: {why}. Name a folder that this user may create and write "
            "to (--state-folder or RATCHET_STATE_FOLDER)"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise StateFolderInUse(
                f"{folder}: is used by another worker (process {lock.read().strip() or 'unknown'}). "
                "Give each worker its own folder: --state-folder or RATCHET_STATE_FOLDER"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
