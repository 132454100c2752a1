"""All checks of `ratchet doctor`, each after those that it depends on."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kafka_ratchet.app.doctor.findings import Finding, Mark
from kafka_ratchet.app.doctor.kafka import KafkaChecks
from kafka_ratchet.app.doctor.progress import progress
from kafka_ratchet.app.extras import missing_extra
from kafka_ratchet.app.local.connectivity import require_answer
from kafka_ratchet.app.settings import Settings, load, origins
from kafka_ratchet.app.status.results import access_of, place_of, result_stream, spec_of, topic_of
from kafka_ratchet.app.worker.claims import read_claims
from kafka_ratchet.errors import RatchetError, SettingsError
from kafka_ratchet.spark_sink.errors import SinkError
from kafka_ratchet.topic_log.clients import consumer, offset_ranges
from kafka_ratchet.topic_log.reading import records
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.owner import FORMAT, KEY, Owner

AFTER_SETTINGS: Final = ("broker", "rights", "topics", "group", "formats", "clock", "progress", "disk")
AFTER_BROKER: Final = ("rights", "topics", "group", "formats", "clock", "progress")
READ_S: Final = 30.0
"""Maximum seconds of reading changelogs."""
LITTLE: Final = 1 << 30
"""Bytes of free disk space below which doctor warns."""


def diagnose(path: Path | None = None, state_folder: Path | None = None) -> list[Finding]:
    """Run all checks, without changing anything.

    Args:
        path: the settings file, as in `load`
        state_folder: folder of local stores; None: `state_folder` of the settings
    """
    given = {"state_folder": state_folder} if state_folder else {}
    try:
        settings = load(path, **given)
        settings.require_streams()
        client_options(settings.bootstrap or "", settings.kafka)
    except SettingsError as error:
        wrong = [Finding("settings", Mark.ERROR, line) for line in str(error).splitlines()]
        return wrong + [_not_checked(each, "the settings are not valid") for each in AFTER_SETTINGS]
    return [*_settings(origins(path, **given)), *_sinks(settings), *_kafka(settings), *_disk(settings.state_folder)]


def _settings(found: Mapping[str, str]) -> Iterator[Finding]:
    yield Finding("settings", Mark.OK, f"the settings are valid; {len(found)} are not the default")
    for name, source in sorted(found.items()):
        yield Finding("settings", Mark.OK, f"{name}: {source}")


def _sinks(settings: Settings) -> Iterator[Finding]:
    """Check that each sink's settings fit together, and that the package of its store is installed.

    It sends requests to the schema registry, and none to the store.
    """
    for name in settings.every_sink():
        chosen = settings.of_sink(name)
        try:
            stream, found = result_stream(chosen)
            spec = spec_of(chosen, topic_of(chosen, found), settings.bootstrap or "")
            pipeline = spec.pipeline(access_of(chosen))
            spec.result_store(pipeline, access_of(chosen), 0)
            if pipeline.registry is not None:
                address = pipeline.registry.require_answer()
                yield Finding("sinks", Mark.OK, f"sink {name}: the schema registry at {address} answers")
        except (SinkError, SettingsError) as error:
            yield Finding("sinks", Mark.ERROR, f"sink {name}: {error}")
        except ModuleNotFoundError as error:
            yield Finding("sinks", Mark.ERROR, f"sink {name}: {missing_extra(error) or error}")
        else:
            where = f"{chosen.sink.store} {place_of(chosen)}"
            yield Finding("sinks", Mark.OK, f"sink {name}: job {chosen.sink.name} reads stream {stream} into {where}")


def _kafka(settings: Settings) -> Iterator[Finding]:
    if settings.bootstrap is None:
        yield _not_checked("broker", "bootstrap is not set: a worker would start a Kafka of its own")
        yield from (_not_checked(each, "no Kafka is named") for each in AFTER_BROKER)
        return
    try:
        require_answer(settings.bootstrap, settings.kafka)
    except RatchetError as error:
        yield Finding("broker", Mark.ERROR, str(error))
        yield from (_not_checked(each, "Kafka does not answer") for each in AFTER_BROKER)
        return
    yield Finding("broker", Mark.OK, f"Kafka at {settings.bootstrap} answers")
    checks = KafkaChecks(settings, settings.bootstrap)
    checks.describe()
    yield from checks.rights()
    yield from checks.topics()
    yield from checks.group()
    yield from _formats(settings, settings.bootstrap, checks)
    yield from checks.clock()
    if checks.has_groups:  # a client that asks for positions would make Kafka create the topic of groups
        yield from progress(settings, settings.bootstrap, has_run=bool(checks.changelogs))


def _formats(settings: Settings, bootstrap: str, checks: KafkaChecks) -> Iterator[Finding]:
    """Check that this version can read the claims, and the owner entry of each changelog partition."""
    try:
        read_claims(settings, bootstrap)
        yield Finding("formats", Mark.OK, "the claims of topics can be read by this version")
    except RatchetError as error:
        yield Finding("formats", Mark.ERROR, str(error))
    deadline = time.monotonic() + READ_S
    for name, topic in sorted(checks.changelogs.items()):
        try:
            newest = _newest_format(settings, bootstrap, topic, len(checks.found[topic].partitions), deadline)
        except RatchetError as error:
            yield Finding("formats", Mark.ERROR, str(error))
            continue
        if newest is None:
            sentence = f"stream {name}: {topic} was not read to its end within {READ_S:.0f} s; its format is not known"
            yield Finding("formats", Mark.WARNING, sentence)
        else:
            sentence = f"stream {name}: {topic} has format {newest}, and this version reads {FORMAT}"
            yield Finding("formats", Mark.OK, sentence)


def _newest_format(settings: Settings, bootstrap: str, topic: str, partitions: int, deadline: float) -> int | None:
    """Return the highest format of a changelog's owner entries, but at least `FORMAT`.

    None: the changelog was not read before the deadline.

    Raises:
        OwnerDiffers: a newer version wrote an entry.
        RatchetError: the changelog cannot be read.
    """
    newest = FORMAT
    options = {"bootstrap.servers": bootstrap, **settings.kafka}
    with consumer(options, "ratchet-doctor") as asked:
        for number, held in enumerate(offset_ranges(asked, topic, partitions)):
            for message in records(asked, topic, number, held.first, timeout_s=READ_S, end=held.end):
                if message.key() == KEY and (value := message.value()) is not None:
                    newest = max(newest, Owner.unpack(value).format)
                if time.monotonic() > deadline:
                    return None
    return newest


def _disk(folder: Path) -> Iterator[Finding]:
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Finding("disk", Mark.ERROR, f"state_folder {folder}: {there} is not a folder that this user may write to")
        return
    free = shutil.disk_usage(there).free
    mark = Mark.WARNING if free < LITTLE else Mark.OK
    yield Finding("disk", mark, f"state_folder {folder}: {free / (1 << 30):.1f} GiB are free")
    lock = folder / "worker.lock"
    if lock.exists():
        held = _is_locked(lock)
        says = {True: "a worker uses it now", False: "no worker uses it", None: "whether a worker uses it is not known"}
        yield Finding("disk", Mark.OK, f"state_folder {folder}: {says[held]}")


def _is_locked(lock: Path) -> bool | None:
    """Return True if a process has locked the file `lock`, False if no process has, None if it is unknown.

    It looks in /proc/locks, because locking the file could make a starting worker fail.
    """
    try:
        lines = Path("/proc/locks").read_text("ascii").splitlines()
        inode = str(lock.stat().st_ino)
    except OSError:
        return None
    return any(line.split()[1] == "FLOCK" and line.split()[5].rpartition(":")[2] == inode for line in lines)


def _not_checked(check: str, why: str) -> Finding:
    return Finding(check, Mark.NOT_CHECKED, f"not checked: {why}")
