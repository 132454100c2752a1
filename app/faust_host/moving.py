"""Import of Faust's tables and offsets, while no worker runs: `ratchet state import --faust`.

Tables come from Faust's changelogs, offsets from its consumer group.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from faust.tables.sets import OPERATION_UPDATE, SetTable

from kafka_ratchet.agents.program import StreamDefinition, ancestors_of
from kafka_ratchet.app.faust_host.command import load_app, use_lanes
from kafka_ratchet.app.faust_host.key_json import OTHER, library, writer
from kafka_ratchet.app.faust_host.program import ConvertedProgram, switch_off
from kafka_ratchet.app.faust_host.store import LaneStore
from kafka_ratchet.app.faust_host.transport import GROUP_S, hosted_app, prepare_changelogs
from kafka_ratchet.app.local.connectivity import wait_until_reachable
from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.operations.resume import CHANGELOG_BYTES, Resume, ResumeOptions
from kafka_ratchet.app.processed import READ_S, processed_partitions
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.group import Group, ask_group
from kafka_ratchet.app.worker.claims import now, this_user
from kafka_ratchet.app.worker.process import prepare
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.producers import admin_client
from kafka_ratchet.tables.edits import IMPORT, Edit
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.tables.values.table_partition import prefix_of
from kafka_ratchet.topic_log.clients import consumer, offset_ranges, partition_counts
from kafka_ratchet.topic_log.reading import records
from kafka_ratchet.transport.batch.encoding import encode_entries
from kafka_ratchet.transport.client.cluster import EARLIEST, Cluster

EXPIRED: Final = (
    "Kafka deletes offsets of a group without members after offsets.retention.minutes. Without it, all records would "
    "count once more. Nothing was imported. Set the offset that Faust had reached with kafka-consumer-groups "
    "--reset-offsets, or give faust.App another version="
)
NEW_VERSION: Final = "Give faust.App another version=, so that Ratchet builds the tables from the inputs"

Entries = dict[bytes, bytes]


class TakenState(msgspec.Struct, frozen=True):
    """State taken over for one partition. position: next offset of the input; None: its beginning."""

    stream: str
    partition: int
    position: int | None
    keys: int


def take_over(text: str, config: Path | None, *, dry_run: bool) -> list[TakenState]:
    """Import the state of plain Faust workers: their group's offsets, and tables from their changelogs.

    Args:
        text: MODULE:NAME of the program
        config: path of ratchet.toml, as for `load`
        dry_run: only return what would be imported

    Raises:
        SettingsError: workers run, nothing is left to import, records wait between two steps, offsets have expired,
            partition counts differ, or Faust writes other keys here.
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

    def __init__(self, hosted: ConvertedProgram, settings: Settings, bootstrap: str) -> None:
        self._hosted, self._settings, self._bootstrap = hosted, settings, bootstrap
        self._options = {"bootstrap.servers": bootstrap, **settings.kafka}

    def run(self, *, dry_run: bool) -> list[TakenState]:
        group = self._group()
        tables = {name: self._read(name, store) for name, store in self._hosted.stores.items()}
        plan = self._plan(group, tables)
        self._refuse_waiting(group)
        self._require_offsets(group)
        if not dry_run:
            prepare_changelogs(self._hosted, self._settings, self._bootstrap)
            prepare(self._settings, self._bootstrap, self._hosted.engine)
            self._require_offsets(group)
            asyncio.run(self._write(plan))
        return [taken for taken, _ in plan]

    def _group(self) -> Group:
        group = ask_group(self._bootstrap, self._settings, GROUP_S)
        if group.members:
            raise SettingsError(
                f"{group.members} workers of {self._settings.app!r} are running. Stop them with SIGTERM, so that "
                "Faust commits its work, then run the import again"
            )
        return group

    def _require_offsets(self, group: Group) -> None:
        """Require the offsets of the group to be those from before the tables were read.

        Raises:
            SettingsError: workers run, or an offset differs.
        """
        before = group.foreign | group.committed
        after = (now := self._group()).foreign | now.committed
        for topic, number in sorted({*before, *after}):
            place = topic, number
            if before.get(place) != after.get(place):
                raise SettingsError(
                    f"{topic}, partition {number}: the group's offset was {before.get(place, 'missing')} before the "
                    f"tables were read, and is {after.get(place, 'missing')} now, so the tables may not fit it. "
                    "Nothing was imported. Keep all workers of Faust stopped, then run the import again"
                )

    def _refuse_waiting(self, group: Group) -> None:
        """Refuse to import while records wait between two steps of a Faust agent.

        Ratchet's steps use other topics, and would not read these records.

        Raises:
            SettingsError: there are such records.
        """
        # A worker started in another way may have used another prefix than this program's.
        used = {topic for topic, _ in group.foreign if topic.endswith("-repartition")}
        counts = partition_counts(admin_client(self._options), sorted({*self._hosted.regrouped.values()} | used))
        with consumer(self._options, self._settings.app) as client:
            for topic, count in sorted(counts.items()):
                for number, held in enumerate(offset_ranges(client, topic, count)):
                    place = topic, number
                    reached = group.foreign.get(place, group.committed.get(place))
                    begin = held.first if reached is None else max(reached, held.first)
                    for found in records(client, topic, number, begin, timeout_s=READ_S, end=held.end):
                        raise SettingsError(_waiting(place, found.offset(), reached, self._settings.app))

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
                found[number] = _sets(store, rows) if isinstance(store.table, SetTable) else _latest(store, rows)
        return found

    def _plan(self, group: Group, tables: dict[str, dict[int, Entries]]) -> list[tuple[TakenState, Entries]]:
        """Return what to import into each partition, with its rows.

        Partitions with state of an interrupted import, or records that a worker has processed, are left out. So are
        those without rows of Faust where a worker has committed an offset, even without a record.

        Raises:
            SettingsError: nothing is left to import. Or Ratchet has processed a partition with an offset of Faust. Or
                offsets have expired in a partition with rows, or in its inputs. Or a changelog has another partition
                count than the stream of its table.
        """
        plan = []
        for name, stream in self._settings.streams.items():
            mine = {
                table: entries
                for table, entries in tables.items()
                if any(each.name == table for each in self._hosted.engine.tables_of(name)) and entries
            }
            partitions = self._count(name)
            for table, entries in mine.items():
                if len(entries) != partitions and any(entries.values()):
                    raise SettingsError(self._other_count(table, len(entries), name, partitions))
            found = []
            processed = processed_partitions(self._settings, self._bootstrap, name)
            for number in range(partitions):
                rows = {
                    prefix_of(table) + key: value
                    for table, entries in mine.items()
                    for key, value in entries.get(number, {}).items()
                }
                position = group.foreign.get((stream.input, number))
                if position is not None and number in processed:
                    raise self._already_processed(name, number, position)
                # A worker's first start commits an offset before any record.
                lacks_rows = number not in processed or (stream.input, number) not in group.committed
                if position is not None or (rows and lacks_rows):
                    found.append((TakenState(name, number, position, len(rows)), rows))
            self._refuse_expired(stream.input, [taken for taken, _ in found if taken.position is None])
            self._refuse_expired_inputs(group, name, sum(taken.keys for taken, _ in found))
            plan += found
        topics = {*self._hosted.inputs.values()}
        if not plan and (done := sorted(place for place in group.committed if place[0] in topics)):
            raise SettingsError(
                f"{done[0][0]}, partition {done[0][1]}: Ratchet has already committed there, and no partition is left "
                "to import. Nothing was imported; start the worker"
            )
        return plan

    def _already_processed(self, name: str, number: int, position: int) -> SettingsError:
        topic = self._settings.streams[name].input
        return SettingsError(
            f"{changelog_name(self._settings.app, name)}, partition {number}: a worker of Ratchet has already "
            f"processed records of {topic}, and another client has committed offset {position} since. Nothing was "
            f"imported. {NEW_VERSION}"
        )

    async def _write(self, plan: list[tuple[TakenState, Entries]]) -> None:
        """Commit a plan, partition by partition.

        Inputs with offsets that Faust committed come last. While Ratchet has not replaced such an offset, a worker does
        not start, or halts the partition. So no worker begins with empty tables after an interruption.
        """
        streams = self._hosted.engine.streams
        resumes: dict[str, Resume] = {}
        for taken, rows in sorted(plan, key=lambda each: _write_order(each[0], streams)):
            if taken.stream not in resumes:
                wanted = ResumeOptions(None, "", False, False)
                resumes[taken.stream] = Resume(self._settings, self._bootstrap, taken.stream, wanted)
            await self._commit(resumes[taken.stream], taken.partition, taken.position, rows)

    def _refuse_expired(self, topic: str, unplaced: list[TakenState]) -> None:
        """Refuse partitions with table rows and input records, but without a committed offset.

        Raises:
            SettingsError: there is such a partition.
        """
        if not unplaced:
            return
        with consumer(self._options, self._settings.app) as client:
            ranges = offset_ranges(client, topic, self._partitions(topic, 0))
        for taken in unplaced:
            if taken.partition < len(ranges) and ranges[taken.partition].end > ranges[taken.partition].first:
                raise SettingsError(
                    f"{topic}, partition {taken.partition}: Faust's tables have {taken.keys} rows, but its group "
                    f"{self._settings.app} has no offset. {EXPIRED}"
                )

    def _refuse_expired_inputs(self, group: Group, name: str, rows: int) -> None:
        """Refuse table rows of a stream if an input that feeds it has records, but no committed offset.

        Once Faust has committed an offset in one partition of a topic, the topic's partitions without an offset count
        as new.

        Args:
            group: the group with Faust's offsets
            name: name of the stream
            rows: number of rows to import into it

        Raises:
            SettingsError: there is such an input.
        """
        definition = self._hosted.engine.streams.get(name)
        if not rows or definition is None:
            return
        feeding = {each.name for each in ancestors_of(definition)} - {name}
        placed = {topic for topic, _ in (*group.foreign, *group.committed)}
        inputs = {self._settings.streams[each].input for each in feeding & {*self._hosted.inputs}}
        with consumer(self._options, self._settings.app) as client:
            for topic in sorted(inputs - placed):
                ranges = offset_ranges(client, topic, self._partitions(topic, 0))
                if any(held.end > held.first for held in ranges):
                    raise SettingsError(
                        f"{topic}: has records and feeds stream {name}, and Faust's tables have {rows} rows there, but "
                        f"Faust's group {self._settings.app} has no offset. {EXPIRED}"
                    )

    def _count(self, name: str) -> int:
        """Return the partition count of a stream's input: of its present topic, or of the one to create."""
        stream, definition = self._settings.streams[name], self._hosted.engine.streams.get(name)
        count = stream.partitions
        is_given = definition is None or definition.topic is None or "partitions" in stream.model_fields_set
        if definition is not None and definition.fed_by and not is_given:
            count = max(self._count(each.name) for each in definition.fed_by)
        return self._partitions(stream.input, count)

    def _other_count(self, table: str, has: int, name: str, partitions: int) -> str:
        stream = self._settings.streams[name]
        section = (
            f"Write a section [streams.{name}] in ratchet.toml with input = {stream.input!r}, output = "
            f"{stream.output!r}, dead_letters = {stream.dead_letters!r} and partitions = {has}, or give"
        )
        may_be_set = name in self._hosted.regrouped and not self._partitions(stream.input, 0)
        return (
            f"table {table}: Faust's changelog has {has} partitions, but stream {name} has {partitions}. The program "
            f"would look for these keys in other partitions. Nothing was imported. {section if may_be_set else 'Give'} "
            "faust.App another version="
        )

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
                    if _is_used(state):
                        raise SettingsError(
                            f"{state.changelog}, partition {number}: a worker of Ratchet has already processed the "
                            f"input up to offset {state.input_position}. This partition and later ones were not "
                            f"imported; earlier ones stay imported. {NEW_VERSION}"
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
                    if state.owner is not None:  # of an idle worker, perhaps with another rule
                        whole.append(owner.pack())
                    await move.commit(encode_entries(whole, CHANGELOG_BYTES), at, owner.topics["input"].id)
                finally:
                    move.close()


def _is_used(state: SequencePartition) -> bool:
    """Return True if a partition has processed records, imported state or an operator's decision."""
    is_decided = state.owner is not None and bool(state.owner.decisions)
    return state.has_processed or is_decided


def _waiting(place: tuple[str, int], offset: int, reached: int | None, group: str) -> str:
    """Return the sentence about records that wait between two steps. reached: Faust's committed offset, if any."""
    topic, number = place
    remedy = "Run plain Faust without new events until no record waits, then stop it"
    if reached is None:
        remedy += (
            f". If Faust has processed these records and Kafka has deleted the offset of its group {group}, set the "
            "offset to the end with kafka-consumer-groups --reset-offsets --to-latest"
        )
    return (
        f"{topic}, partition {number}: records from offset {offset} on wait for the second step of Faust's agent. "
        f"{remedy}"
    )


def _write_order(taken: TakenState, streams: Mapping[str, StreamDefinition]) -> tuple[bool, bool]:
    definition = streams.get(taken.stream)
    return taken.position is not None, definition is None or not definition.fed_by


async def _position(cluster: Cluster, resume: Resume, number: int) -> int:
    return await cluster.offset(resume.stream.input, number, EARLIEST, "import")


def _latest(store: LaneStore, rows: Any) -> Entries:
    """Return the newest value of each key; a null removes the key.

    Raises:
        SettingsError: Faust writes a key as other bytes in this environment, so that the program would not find it.
    """
    found: Entries = {}
    for key, value in rows:
        if key is None:
            continue
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    for key in found if store.key_serializer == "json" else ():
        if writer(store, key) == OTHER:
            raise SettingsError(_other_key(store, key))
    return found


def _other_key(store: LaneStore, key: bytes) -> str:
    if library() == "json":
        remedy = "Install orjson into this environment, as the Faust workers had it"
    else:
        remedy = "Install the version of orjson that the Faust workers had, or remove orjson if they had none"
    return (
        f"table {store.table_name}: Faust's changelog has the key {key!r:.100}, which Faust writes as "
        f"{store._encode_key(store._decode_key(key))!r:.100} in this environment, so that the program would not find "
        f"it. Faust's JSON differs with orjson. Nothing was imported. {remedy}. Or give faust.App another version="
    )


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
