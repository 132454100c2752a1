"""`ratchet state import`: writes last sequences from a file to the changelog, while no worker runs.

For each partition, it writes one transaction with the transactional id of the partition's lane, as `ratchet resume`
does: the identities, an entry about the import and its user, and the group's unchanged offset. A repeated import finds
these entries, and changes nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kafka_ratchet.app.names import is_repartition_topic
from kafka_ratchet.app.operations.policy_topic import read_policies
from kafka_ratchet.app.operations.resume import CHANGELOG_BYTES, Resume, ResumeOptions
from kafka_ratchet.app.operations.state_rows import Row
from kafka_ratchet.app.partitioner import Partitioner
from kafka_ratchet.app.repartition import arrivals_of, arrives_in
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.group import describe_group
from kafka_ratchet.app.worker.claims import now, this_user
from kafka_ratchet.app.worker.steps import prepare_streams
from kafka_ratchet.app.worker.topics import prepare_policy
from kafka_ratchet.errors import SettingsError, TopicMissing
from kafka_ratchet.producers import admin_client
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.edits import FORGET, IMPORT, Edit
from kafka_ratchet.tables.map.entries import ENTRY_PREFIX
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.replays import LETTER
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.topic_log.clients import partition_counts
from kafka_ratchet.transport.batch.encoding import encode_entries
from kafka_ratchet.transport.client.cluster import EARLIEST, Cluster
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.move import PartitionMove
from kafka_ratchet.transport.owner import INPUT, Owner
from kafka_ratchet.transport.policy import ForgetRequest

TIMEOUT_MS: Final = 600_000
"""Timeout in ms of a transaction with more than `MANY` identities; brokers allow 15 minutes by default."""
MANY: Final = 1_000_000

WITHOUT_CHANGELOG: Final = (
    "The stream never ran, or its changelog is lost. The import without --dry-run creates its topics. Start no worker "
    "before: it would forward every record of the input, also those that the file knows"
)
"""Remedy of an import with --dry-run for a stream without a changelog."""

Seeds = dict[bytes, Row]
"""Rows by identity."""


class ImportOptions(msgspec.Struct, frozen=True):
    """Options of an import.

    partitioner: partitioner that producers use for keys.
    from_column: True: take each row's partition from the file.
    everywhere: True: import each row into all partitions.
    replace: True: a lower sequence replaces a higher one.
    reason: the operator's reason, to record in the changelog.
    """

    partitioner: Partitioner = Partitioner.MURMUR2
    from_column: bool = False
    everywhere: bool = False
    replace: bool = False
    reason: str = ""


class ImportResult(msgspec.Struct, frozen=True):
    """Result of an import in one partition.

    uncounted: range (first, end) of input offsets committed in the group but missing in the changelog; None: no offset.
    A partition with uncounted offsets is halted; the import ends the halt, unless `is_stale`.
    superseded: requests of `ratchet forget` that workers will not apply to the imported identities.
    """

    partition: int
    added: int
    raised: int
    replaced: int
    kept: int
    uncounted: tuple[int, int] | None = None
    superseded: tuple[Edit, ...] = ()


class Where(NamedTuple):
    """Place of an import: input partition, id of the input topic, and next offset to read; None: unknown."""

    partition: int
    topic: str
    position: int | None


def superseded(
    forgets: Iterable[ForgetRequest], state: SequencePartition, imported: Mapping[bytes, int], where: Where
) -> tuple[Edit, ...]:
    """Return an edit for each request to forget that an import supersedes. The edits change no sequence.

    A changelog created again no longer shows which requests were applied, but the policy topic keeps all of them. So a
    worker would forget an imported identity again. The edit marks the request as applied, because the file is newer.

    Args:
        forgets: requests of the stream.
        state: the partition's state, before the import.
        imported: last sequence of each imported identity.
        where: place of the import. If its position is unknown, every request for an imported identity is
            superseded.
    """
    number, topic, position = where
    found = []
    for each in forgets:
        if each.identity not in imported or each.partition not in (None, number) or state.is_done(each.id):
            continue
        if position is None or each.holds_from(number, topic) <= position:
            last, who = imported[each.identity], (each.id, FORGET, each.at, each.by, each.reason)
            found.append(Edit(*who, position or 0, each.identity.hex(), each.above, last, last))
    return tuple(found)


def prepare_import(settings: Settings, bootstrap: str, name: str) -> None:
    """Create a stream's missing topics, except the input, and record their owner, as the stream's first worker does.

    The input must exist, because the partition of each identity depends on its partition count.

    Raises:
        TopicMissing: the input does not exist.
        RatchetError: see `kafka_ratchet.app.worker.topics.prepare`.
    """
    needed = arrives_in(settings.streams, name)
    if not partition_counts(admin_client({"bootstrap.servers": bootstrap, **settings.kafka}), [needed]):
        raise TopicMissing(
            f"stream {name}: the topic {needed} does not exist. Create it with its final number of partitions, or "
            "let the mirror create it, then run the import. Start no worker until then"
        )
    prepare_policy(bootstrap, settings)
    wanted = {each: stream for each, stream in settings.streams.items() if each in (name, arrivals_of(name))}
    prepare_streams(bootstrap, settings.model_copy(update={"streams": wanted}), None)


class StateImport:
    """Importer of one stream's state, with a connection to Kafka."""

    def __init__(self, settings: Settings, bootstrap: str, name: str, how: ImportOptions) -> None:
        """Check the stream's topics and their owner; raises the errors of `Resume`."""
        wanted = ResumeOptions(None, how.reason, False, False)
        self._resume = Resume(settings, bootstrap, name, wanted, without_changelog=WITHOUT_CHANGELOG)
        self._how, self._stream = how, self._resume.stream
        self._forgets: Sequence[ForgetRequest] = ()
        self._is_internal = is_repartition_topic(self._stream.input, settings.app)
        self.partitions = self._resume.partitions

    @property
    def is_stale(self) -> bool:
        """Return True if the application's claim names an earlier topic, so that only `ratchet resume` ends a halt."""
        return self._resume.ownership.is_stale(self._resume.changelog)

    def run(self, rows: Iterable[Row], *, dry_run: bool) -> list[ImportResult]:
        """Import rows, and return the result by partition. dry_run: True: change nothing, return the plan.

        Raises:
            SettingsError: workers run, the partition of an identity is unknown, or `ratchet resume` is needed first.
            RatchetError: Kafka refuses a request. Partitions imported before are complete; run the import again.
        """
        seeds = self.placed(rows)
        return asyncio.run(self._run(seeds, dry_run=dry_run))

    def placed(self, rows: Iterable[Row]) -> list[Seeds]:
        """Return rows by partition and identity, each with the identity's highest sequence in the file.

        Raises:
            SettingsError: the partition of an identity is unknown.
        """
        seeds: list[Seeds] = [{} for _ in range(self.partitions)]
        for number, row in enumerate(rows, 1):
            for partition in self._places(number, row):
                known = seeds[partition].get(row.identity)
                if known is None or row.sequence > known.sequence:
                    seeds[partition][row.identity] = row
        return seeds

    def _places(self, number: int, row: Row) -> Sequence[int]:
        how, kind, count = self._how, self._stream.identity, self.partitions
        if row.identity.startswith(LETTER):
            # A replayed dead letter goes to the partition that it was in, whatever its record's identity is.
            return (row.partition,) if row.partition is not None and row.partition < count else range(count)
        if kind == Identity.PARTITION and row.identity:
            raise SettingsError(
                f'row {number}: in a stream with identity = "partition", the only identity is the empty text. Correct '
                "the row"
            )
        if how.everywhere:
            return range(count)
        if self._is_internal:
            return (Partitioner.MURMUR2.place(row.identity, count),)
        if kind == Identity.KEY and not how.from_column:
            place = how.partitioner.place(row.identity, count)
            if row.partition not in (None, place) and row.partitions == count:
                raise SettingsError(
                    f"row {number}: the file has the key in partition {row.partition}, but the partitioner "
                    f"{how.partitioner} gives partition {place}, so producers use another partitioner. Name that one "
                    "with --partitioner, or give --partition-column"
                )
            return (place,)
        if row.partition is None:
            raise SettingsError(
                f"row {number}: has no partition, and Ratchet cannot compute one from the identity {kind}. Add a "
                "column partition to the file, or give --all-partitions"
            )
        if row.partitions not in (None, count) or row.partition >= count:
            raise SettingsError(
                f"row {number}: the identity was exported from partition {row.partition} of an input with "
                f"{row.partitions or 'an unknown number of'} partitions, but {self._stream.input} has {count}, so the "
                "identity's next records may be in any of them. Give --all-partitions"
            )
        return (row.partition,)

    async def _run(self, seeds: list[Seeds], *, dry_run: bool) -> list[ImportResult]:
        await self._refuse_workers()
        resume = self._resume
        policies = await asyncio.to_thread(read_policies, resume.settings, resume.bootstrap)
        self._forgets = policies.requests.of(resume.name).forgets
        wanted = [(number, rows) for number, rows in enumerate(seeds) if rows]
        async with self._resume.connected() as cluster:
            # All partitions first, so that the refusal of one leaves none imported.
            found = [await self._import(cluster, *each, fences=not dry_run, writes=False) for each in wanted]
            if not dry_run:
                found = [await self._import(cluster, *each, fences=True, writes=True) for each in wanted]
        return found

    async def _refuse_workers(self) -> None:
        resume = self._resume
        group = await describe_group(resume.bootstrap, resume.settings)
        if group.members:
            raise SettingsError(
                f"{group.members} workers of application {resume.settings.app!r} are running, and would go on with the "
                "state in their memory. Stop all workers, then run the import again"
            )

    async def _import(
        self, cluster: Cluster, number: int, wanted: Seeds, *, fences: bool, writes: bool
    ) -> ImportResult:
        with tempfile.TemporaryDirectory(prefix="ratchet-import-") as folder:
            state = self._resume.state_of(number, Path(folder))
            timeout_ms = TIMEOUT_MS if len(wanted) > MANY else 60_000
            move = self._resume.move_of(cluster, number, state, timeout_ms)
            try:
                if fences:
                    await move.take_over()
                await move.read()
                done, entries = self._compared(state, number, wanted)
                if entries and (uncounted := move.uncounted):
                    done = msgspec.structs.replace(done, uncounted=(uncounted.start, uncounted.stop))
                if not entries:
                    return done
                owner = await self._resume.owner_now(cluster)
                kept = self._owner_before(move, number, owner)
                if self._forgets:
                    imported = {key[1:]: wanted[key[1:]].sequence for key, _ in entries}
                    where = Where(number, owner.topics[INPUT].id, move.position)
                    done = msgspec.structs.replace(done, superseded=superseded(self._forgets, state, imported, where))
                if writes:
                    await self._refuse_workers()
                    await self._write(cluster, move, state, owner, kept, done, entries)
                return done
            finally:
                move.close()

    def _compared(
        self, state: SequencePartition, number: int, wanted: Seeds
    ) -> tuple[ImportResult, list[tuple[bytes, bytes | None]]]:
        """Compare rows with a partition's state; return the counts of changes, and the changelog entries to write."""
        added = raised = replaced = 0
        entries: list[tuple[bytes, bytes | None]] = []
        for identity, row in wanted.items():
            before = state.last(identity).persisted
            if before >= 0 and (row.sequence == before or (row.sequence < before and not self._how.replace)):
                continue
            added += before < 0
            raised += 0 <= before < row.sequence
            replaced += row.sequence < before
            entries.append((bytes([ENTRY_PREFIX]) + identity, row.sequence.to_bytes(8, "big")))
        return ImportResult(number, added, raised, replaced, len(wanted) - len(entries)), entries

    def _owner_before(self, move: PartitionMove, number: int, owner: Owner) -> Owner | None:
        """Return the changelog's owner as a lane compares it; None: no entry names an owner.

        Raises:
            SettingsError: changelog or committed offset belongs to another stream, topic or client.
        """
        kept = move.comparable(owner)
        differs = kept.differences(owner) if kept is not None else []
        input_id = owner.topics[INPUT].id
        if move.committed_in not in (None, input_id):
            differs.append(f"the group's offset is of the topic of id {move.committed_in}, and not of {input_id}")
        if (foreign := move.foreign_offset) is not None:
            differs.append(f"the group's offset {foreign} was committed by another client")
        if differs:
            raise SettingsError(
                f"{self._resume.changelog}, partition {number}: {'; '.join(differs)}. Resolve that with `ratchet "
                "resume`, then import"
            )
        return kept

    async def _write(
        self,
        cluster: Cluster,
        move: PartitionMove,
        state: SequencePartition,
        owner: Owner,
        kept: Owner | None,
        done: ImportResult,
        entries: list[tuple[bytes, bytes | None]],
    ) -> None:
        position = move.position
        if position is None:
            position = await cluster.offset(self._stream.input, done.partition, EARLIEST, "import")
        epoch = state.progress_epoch if position == move.known else NO_EPOCH
        progress = (state.progress or Progress(0, 0, 0, 0))._replace(next=position, epoch=epoch)
        who = secrets.token_hex(8), IMPORT, now(), this_user(), self._how.reason
        edit = Edit(*who, position, added=done.added, raised=done.raised, replaced=done.replaced)
        edits = [edit, *(msgspec.structs.replace(each, position=position) for each in done.superseded)]
        packed = [each.pack(number) for number, each in enumerate(edits, state.edits.next)]
        # From the import on, a lane compares the entry of a start without records as well.
        corrected = [kept.pack()] if kept is not None and kept != state.owner else []
        whole = [*corrected, (PROGRESS, progress.pack()), *entries, *packed]
        await move.commit(encode_entries(whole, CHANGELOG_BYTES), position, owner.topics[INPUT].id, epoch)
