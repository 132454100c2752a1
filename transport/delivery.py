"""A batch in flight: from its lane to a processor, through a Faust agent, and back with its outputs."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.errors import Aborted, AgentFailed, RatchetError
from kafka_ratchet.transport.batch.chunk import ALL_RECORDS, read_chunk
from kafka_ratchet.transport.batch.dropped import DroppedBatch, encode_dropped
from kafka_ratchet.transport.batch.encoding import EncodedBatch, forward, with_headers
from kafka_ratchet.transport.batch.record_batch import Column, Header, RecordBatch
from kafka_ratchet.transport.batch.rows import encode_pairs
from kafka_ratchet.transport.correlation import correlate
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.policy import Policy

REASON_MOST: Final = 4096
"""Maximum bytes of a reason in a dead letter: an agent's error may be as long as the record."""
LETTER_AGENTS: Final = "ratchet-agents"
"""Header of an agents' dead letter with the names of the rejecting agents, as a JSON list."""

LETTER_EVENT: Final = "ratchet-event-id"
"""Header of an agents' dead letter with the event's id (`Event.id`); the first of the added headers."""
LETTER_APP: Final = "ratchet-app"
"""Header of an agents' dead letter with the application's name.

Other applications may read the same input and share the topic of dead letters. They may have processed the record, and
must not get it again by a replay of this dead letter.
"""


Answer = TypeVar("Answer")

LOOK_S: Final = 1.0
"""Seconds between two checks whether an agent holds a batch for too long.

The agent's time is counted in checks. A suspended process makes none, so the agent is not blamed for the suspension.
"""
SLOW_S: Final = 30.0
"""Seconds between two warnings that the agent has not given back a batch; judging 2 MiB takes far less."""
HELD_MOST: Final = 0.8
"""Share of the transaction's timeout after which a lane rolls back a batch held by a program's agent.

The rollback comes before Kafka's own timeout, so the lane can still name the agent.
"""
SHARE_AT_FIRST: Final = 512
"""Number of records in the first batch for agents. With a slow call of another service for each record, 94 ms, the
batch takes 48 s."""
SHARE_STEP: Final = 8
"""Factor of each growth or reduction of a `BatchLimit`."""
AGENT_WAIT_S: Final = 10.0
"""Seconds that a stopping lane waits for the agent to release a batch.

After that time, the lane leaves the batch to the partition's next owner.
"""


class Output(NamedTuple):
    """Encoded records to produce to one partition of a topic."""

    topic: str
    partition: int
    records: EncodedBatch


@dataclass
class _Rejection:
    """Rejected record: the reason, the position of its dead letter in the outputs, and the rejecting agents."""

    reason: str
    place: int
    agents: list[str]
    event: str


class Delivery:
    """Batch between its fetch and its commit, with its outputs so far.

    Args:
        spec: settings of the lane
        policy: policy that decides if the batch is deduplicated
        batch: the fetched records
    """

    def __init__(self, spec: LaneSpec, policy: Policy, batch: RecordBatch) -> None:
        self.batch, self.spec, self.policy = batch, spec, policy
        self.outputs: deque[Output] = deque()
        """Outputs for the lane to produce, in this order."""
        self.sequences: Column | None = None
        """Sequences that decided the verdicts, int64[batch.count], for a program's agent; None: not judged."""
        self.held_by: Callable[[], str] | None = None
        """Function that names the program's agent now working on the batch, with its current line; None: none does."""
        self._rejected: dict[int, _Rejection] = {}

    @property
    def compression(self) -> str:
        """Return the compression of this batch's outputs."""
        return self.batch.codec if self.spec.compression == "input" else self.spec.compression

    def forward(self, keep: NDArray[np.bool_]) -> None:
        """Add the kept records, unchanged, to the outputs for the output topic.

        keep: bool[batch.count], True to keep.
        """
        for encoded in forward(self.batch, keep, self.spec.output_limit, self.compression):
            self.outputs.append(Output(self.spec.output, self.spec.partition, encoded))

    def keep_duplicates(self, dropped: DroppedBatch) -> None:
        """Add dropped records to the outputs for the `duplicates` topic, with headers that give the verdict.

        Raises:
            RecordTooLarge: a record exceeds the topic's max.message.bytes.
        """
        spec = self.spec
        for encoded in encode_dropped(
            self.batch,
            dropped,
            spec.duplicates,
            spec.duplicates_limit,
            self.compression,
            values=spec.duplicates_values,
        ):
            self.outputs.append(Output(spec.duplicates, spec.partition, encoded))

    def dead_letter(self, index: int, reason: str, agent: str | None = None, event: str = "") -> None:
        """Add one record to the outputs for the dead-letter topic, with headers that give reason and origin.

        A record becomes one dead letter only; if several agents reject it, the first reason counts.

        Args:
            index: index of the record in the batch.
            reason: reason of the rejection, of any length.
            agent: name of the agent that rejects the record; None if deduplication rejects it.
            event: id of the rejected event, if an agent rejects it
        """
        known = self._rejected.get(index)
        if known is None:
            known = self._rejected[index] = _Rejection(reason, len(self.outputs), [], event)
        elif agent is None or agent in known.agents:
            return
        known.agents += [agent] if agent is not None else []
        letter = with_headers(self.batch, index, self._letter_headers(index, known), self.spec.dead_letters_limit)
        output = Output(self.spec.dead_letters, self.spec.partition, letter)
        if known.place == len(self.outputs):
            self.outputs.append(output)
        else:
            self.outputs[known.place] = output

    def _letter_headers(self, index: int, rejection: _Rejection) -> list[Header]:
        why = rejection.reason.encode(errors="backslashreplace")[:REASON_MOST].decode(errors="ignore").encode()
        agents = json.dumps(rejection.agents).encode()
        app, event = Header(LETTER_APP, self.spec.app.encode()), Header(LETTER_EVENT, rejection.event.encode())
        return [
            *([event] if rejection.agents and rejection.event else []),
            *([app, Header(LETTER_AGENTS, agents)] if rejection.agents else []),
            Header("ratchet-reason", why),
            Header("ratchet-topic", self.batch.topic.encode()),
            Header("ratchet-partition", str(self.batch.partition).encode()),
            Header("ratchet-offset", str(int(self.batch.offsets[index])).encode()),
        ]

    @property
    def holder(self) -> str:
        """Return a phrase that names the agent now working on the batch, for log lines and stalls."""
        return self.held_by() if self.held_by is not None else "the deduplicating agent"


