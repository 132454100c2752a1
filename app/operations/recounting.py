"""Count of the records that would be forwarded a second time if `ratchet resume` sets a partition back.

A worker drops a record that it reads again, if the state has its sequence. The state lacks the sequence if the worker
forwarded the record while deduplication was off, or if the identity was forgotten, evicted or edited since. To count
such records, the command judges the offsets against the partition's state, as the next worker would.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.rule.extraction import computed_identity_reader, reader_for
from kafka_ratchet.rule.identity import SequenceSource
from kafka_ratchet.rule.kernels import FRESH, INVALID
from kafka_ratchet.tables.edits import FORGET, Edit
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.partition_reader import FetchOptions, PartitionAddress, PartitionReader
from kafka_ratchet.transport.client.topic_id import id_text
from kafka_ratchet.transport.owner import Decision
from kafka_ratchet.transport.policy import ForgetRequest

FETCH_BYTES: Final = 8 << 20
WAIT_MS: Final = 250
CONNECTION: Final = "recounting"


class RepeatedCount(NamedTuple):
    """Count of records that would be forwarded again.

    records: number of records that would be forwarded again.
    first: offset of the first of them; -1: there is none.
    invalid: number of records that would become dead letters again.
    """

    records: int = 0
    first: int = -1
    invalid: int = 0


class Log(NamedTuple):
    """Input partition with the records to count.

    id: id of the topic, 16 bytes.
    letters: prefix of the names of this stream's dead letters.
    """

    topic: str
    partition: int
    id: bytes
    letters: bytes


def awaited(forgets: Iterable[ForgetRequest], state: SequencePartition, log: Log, position: int) -> list[ForgetRequest]:
    """Return the requests to forget that the partition will apply to records before `position`.

    Args:
        forgets: requests of the stream
        state: table partition, replayed to the changelog's end
        log: input partition
        position: next input offset to read
    """
    here = (each for each in forgets if each.partition in (None, log.partition) and not state.is_done(each.id))
    return [each for each in here if each.holds_from(log.partition, id_text(log.id)) < position]


def never_judged(decisions: Iterable[Decision], position: int) -> list[range]:
    """Return the ranges of input offsets that an operator skipped, and that no worker has read.

    position: next input offset to read
    """
    gaps: list[range] = []
    read: list[range] = []
    start = 0
    for decision in decisions:
        if decision.after is None:
            continue
        if decision.before is None:  # offsets of another topic
            gaps, read = [range(decision.after)], []
        else:
            read.append(range(start, decision.before))
            if decision.after > decision.before:
                gaps.append(range(decision.before, decision.after))
        start = decision.after
    for each in (*read, range(start, position)):
        gaps = _without(gaps, each)
    return gaps


def _without(gaps: Sequence[range], read: range) -> list[range]:
    """Return the parts of the ranges `gaps` outside the range `read`."""
    if not read:
        return list(gaps)
    left = [
        part
        for gap in gaps
        for part in (range(gap.start, min(gap.stop, read.start)), range(max(gap.start, read.stop), gap.stop))
    ]
    return [part for part in left if part]


async def count_passing(
    cluster: Cluster,
    stream: StreamSettings,
    state: SequencePartition,
    log: Log,
    offsets: range,
    skipped: Sequence[range],
    *,
    forgets: Collection[ForgetRequest] = (),
    judges: bool,
    batch_most: int,
) -> RepeatedCount:
    """Judge a range of offsets as the next worker would, and count the records that it would forward again.

    The state stays unchanged.

    Args:
        cluster: connected client of the Kafka cluster.
        stream: settings of the stream.
        state: state at the changelog's end.
        log: input partition.
        offsets: offsets to read again.
        skipped: ranges of offsets not judged so far; their records would be forwarded for the first time.
        forgets: requests to apply before these offsets are read again.
        judges: True if deduplication will be on.
        batch_most: maximum number of bytes of one batch after decompression.

    Raises:
        SettingsError: the import of the user's function fails.
        RatchetError: the input cannot be read.
    """
    source = SequenceSource.parse(stream.sequence)
    read, read_identities = reader_for(source, stream.sequence_form), computed_identity_reader(stream.identity)
    headers = source.name.encode() if source.kind == "header" else b"", (stream.identity.header or "").encode()
    fetching = FetchOptions(CONNECTION, FETCH_BYTES, WAIT_MS, batch_most, *headers)
    place = PartitionAddress(log.topic, log.partition, log.id)
    reader = PartitionReader(cluster, place, offsets.start, fetching, skips_deleted=False)
    records, first, invalid = 0, -1, 0
    try:
        if forgets:
            state.forget(list(forgets), offsets.start)
        async for batch in reader.batches(offsets.stop, stops_at_open=True):
            again = batch.offsets < offsets.stop
            for gap in skipped:
                again &= (batch.offsets < gap.start) | (batch.offsets >= gap.stop)
            passes = again
            if judges:
                found, reasons = read(batch)
                identities = read_identities(batch, reasons) if read_identities else None
                verdicts, _ = state.judge(batch, found, reasons, identities=identities, letters=log.letters)
                passes = again & (verdicts == FRESH)
                invalid += int(np.count_nonzero(again & (verdicts == INVALID)))
            if first < 0 and passes.any():
                first = int(batch.offsets[np.argmax(passes)])
            records += int(np.count_nonzero(passes))
    finally:
        state.rollback()
    return RepeatedCount(records, first, invalid)


def recounted_from(edits: Iterable[Edit], before: int | None, after: int) -> list[str]:
    """Return a phrase for each `ratchet forget` that makes records count again when they are read again.

    Args:
        edits: operators' edits of the partition's state
        before: the committed offset, before the decision; None: it belongs to an earlier topic of the same name
        after: offset at which the partition continues
    """
    forgets = (edit for edit in edits if edit.kind == FORGET and edit.has_changed)
    return [f"offset {edit.position}: {edit}" for edit in forgets if before is None or edit.position > after]


def causes(
    state: SequencePartition, offsets: range | None, *, forgets: Collection[ForgetRequest] = (), judges: bool
) -> list[str]:
    """Return a phrase for each reason why records may be forwarded again.

    Args:
        state: state at the changelog's end.
        offsets: offsets to read again; None: past offsets belong to an earlier topic of the same name.
        forgets: requests to apply before these offsets are read again.
        judges: True if deduplication is on.
    """
    found = [] if judges else ["deduplication is off"]
    for interval in sorted(state.intervals, key=lambda each: each.number):
        if interval.deduplicate or not interval.unjudged:
            continue
        if offsets is None or (interval.start < offsets.stop and offsets.start < interval.end):
            found.append(
                f"offsets {interval.start} to {interval.end - 1}: {interval.unjudged} records passed while "
                "deduplication was off"
            )
    if evicted := sum(state.evicted):
        found.append(f"{evicted} identities were evicted since the beginning")
    found += [str(edit) for edit in state.edits if edit.replaced]
    if forgets:
        found.append(f"{len(forgets)} requests of `ratchet forget` wait and are applied first")
    return found
