"""Parallel comparison over columns, for partitions with exactly the demanded output.

Input and output are read at the same time. The records to forward are judged from the input, and each is compared,
byte for byte, with the next one of the output. At the first difference the partition is given up:
`kafka_ratchet.app.verify.compare` then compares it record by record, from its beginning.
"""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.app.event_loop import loop_factory
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.survey.reading import Range, Topic, ahead, open_topic
from kafka_ratchet.app.verify.columns.judging import Judged, Judging, Places
from kafka_ratchet.app.verify.identities import Numbers
from kafka_ratchet.app.verify.reading import OffsetRanges, plain_id
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rows import content
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.app.verify.state import Baseline, Known
from kafka_ratchet.errors import RatchetError
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.compiled import compiled
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.client.topic_id import id_text

SIDE_BY_SIDE: Final = max(2, min(4, os.cpu_count() or 2))
"""Partitions at a time: each holds up to some 80 MB of records, and its own identities."""
NOT_A_NAME: Final = "\ufffd"
"""Stand-in for bytes of a header's name that are no text."""


@compiled()
def same_records(
    data: NDArray[np.uint8],
    columns: Numbers,
    rows: Numbers,
    first: int,
    other: NDArray[np.uint8],
    other_columns: Numbers,
    other_first: int,
    count: int,
) -> int:
    """Count records up to the first that differs from another in key, value, headers or timestamp.

    Args:
        data: uint8[bytes].
        columns: of these records.
        rows: int64[], indices of the records to compare, in order.
        first: index in rows of the first.
        other: uint8[bytes].
        other_columns: of the other records, all to be compared.
        other_first: index of the first.
        count: bound on the records compared.
    """
    for k in range(count):
        i, j = rows[first + k], other_first + k
        at, other_at = np.uint64(columns[records.BODY, i]), np.uint64(other_columns[records.BODY, j])
        length = columns[records.BODY_END, i] - columns[records.BODY, i]
        if (
            length != other_columns[records.BODY_END, j] - other_columns[records.BODY, j]
            or columns[records.TIMESTAMP, i] != other_columns[records.TIMESTAMP, j]
        ):
            return k
        differing = np.uint8(0)
        for q in range(np.uint64(length)):  # to its end: so it takes several bytes at a time
            differing |= data[at + q] ^ other[other_at + q]
        if differing:
            return k
    return count


@dataclass(slots=True)
class Exact:
    """Partition with exactly the demanded output.

    Attributes:
        baseline: its beginning.
        fresh, duplicate: records of the input.
        invalid: offset of each invalid record -> digest of its dead letter's content.
        delivered: records of the output.
        pending: fresh records not in the output yet, and not due.
        pending_from: input offset of the first of them.
        judging: last sequences at that offset, or at the end; None where they are not needed.
    """

    baseline: Baseline
    fresh: int = 0
    duplicate: int = 0
    invalid: dict[int, bytes] = field(default_factory=dict)
    delivered: int = 0
    pending: int = 0
    pending_from: int | None = None
    judging: Judging | None = None

    def add_to(self, report: Report) -> None:
        """Add its counts, as the comparison record by record would."""
        report.fresh += self.fresh
        report.duplicate += self.duplicate
        report.invalid += len(self.invalid)
        report.delivered += self.delivered
        report.pending += self.pending

    def proven_to(self, judged_to: int, committed_to: int, letters_pending_from: int | None) -> int:
        """Return the input offset where the next run resumes; see `kafka_ratchet.app.verify.compare`."""
        assert letters_pending_from is None  # noqa: S101 - such a partition is given up
        ended = committed_to if self.pending_from is None else min(committed_to, self.pending_from)
        return max(self.baseline.input_from, ended)

    def known_at(self, end: int) -> Iterator[tuple[bytes, Known]]:
        """Yield the last sequences of all identities ever met, as of `proven_to`."""
        return iter(()) if self.judging is None else self.judging.known()

    def is_complete_at(self, end: int) -> bool:
        """Return True if an identity missing in `known_at` is new."""
        return self.baseline.complete