class Processor(Protocol):
    """Processor of fetched batches: judges the records and makes their outputs, before a lane produces them."""

    async def process(self, delivery: Delivery) -> deque[Output]:
        """Return the outputs of a batch.

        Raises:
            Exception: the lane must commit nothing of the batch.
        """


class CallChannel(Protocol):
    """Part of a Faust channel that `AgentCalls` uses."""

    @property
    def subscriber_count(self) -> int:
        """Return the number of agents that read the channel."""

    async def put(self, call: Any) -> Any:
        """Queue a call for the agent."""


class Call(NamedTuple, Generic[Answer]):
    """Batch waiting for the agent, with the future for the agent's answer."""

    delivery: Delivery
    answer: asyncio.Future[Answer]


class AgentCalls(Generic[Answer]):
    """Calls to a Faust agent: `call` puts a batch into the channel, and `agent` takes the batch out and answers."""

    def __init__(self, name: str, channel: CallChannel, work: Callable[[Delivery], Answer]) -> None:
        """Connect callers and agent by a channel.

        Args:
            name: name of the table, for error messages
            channel: Faust channel from the lanes to the agent
            work: function that processes a batch, called in the agent's task
        """
        self._name, self._channel, self._work = name, channel, work

    async def call(self, delivery: Delivery) -> Answer:
        """Have the agent do its work on a batch, and return the result.

        Raises:
            Aborted: no agent reads the channel, or the agent was stopped while it held the batch.
            Exception: the agent's work on the batch failed.
        """
        if not self._channel.subscriber_count:
            raise Aborted(
                f"{self._name}: no agent reads the batches of this partition; the agent is probably restarting. The "
                "partition tries again"
            )
        call = Call[Answer](delivery, asyncio.get_running_loop().create_future())
        await self._channel.put(call)
        return await call.answer

    async def agent(self, calls: AsyncIterator[Call[Answer]]) -> None:
        """Answer calls one after the other; this is the function of the Faust agent."""
        async for delivery, answer in calls:
            if answer.done():
                # Its lane has stopped waiting. A judgement now would push state without any transaction, and
                # the partition's next owner would find its records duplicates.
                continue
            spec, batch = delivery.spec, delivery.batch
            correlate(partial(spec.correlation, batch.start))
            try:
                answer.set_result(self._work(delivery))
            except Exception as error:
                answer.set_exception(error)  # the lane tries again; the agent goes on with the other partitions
            except BaseException:
                place = f"{batch.topic}, partition {batch.partition}"
                text = f"{place}: the agent was stopped while it held offset {batch.start}; the partition tries again"
                answer.set_exception(Aborted(text))
                raise
            finally:
                correlate(None)


