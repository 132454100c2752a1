"""`ratchet state import --faust`: tables from Faust's changelogs and offsets from its group, while no worker runs."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
from faust.tables.sets import OPERATION_UPDATE, SetTable

from kafka_ratchet.app.faust_host.command import load_app, use_lanes
from kafka_ratchet.app.faust_host.program import Hosted, switch_off
from kafka_ratchet.app.faust_host.store import LaneStore
from kafka_ratchet.app.faust_host.transport import GROUP_S, hosted_app, prepare_changelogs
from kafka_ratchet.app.local.connectivity import wait_until_reachable
from kafka_ratchet.app.operations.resume import CHANGELOG_BYTES, Resume, Wanted
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.group import Group, ask_group
from kafka_ratchet.app.worker.claims import now, this_user
from kafka_ratchet.app.worker.process import prepare
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.producers import admin_client
from kafka_ratchet.tables.edits import IMPORT, Edit
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.tables.values.table_partition import prefix_of
from kafka_ratchet.topic_log.clients import consumer, offset_ranges, partition_counts
from kafka_ratchet.topic_log.reading import records
from kafka_ratchet.transport.batch.encoding import encode_entries
from kafka_ratchet.transport.client.cluster import EARLIEST, Cluster

READ_S: Final = 60.0
"""Seconds without an answer after which reading a changelog ends."""

Entries = dict[bytes, bytes]


class Taken(msgspec.Struct, frozen=True):
    """State taken over for one partition. position: next offset of the input; None: its beginning."""

    stream: str
    partition: int
    position: int | None
    keys: int


def take_over(text: str, config: Path | None, *, dry_run: bool) -> list[Taken]:
    """Import the state of plain Faust workers: their group's offsets, and tables from their changelogs.

    Args:
        text: MODULE:NAME of the program
        config: path of ratchet.toml, as for `load`
        dry_run: only return what would be imported

    Raises:
        SettingsError: workers run, lanes have run already, or records wait between two steps.
        RatchetError: Kafka refuses the request. Partitions imported before are complete; run the import again.
    """
    app = load_app(text)
    use_lanes(app, config)
    switch_off(app)
    hosted, settings = hosted_app(app, config)
    bootstrap = settings.bootstrap
    if bootstrap is None:
        raise SettingsError("bootstrap is missing: name the Kafka cluster in the program's broker or in ratchet.toml")
    wait_until_reachable(bootstrap, settings.kafka, settings.kafka_timeout_s, print)
    return _TakeOver(hosted, settings, bootstrap).run(dry_run=dry_run)


class _TakeOver:
    """Import of one program's state from plain Faust workers."""

    def __init__(self, hosted: Hosted, settings: Settings, bootstrap: str) -> None:
        self._hosted, self._settings, self._bootstrap = hosted, settings, bootstrap
        self._options = {"bootstrap.servers": bootstrap, **settings.kafka}

    def run(self, *, dry_run: bool) -> list[Taken]:
        group = self._group()
        self._refuse_waiting(group)
        tables = {name: self._read(name, store) for name, store in self._hosted.stores.items()}
        if not dry_run:
            prepare_changelogs(self._hosted, self._settings, self._bootstrap)
            prepare(self._settings, self._bootstrap, self._hosted.engine)
            self._group()
        return asyncio.run(self._write(group, tables, dry_run=dry_run))

    def _group(self) -> Group:
        group = ask_group(self._bootstrap, self._settings, GROUP_S)
        if group.members:
            raise SettingsError(
                f"{group.members} workers of {self._settings.app!r} are running. Stop them with SIGTERM, so that "
                "Faust commits its work, then run the import again"
            )
        topics = {*self._hosted.inputs.values()}
        done = sorted(place for place in group.committed if place[0] in topics)
        if done:
            raise SettingsError(
                f"{done[0][0]}, partition {done[0][1]}: a worker of Ratchet has already committed there, so its "
                "tables are newer than Faust's. Nothing was imported; start the worker without an import"
            )
        return group

    def _refuse_waiting(self, group: Group) -> None:
        """Refuse to import while records wait between two steps of Faust, because Ratchet's steps use other topics."""
        steps = {place: offset for place, offset in group.foreign.items() if place[0].endswith("-repartition")}
        with consumer(self._options, self._settings.app) as client:
            for (topic, number), offset in sorted(steps.items()):
                for found in records(client, topic, number, offset, timeout_s=READ_S):
                    raise SettingsError(
                        f"{topic}, partition {number}: records from offset {found.offset()} on wait for the second "
                        "step of Faust's agent. Run plain Faust without new events until no record waits, then stop it"
                    )

    def _read(self, name: str, store: LaneStore) -> dict[int, Entries]:
        """Read the entries of a table by partition, from Faust's changelog."""
        topic = store.table.changelog_topic.get_topic_name()
        admin = admin_client(self._options)
        count = partition_counts(admin, [topic]).get(topic)
        if count is None:
            return {}
        found: dict[int, Entries] = {}
        with consumer(self._options, self._settings.app) as client:
            for number, held in enumerate(offset_ranges(client, topic, count)):
                rows = (
                    (message.key(), message.value())
                    for message in records(client, topic, number, held.first, timeout_s=READ_S, end=held.end)
                )
                found[number] = _sets(store, rows) if isinstance(store.table, SetTable) else _latest(rows)
        return found

    async def _write(self, group: Group, tables: dict[str, dict[int, Entries]], *, dry_run: bool) -> list[Taken]:
        taken = []
        for name, stream in self._settings.streams.items():
            mine = {
                table: entries
                for table, entries in tables.items()
                if any(each.name == table for each in self._hosted.engine.tables_of(name)) and entries
            }
            resume = None if dry_run else Resume(self._settings, self._bootstrap, name, Wanted(None, "", False, False))
            partitions = resume.partitions if resume else self._partitions(stream.input, stream.partitions)
            for table, entries in mine.items():
                if max((number for number, rows in entries.items() if rows), default=0) >= partitions:
                    raise SettingsError(
                        f"table {table}: Faust's changelog has keys in more partitions than stream {name}, which "
                        f"has {partitions}. The program would look for these keys in other partitions. Give "
                        "faust.App another version="
                    )
            for number in range(partitions):
                rows = {
                    prefix_of(table) + key: value
                    for table, entries in mine.items()
                    for key, value in entries.get(number, {}).items()
                }
                position = group.foreign.get((stream.input, number))
                if rows or position is not None:
                    taken.append(Taken(name, number, position, len(rows)))
                    if resume is not None:
                        await self._commit(resume, number, position, rows)
        return taken

    def _partitions(self, topic: str, otherwise: int) -> int:
        return partition_counts(admin_client(self._options), [topic]).get(topic, otherwise)

    async def _commit(self, resume: Resume, number: int, position: int | None, rows: Entries) -> None:
        async with resume.connected() as cluster:
            with tempfile.TemporaryDirectory(prefix="ratchet-import-") as folder:
                state = resume.state_of(number, Path(folder))
                move = resume.move_of(cluster, number, state)
                try:
                    await move.take_over()
                    await move.read()
                    if state.input_position is not None:
                        raise SettingsError(
                            f"{state.changelog}, partition {number}: a worker of Ratchet has already processed the "
                            f"input up to offset {state.input_position}. It and later partitions were not imported"
                        )
                    at = await _position(cluster, resume, number) if position is None else position
                    who = secrets.token_hex(8), IMPORT, now(), this_user(), "Faust's changelogs"
                    edit = Edit(*who, at, added=len(rows), raised=0, replaced=0)
                    whole = [
                        (PROGRESS, Progress(0, 0, 0, 0)._replace(next=at).pack()),
                        *rows.items(),
                        edit.pack(state.edits.next),
                    ]
                    owner = await resume.owner_now(cluster)
                    await move.commit(encode_entries(whole, CHANGELOG_BYTES), at, owner.topics["input"].id)
                finally:
                    move.close()


async def _position(cluster: Cluster, resume: Resume, number: int) -> int:
    return await cluster.offset(resume.stream.input, number, EARLIEST, "import")


def _latest(rows: Any) -> Entries:
    """Return the newest value of each key; a null removes the key."""
    found: Entries = {}
    for key, value in rows:
        if key is None:
            continue
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def _sets(store: LaneStore, rows: Any) -> Entries:
    """Return the sets that result from Faust's logged operations, applied in order."""
    manager = store.table._data
    sets: dict[Any, Any] = {}
    for key, value in rows:
        if key is None:
            continue
        operation, name = msgspec.json.decode(key)
        name = store.table._to_key(name)
        changed = sets.get(name) or manager.ValueType(manager, name)
        element = msgspec.json.decode(value)
        is_one = operation != OPERATION_UPDATE and isinstance(element, list)
        changed.apply_changelog_event(operation, tuple(element) if is_one else element)
        sets[name] = changed
    return {
        store._encode_key(name): encoded
        for name, changed in sets.items()
        if (encoded := store._encode_value(sorted(changed.data, key=repr))) is not None
    }