def exact_partitions(
    settings: Settings,
    bootstrap: str,
    stream: StreamSettings,
    places: Places,
    ranges: OffsetRanges,
    baselines: Mapping[int, Baseline],
    topic_ids: Mapping[str, str],
    *,
    keep: bool = False,
) -> dict[int, Exact | str]:
    """Compare partitions with complete output of the input after their beginnings.

    Args:
        settings: settings of the client.
        bootstrap: host:port[,host:port].
        stream: stream with the names of the topics.
        places: places of identity and sequence.
        ranges: ends of the comparison.
        baselines: their beginnings, by number.
        topic_ids: ids of the input and output of `ranges`.
        keep: True if the next run has to resume there.

    Returns:
        the result of each partition, or the reason for a comparison record by record.
    """
    looked = _look(settings, bootstrap, stream, places, ranges, baselines, topic_ids, keep)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(looked)
    with ThreadPoolExecutor(1) as pool:  # a loop is running here: another one needs a thread of its own
        return pool.submit(_run, looked).result()


def _run(looked: Coroutine[Any, Any, dict[int, Exact | str]]) -> dict[int, Exact | str]:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(looked)


async def _look(
    settings: Settings,
    bootstrap: str,
    stream: StreamSettings,
    places: Places,
    ranges: OffsetRanges,
    baselines: Mapping[int, Baseline],
    topic_ids: Mapping[str, str],
    keep: bool,
) -> dict[int, Exact | str]:
    try:
        async with AsyncExitStack() as stack:
            cluster = Cluster(client_options(bootstrap, settings.kafka))
            await cluster.start(settings.kafka_timeout_s)
            stack.push_async_callback(cluster.close)
            limits = settings.kafka_timeout_s, settings.max_batch_mb << 20
            given = await open_topic(cluster, stream.input, *limits)
            output = await open_topic(cluster, stream.output, *limits)
            for topic in (given, output):
                if plain_id(id_text(topic.id)) != plain_id(topic_ids[topic.name]):
                    return dict.fromkeys(baselines, f"{topic.name} was created again in the meantime")
            return await _side_by_side(Pair(given, output, places, keep), ranges, baselines)
    except RatchetError as error:
        return dict.fromkeys(baselines, str(error))


async def _side_by_side(pair: Pair, ranges: OffsetRanges, baselines: Mapping[int, Baseline]) -> dict[int, Exact | str]:
    found: dict[int, Exact | str] = {}
    waiting = iter(baselines)

    async def one_after_the_other(name: str) -> None:
        for partition in waiting:
            try:
                found[partition] = await pair.look(partition, baselines[partition], ranges, name)
            except RatchetError as error:
                found[partition] = str(error)

    async with asyncio.TaskGroup() as group:
        for number in range(SIDE_BY_SIDE):
            group.create_task(one_after_the_other(f"verify-{number}"))
    return found


@dataclass(slots=True)
class Pair:
    """Input and output of a stream. keep: whether last sequences are kept."""

    input: Topic
    output: Topic
    places: Places
    keep: bool

    async def look(self, partition: int, baseline: Baseline, ranges: OffsetRanges, name: str) -> Exact | str:
        """Compare one partition. name: of its connections."""
        begin, end, found = baseline.input_from, ranges.committed_to[partition], Exact(baseline)
        span = Range(partition, begin, begin, end)
        given = _Given(self.input, span, self.places, f"{name}-input", found, keep=self.keep)
        first, last = baseline.output_from, ranges.output_ends[partition]
        output = ahead(self.output.records_of(Range(partition, first, first, last), f"{name}-output"))
        async with aclosing(given.judged) as _, aclosing(output) as batches:
            async for batch in batches:
                if (differs := await given.compare(batch)) is not None:
                    return given.refused or f"{self.output.name} offset {differs} is not the expected record"
                found.delivered += batch.count
            missing = await given.finish(ranges.judged[partition])
        if given.refused is not None:
            return given.refused
        if missing is not None:
            return f"{self.output.name} lacks the record of input offset {missing}"
        if self.input.deleted or self.output.deleted:
            return "retention has deleted records while they were read"
        if not given.is_whole or given.records != end - begin:
            return (
                f"{self.input.name} has offsets that hold no committed record: it was written in transactions, or is "
                "compacted. Which records that leaves out is not taken from the worker's reader"
            )
        if self.keep:
            if any(offset >= ranges.judged[partition] for offset in found.invalid):
                return "dead letters are on their way, and with --state it matters from where the next run goes on"
            found.judging = given.last_sequences()
        return found