class BatchLimit:
    """Number of records that a lane takes in one batch.

    A transaction must end before its timeout, and agents may need longer for all records of a fetch. A lane with agents
    begins with few records, takes more while the agents are quick, and fewer after a transaction took too long.
    Otherwise the same batch would time out forever.

    Attributes:
        most: maximum number of records in the next batch
    """

    def __init__(self, first: int, timeout_ms: int) -> None:
        """Begin with `first` records. timeout_ms: timeout of the transaction."""
        self.most = first
        self._limit_s = timeout_ms / 1000 * HELD_MOST

    @contextmanager
    def timed(self, records: int) -> Iterator[None]:
        """Measure the time that the block takes to process a batch. records: number of records in the batch."""
        clock, failed = asyncio.get_running_loop().time, True
        since = clock()
        try:
            yield
            failed = False
        finally:
            self.took(records, clock() - since, failed=failed)

    def took(self, records: int, seconds: float, *, failed: bool) -> None:
        """Adapt the number of records in the next batch to the time that the last batch took.

        failed: True if its transaction was rolled back.
        """
        usual_s = self._limit_s / 2
        if seconds >= self._limit_s or (failed and seconds >= usual_s):
            self.most = max(1, records // SHARE_STEP)
        elif not failed and records >= self.most:
            step = min(SHARE_STEP, usual_s / seconds) if seconds > 0 else SHARE_STEP
            self.most = min(ALL_RECORDS, max(self.most, int(self.most * step)))


class ProcessingLimit:
    """Time limit of a processor, as an async context around its call.

    At the limit the lane's task is cancelled inside the call, as by `asyncio.timeout`.
    """

    def __init__(self, delivery: Delivery, stop: asyncio.Future[Any], log: Any) -> None:
        """Store the arguments; the time counts from entering the context.

        Args:
            delivery: batch to be processed
            stop: future, done when the lane has to stop
            log: logger of the lane
        """
        self._delivery, self._stop, self._log = delivery, stop, log
        self._limit = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._waited_s = 0.0
        self._failure: RatchetError | None = None
        self._left = False

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._next = self._loop.call_later(LOOK_S, self._look)
        self._stop.add_done_callback(self._stopped)

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Leave the context.

        Raises:
            AgentFailed: an agent of a program held the batch for `HELD_MOST` of the transaction's timeout.
            Aborted: the lane was stopped, and the agent did not release the batch within AGENT_WAIT_S.
        """
        self._left = True
        self._next.cancel()
        self._stop.remove_done_callback(self._stopped)
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._failure is None:
                raise
            raise self._failure from None

    def _look(self) -> None:
        """Warn of a slow agent. Stop waiting for a program's agent before Kafka times the transaction out."""
        self._waited_s += LOOK_S
        held_by, batch = self._delivery.held_by, self._delivery.batch
        timeout_ms = self._delivery.spec.transaction_timeout_ms
        if held_by is not None and self._waited_s >= timeout_ms / 1000 * HELD_MOST:
            self._leave(
                AgentFailed(
                    f"{held_by()} has held its transaction for {self._waited_s:g} s, and Kafka ends it after "
                    f"transaction_timeout_ms = {timeout_ms}. The lane rolls it back and processes its {batch.count} "
                    "records again, fewer at once. If a single record needs longer, raise transaction_timeout_ms"
                )
            )
            return
        if self._waited_s % SLOW_S < LOOK_S:
            self._log.warning(
                "the agent does not give back a batch",
                offset=batch.start,
                records=batch.count,
                held_by=held_by() if held_by else None,
            )
        self._next = self._loop.call_later(LOOK_S, self._look)

    def _stopped(self, _: asyncio.Future[Any]) -> None:
        if self._left:
            return  # asyncio had queued this callback before the context was left
        self._next.cancel()
        batch = self._delivery.batch
        text = f"{batch.topic}, partition {batch.partition}: stopped while the agent held offset {batch.start}"
        self._next = self._loop.call_later(AGENT_WAIT_S, self._leave, Aborted(text))

    def _leave(self, failure: RatchetError) -> None:
        self._failure = failure
        self._limit.reschedule(self._loop.time())


ROOM: Final = 1 << 10
"""Bytes reserved for a timer call's batch: more than a batch of one empty record takes."""


class Ticks(Processor, Protocol):
    """Timers of one partition. `process` runs the due timers."""

    def wait_s(self) -> float:
        """Return the seconds until the next timer is due; 0 if one is due now."""


def tick(topic: str, partition: int, position: int) -> RecordBatch:
    """Return the batch that an agent gets for a timer call.

    Its one record has no key and no value, the present time as timestamp, and the input's next offset.
    """
    (encoded,) = encode_pairs([(None, None)], ROOM)
    return read_chunk(topic, partition, position, encoded.as_fetched(position), [])
