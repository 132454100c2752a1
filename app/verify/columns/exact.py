"""Parallel comparison over columns, with results only for partitions with exactly the right output.

Input and output are read at the same time. The rule decides on each input record, and each record to forward is
compared byte for byte with the next record of the output. The comparison of a partition ends at the first difference.
`kafka_ratchet.app.verify.compare` then compares this partition record by record, from its beginning.
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
from kafka_ratchet.app.verify.columns.judging import IdentityAndSequence, JudgedBatch, PartitionRule
from kafka_ratchet.app.verify.identities import Numbers
from kafka_ratchet.app.verify.reading import OffsetRanges, plain_id
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rows import content
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.app.verify.state import Baseline, KnownSequence
from kafka_ratchet.errors import RatchetError
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.compiled import compiled
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.client.topic_id import id_text

SIDE_BY_SIDE: Final = max(2, min(4, os.cpu_count() or 2))
"""Number of partitions compared at the same time. Each needs up to some 80 MB for records, and memory for its
identities."""
NOT_A_NAME: Final = "\ufffd"
"""Replacement character for undecodable bytes of a header's name."""


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
    """Count the input records that equal the output's next records, up to the first difference.

    Key, value, headers and timestamp are compared.

    Args:
        data: bytes of the input batch, uint8[].
        columns: int64[columns, records], field positions and timestamps of the input batch.
        rows: int64[], indices of the input records to compare, in order.
        first: index in `rows` of the first record to compare.
        other: bytes of the output batch, uint8[].
        other_columns: int64[columns, records], field positions and timestamps of the output batch.
        other_first: index in the output batch of the first record to compare; the next ones follow without a gap.
        count: number of records to compare.

    Returns:
        number of equal records before the first difference; `count` if all are equal.
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
class ExactPartition:
    """Result of a partition with exactly the right output.

    Attributes:
        baseline: known state before the first record read.
        fresh, duplicate: number of fresh and duplicate records in the input.
        invalid: digest of the dead letter's content, by input offset of each invalid record.
        delivered: number of records in the output.
        pending: number of fresh records that the worker may still have to write.
        pending_from: input offset of the first pending record; None: there is none.
        judging: last sequences before the first pending record, or at the end of the input; None unless `keep` was
            True.
    """

    baseline: Baseline
    fresh: int = 0
    duplicate: int = 0
    invalid: dict[int, bytes] = field(default_factory=dict)
    delivered: int = 0
    pending: int = 0
    pending_from: int | None = None
    judging: PartitionRule | None = None

    def add_to(self, report: Report) -> None:
        """Add the partition's counts to the report."""
        report.fresh += self.fresh
        report.duplicate += self.duplicate
        report.invalid += len(self.invalid)
        report.delivered += self.delivered
        report.pending += self.pending

    def proven_to(self, judged_to: int, committed_to: int, letters_pending_from: int | None) -> int:
        """Return the input offset where the next run continues; see `ExpectedPartition.proven_to`."""
        assert letters_pending_from is None  # noqa: S101 - such a partition is given up
        ended = committed_to if self.pending_from is None else min(committed_to, self.pending_from)
        return max(self.baseline.input_from, ended)

    def known_at(self, end: int) -> Iterator[tuple[bytes, KnownSequence]]:
        """Yield each known identity with its last sequence before the offset that `proven_to` returns.

        end: not used, as the result has the last sequences of that offset only
        """
        return iter(()) if self.judging is None else self.judging.known()

    def is_complete_at(self, end: int) -> bool:
        """Return True if `known_at` yields every identity that the input ever had.

        end: not used; see `known_at`
        """
        return self.baseline.complete


def exact_partitions(
    settings: Settings,
    bootstrap: str,
    stream: StreamSettings,
    places: IdentityAndSequence,
    ranges: OffsetRanges,
    baselines: Mapping[int, Baseline],
    topic_ids: Mapping[str, str],
    *,
    keep: bool = False,
) -> dict[int, ExactPartition | str]:
    """Compare several partitions over columns at the same time.

    Args:
        settings: settings of the client.
        bootstrap: host:port[,host:port].
        stream: settings of the stream, with the names of its topics.
        places: places of identity and sequence in a record.
        ranges: offsets to compare.
        baselines: known state at the first offset to compare, by number of each partition to compare.
        topic_ids: ids of input and output topic at the time of `ranges`.
        keep: True if results need the last sequences at the offset where the next run continues.

    Returns:
        by partition: the result if the output is exactly right; else the reason to compare record by record.
    """
    looked = _look(settings, bootstrap, stream, places, ranges, baselines, topic_ids, keep)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(looked)
    with ThreadPoolExecutor(1) as pool:  # a loop is running here: another one needs a thread of its own
        return pool.submit(_run, looked).result()