class _Given:
    """Demands of one input partition, taken record by record in its order.

    Attributes:
        judged: its batches
        records: number so far, of all verdicts
        is_whole: True if they have covered all offsets, one after the other
        refused: reason for a comparison record by record
    """

    def __init__(self, topic: Topic, span: Range, places: Places, connection: str, found: Exact, *, keep: bool) -> None:
        """Begin with nothing read. found: gets the counts; keep: `last_sequences` follows at the end."""
        self._keep = keep
        self._found, self._judging = found, Judging(places, found.baseline.last)
        self.records, self.is_whole = 0, True
        self._next_offset = span.begin
        self._waiting: list[list[tuple[bytes, int]]] = []
        """Pending records by batch: identity, and its last sequence before the record."""
        self.refused: str | None = None
        self.judged = ahead(self._judged(ahead(topic.records_of(span, connection))))
        self._now: Judged | None = None
        self._at = 0
        """Index of the next of its fresh records."""

    async def _judged(self, batches: AsyncGenerator[RecordBatch, None]) -> AsyncGenerator[Judged, None]:
        async with aclosing(batches):
            async for batch in batches:
                yield await asyncio.to_thread(self._judging.judge, batch)

    async def _next(self) -> Judged | None:
        """Return the batch with the next record that must be forwarded; None: there is none left."""
        while self._now is None or self._at == len(self._now.fresh):
            self._now, self._at = await anext(self.judged, None), 0
            if self._now is None:
                return None
            self._count(self._now)
            if self.refused is not None:
                return None
        return self._now

    def _count(self, judged: Judged) -> None:
        found, batch = self._found, judged.batch
        first, self._next_offset = self._next_offset, self._next_offset + batch.count
        self.is_whole &= np.array_equal(batch.offsets, np.arange(first, self._next_offset))
        self.records += batch.count
        found.fresh += len(judged.fresh)
        found.duplicate += judged.duplicates
        if judged.doubt is not None:
            self.refused = "a sequence seems to be written in another form than it is read in"
        if judged.contradicted:
            self.refused = "the compiled rule and the plain one judge one of its first records differently"
        if judged.replayed:
            self.refused = "it has records replayed from dead letters"
        for index in judged.invalid.tolist():
            headers = [(name, value) for name, value in batch.headers(index)]
            if any(NOT_A_NAME in name for name, _ in headers):
                self.refused = "an invalid record has a header name that cannot be read as text"
            view = RecordView(batch.key(index), batch.value(index), headers, 0)
            found.invalid[int(batch.offsets[index])] = content(view, with_timestamp=False)

    async def compare(self, batch: RecordBatch) -> int | None:
        """Compare the next batch of the output; return the offset of the first difference, or None."""
        done = 0
        while done < batch.count:
            now = await self._next()
            if now is None:
                return int(batch.offsets[done])
            count = min(batch.count - done, len(now.fresh) - self._at)
            same = await asyncio.to_thread(
                same_records,
                now.batch.data,
                now.batch.columns,
                now.fresh,
                self._at,
                batch.data,
                batch.columns,
                done,
                count,
            )
            if same < count:
                return int(batch.offsets[done + same])
            self._at += count
            done += count
        return None

    async def finish(self, judged_to: int) -> int | None:
        """Verify after the output's end that all remaining records are pending.

        Return the first offset that is not, or None.
        """
        found = self._found
        while (now := await self._next()) is not None:
            rows = now.fresh[self._at :]
            left = now.batch.offsets[rows]
            if (lost := left[left < judged_to]).size:
                return int(np.min(lost))
            found.pending += len(left)
            found.pending_from = int(left[0]) if found.pending_from is None else found.pending_from
            if self._keep:
                self._waiting.append(now.pending(rows))
            self._at = len(now.fresh)
        return None

    def last_sequences(self) -> Judging:
        """Return the last sequences before the first pending record, after the end."""
        self._judging.take_back(chain.from_iterable(self._waiting))
        return self._judging