def _run(looked: Coroutine[Any, Any, dict[int, ExactPartition | str]]) -> dict[int, ExactPartition | str]:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(looked)


async def _look(
    settings: Settings,
    bootstrap: str,
    stream: StreamSettings,
    places: IdentityAndSequence,
    ranges: OffsetRanges,
    baselines: Mapping[int, Baseline],
    topic_ids: Mapping[str, str],
    keep: bool,
) -> dict[int, ExactPartition | str]:
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
            return await _side_by_side(TopicPair(given, output, places, keep), ranges, baselines)
    except RatchetError as error:
        return dict.fromkeys(baselines, str(error))


async def _side_by_side(
    pair: TopicPair, ranges: OffsetRanges, baselines: Mapping[int, Baseline]
) -> dict[int, ExactPartition | str]:
    found: dict[int, ExactPartition | str] = {}
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
class TopicPair:
    """Input and output topic of a stream, for the comparison of its partitions.

    keep: True if results need the last sequences at the offset where the next run continues
    """

    input: Topic
    output: Topic
    places: IdentityAndSequence
    keep: bool

    async def look(self, partition: int, baseline: Baseline, ranges: OffsetRanges, name: str) -> ExactPartition | str:
        """Compare one partition over columns.

        baseline: known state before the first record; name: prefix for the names of the Kafka connections

        Returns:
            result of a partition with exactly the right output; else the reason to compare it record by record
        """
        begin, end, found = baseline.input_from, ranges.committed_to[partition], ExactPartition(baseline)
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
                f"{self.input.name} has offsets without a committed record, as it was written in transactions or is "
                "compacted. Then only another client than the worker's can tell whether a record was left out"
            )
        if self.keep:
            if any(offset >= ranges.judged[partition] for offset in found.invalid):
                return "dead letters are pending, and the next run with --state must begin before their input records"
            found.judging = given.last_sequences()
        return found


class _Given:
    """Input of one partition, as a sequence of the records that the output must contain.

    Attributes:
        judged: iterator over the input batches with their verdicts.
        records: number of input records so far, with any verdict.
        is_whole: True if the input offsets so far have no gap.
        refused: reason to compare the partition record by record instead; None: no such reason so far.
    """

    def __init__(
        self,
        topic: Topic,
        span: Range,
        places: IdentityAndSequence,
        connection: str,
        found: ExactPartition,
        *,
        keep: bool,
    ) -> None:
        """Start to read the input.

        found: result that receives the counts; keep: True if `last_sequences` will be called
        """
        self._keep = keep
        self._found, self._judging = found, PartitionRule(places, found.baseline.last)
        self.records, self.is_whole = 0, True
        self._next_offset = span.begin
        self._waiting: list[list[tuple[bytes, int]]] = []
        """Pending records by batch; each as its identity, and the identity's last sequence before the record."""
        self.refused: str | None = None
        self.judged = ahead(self._judged(ahead(topic.records_of(span, connection))))
        self._now: JudgedBatch | None = None
        self._at = 0
        """Index of the next record to compare among the fresh records of `_now`."""

    async def _judged(self, batches: AsyncGenerator[RecordBatch, None]) -> AsyncGenerator[JudgedBatch, None]:
        async with aclosing(batches):
            async for batch in batches:
                yield await asyncio.to_thread(self._judging.judge, batch)

    async def _next(self) -> JudgedBatch | None:
        """Return the input batch with the next record to forward; None at the input's end, or once `refused` is set."""
        while self._now is None or self._at == len(self._now.fresh):
            self._now, self._at = await anext(self.judged, None), 0
            if self._now is None:
                return None
            self._count(self._now)
            if self.refused is not None:
                return None
        return self._now

    def _count(self, judged: JudgedBatch) -> None:
        found, batch = self._found, judged.batch
        first, self._next_offset = self._next_offset, self._next_offset + batch.count
        self.is_whole &= np.array_equal(batch.offsets, np.arange(first, self._next_offset))
        self.records += batch.count
        found.fresh += len(judged.fresh)
        found.duplicate += judged.duplicates
        if judged.doubt is not None:
            self.refused = "a sequence seems to be encoded in another form than this stream decodes"
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
        """Compare the next batch of the output with the next records to forward.

        Returns:
            output offset of the first difference; None if all records are equal
        """
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
        """Check that all records missing in the output are pending.

        A pending record is one that the worker may still have to write. Call this after the end of the output.

        judged_to: input offset before which all fresh records must be in the output

        Returns:
            input offset of the first record that is missing and not pending; None if there is none
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

    def last_sequences(self) -> PartitionRule:
        """Return the last sequences before the first pending record. Call it after `finish`."""
        self._judging.take_back(chain.from_iterable(self._waiting))
        return self._judging
