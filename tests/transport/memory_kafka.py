"""Kafka in memory, as far as a lane needs it: partition logs, one consumer group, transactions with epochs.

Only the broker is replaced by it. The end of a transaction raises the producer's epoch (KIP-890, part 2), or leaves it
as it is. In the latter case it can be a Kafka that does not ask the coordinator before it appends a transaction's batch
(before part 1 of KIP-890): then nothing but the epoch in the log refuses one that comes late.

A `Link` is a worker's connection to it, in the place of `Cluster`. A request can be lost on it before or after it is
carried out, or come late: its sender has given it up, and perhaps sent it again, and it is carried out at some later
time, or once more then. The worker behind it can stand still, and it can be gone. Transactions have a coordinator,
which can be replaced (memory_coordinators.py).

Topics have ids and logs have leader epochs. An operator can create a topic anew or delete records, an unclean election
can take the end of a log away, and compaction can take out what later entries replace.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.protocol.types import CompactArray, Int16
from aiokafka.record.default_records import DefaultRecordBatch

from kafka_ratchet.errors import LogTruncated, PositionLost, TopicReplaced
from kafka_ratchet.transport.client.cluster import EARLIEST, TRANSACTION, Committed, Fetched
from kafka_ratchet.transport.client.describe import TAGS, TEXT, DescribeTransactionsRequest
from kafka_ratchet.transport.client.fetch_session import Spot
from kafka_ratchet.transport.client.topic_id import TopicState
from kafka_ratchet.transport.client.watch import Place
from kafka_ratchet.transport.transactions.version_2 import FEATURE, FINALIZED_FEATURES
from tests.transport.batch.known_batches import HEAD, marker, stamped
from tests.transport.memory_coordinators import Marker, is_coordinated, refused

INVALID_EPOCH, INVALID_STATE, CONCURRENT, OUT_OF_ORDER, NOT_LEADER, NO_SUCH_ID = 47, 48, 51, 45, 6, 105
INVALID_ID, FENCED = 49, 90
ABORT, COMMIT = 0, 1
FEATURES = CompactArray(("name", TEXT), ("most", Int16), ("least", Int16), TAGS)
COMES_LATE = (
    "AddPartitionsToTxnRequest",
    "AddOffsetsToTxnRequest",
    "BatchRequest",
    "TxnOffsetCommitRequest",
    "EndTxnRequest",
    "RaisingEndRequest",
    "GiveUpRequest",
    "InitProducerIdRequest",
)
"""Of a request that only asks nobody notices that it came late."""
BATCHES_PER_FETCH = 3
"""Few, so that a backlog takes several fetches and several transactions."""


class PowerOff(BaseException):
    """The worker's process is gone: nothing that it does from here on happens."""


class Record(NamedTuple):
    """As a reader sees it, without its offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass
class Appended:
    """A batch in a log. committed: None while its transaction is open."""

    offset: int
    count: int
    data: bytes
    records: list[Record]
    producer: int
    committed: bool | None
    epoch: int = -1


class Log:
    """One partition."""

    def __init__(self) -> None:
        self.batches: list[Appended] = []
        self.history: list[Appended] = []
        """All that was ever appended, for an oracle."""
        self.start = self.end = 0
        self.leader_epoch = 0
        self.aborted: list[tuple[int, int, int]] = []
        """(producer, first offset, offset of the marker)"""
        self.producers: dict[int, tuple[int, int]] = {}
        """(epoch, next sequence) by producer: what is known here even if no coordinator is asked."""
        self.marked_by: dict[int, int] = {}
        """The coordinator epoch of each producer's last marker."""

    def append(self, data: bytes, producer: int = -1, at_ms: int = -1) -> int:
        """Returns the offset of the first record. at_ms: what all are stamped with, if not -1."""
        fields = HEAD.unpack_from(data)
        placed = struct.pack(">q", self.end) + data[8:12] + struct.pack(">i", self.leader_epoch) + data[16:]
        if at_ms >= 0:
            placed = stamped(placed, at_ms)
        decoded = DefaultRecordBatch(bytearray(placed))
        assert decoded.validate_crc()
        records = [Record(r.key, r.value, tuple(r.headers)) for r in decoded]
        committed = True if producer < 0 else None
        self.batches.append(Appended(self.end, fields[6] + 1, placed, records, producer, committed, fields[10]))
        self.history.append(self.batches[-1])
        self.end += fields[6] + 1
        return self.batches[-1].offset

    def refuses(self, producer: int, epoch: int, base: int) -> int:
        """The error code for a batch that begins with this sequence; 0 if it fits."""
        known, following = self.producers.get(producer, (epoch, 0))
        if epoch < known:
            return INVALID_EPOCH
        return OUT_OF_ORDER if base != (following if epoch == known else 0) else 0

    def write_marker(self, producer: int, kind: int, epoch: int = 0, by: int = 0) -> None:
        """Write the marker that ends a producer's open transaction here, unless a newer coordinator has written one.

        Args:
            producer: whose
            kind: ABORT or COMMIT
            epoch: what the marker carries
            by: the epoch of the coordinator that writes it
        """
        known, following = self.producers.get(producer, (epoch, 0))
        if epoch < known or by < self.marked_by.get(producer, by):
            return
        self.marked_by[producer] = by
        self.producers[producer] = (epoch, following if epoch == known else 0)
        mine = [batch for batch in self.batches if batch.producer == producer and batch.committed is None]
        for batch in mine:
            batch.committed = kind == COMMIT
        if mine and kind == ABORT:
            self.aborted.append((producer, mine[0].offset, self.end))
        data = marker(self.end, producer, kind)
        data = data[:12] + struct.pack(">i", self.leader_epoch) + data[16:]
        self.batches.append(Appended(self.end, 1, data, [], -1, True))
        self.end += 1

    def delete_before(self, offset: int) -> None:
        """What retention does."""
        self.start = max(self.start, min(offset, self.end))
        self.batches = [batch for batch in self.batches if batch.offset + batch.count > offset]

    def truncate(self, offset: int) -> None:
        """What an unclean leader election does: a leader that has heard of less takes over."""
        self.leader_epoch += 1
        self.batches = [batch for batch in self.batches if batch.offset + batch.count <= offset]
        self.end = self.batches[-1].offset + self.batches[-1].count if self.batches else self.start
        self.aborted = [each for each in self.aborted if each[2] < self.end]
        self.producers.clear()
        self.marked_by.clear()

    def compact(self) -> None:
        """Take out the batches of which every entry is replaced by a later one."""
        last = {record.key: batch.offset for batch in self.batches if batch.committed for record in batch.records}
        stable = self.stable_end
        self.batches = [
            batch
            for batch in self.batches
            if not (batch.committed and batch.records and batch.offset < stable)
            or any(last[record.key] == batch.offset for record in batch.records)
        ]

    def diverges(self, position: int, last_epoch: int) -> bool:
        """Whether what was read up to position, its last batch in this leader epoch, is not what is here (KIP-595)."""
        if last_epoch < 0:
            return False
        known = [b for b in self.batches if struct.unpack_from(">i", b.data, 12)[0] <= last_epoch]
        later = [b.offset for b in self.batches if struct.unpack_from(">i", b.data, 12)[0] > last_epoch]
        end = later[0] if later else self.end
        return last_epoch <= self.leader_epoch and bool(known or self.start < position) and end < position

    @property
    def stable_end(self) -> int:
        return next((batch.offset for batch in self.batches if batch.committed is None), self.end)

    def committed(self) -> list[Record]:
        """What a reader of committed data sees."""
        stable = self.stable_end
        return [r for batch in self.batches if batch.committed and batch.offset < stable for r in batch.records]

    def fetch(self, position: int) -> Fetched:
        stable = self.stable_end
        found = [b for b in self.batches if b.offset + b.count > position and b.offset < stable][:BATCHES_PER_FETCH]
        if not found:
            return Fetched(b"", [], stable)
        last = found[-1].offset + found[-1].count
        aborted = [(who, first) for who, first, end in self.aborted if first < last and end >= found[0].offset]
        return Fetched(b"".join(batch.data for batch in found), aborted, stable)


@dataclass
class Transaction:
    """A transactional id. state: empty, open, committed or aborted."""

    producer: int
    epoch: int = -1
    state: str = "empty"
    partitions: set[tuple[str, int]] = field(default_factory=set)
    takes_offsets: bool = False
    raised: bool = False
    """Whether its last end has raised the epoch."""


class MemoryKafka:
    """Carries out requests, one at a time."""

    def __init__(self, ends_raise_epoch: bool = False, verifies: bool = True) -> None:
        """See the module's text.

        Args:
            ends_raise_epoch: whether the cluster has agreed on it.
            verifies: whether leaders ask the coordinator before they append what belongs to a transaction.
        """
        self.ends_raise_epoch, self.verifies = ends_raise_epoch, verifies or ends_raise_epoch
        self.logs: defaultdict[tuple[str, int], Log] = defaultdict(Log)
        self.offsets: dict[tuple[str, str, int], Committed] = {}
        self.pending: defaultdict[int, dict[tuple[str, str, int], Committed]] = defaultdict(dict)
        """Offsets of open transactions, by producer."""
        self.offset_epochs: dict[int, int] = {}
        """The epoch of a producer's last marker among the offsets."""
        self.offsets_marked_by: dict[int, int] = {}
        """The epoch of the coordinator that wrote it."""
        self.transactions: dict[str, Transaction] = {}
        self.last_epoch = 1 << 15
        """An id whose producer has had it gets a new producer."""
        self.stamped = dict[str, Callable[[], int]]()
        """Topics with LogAppendTime, and their clocks in milliseconds."""
        self.without_leader: set[tuple[str, int]] = set()
        """Partitions that nobody leads; a transaction ends without them, as Kafka 4.3 does it."""
        self.generations = defaultdict[str, int](int)
        """How often each topic was deleted and created again."""
        self.late: list[tuple[int, Any]] = []
        """Requests whose senders have given them up, on their way, and to which node."""
        self.coordinator, self.coordinator_epoch = 1, 0
        """Node 1 or 2."""
        self.replaced: dict[str, Transaction] | None = None
        """What the other node has in memory, while it does not know that it was replaced."""
        self.late_markers: list[Marker] = []
        """Of coordinators that were replaced, on their way."""
        self._hands_over = False

    def topic_id(self, name: str) -> bytes:
        """16 bytes."""
        return f"{name}.{self.generations[name]}".encode().ljust(16, b".")

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again."""
        self.generations[topic] += 1
        self.logs[topic, 0] = Log()

    def carry_out(self, request: Any, node: int) -> Any:
        """The answer; None where there is none: a replaced coordinator could not write what it was asked for."""
        if not is_coordinated(request) or node == self.coordinator:
            return self._carry_out(request)
        if self.replaced is None:
            return refused(request)
        memory = MemoryKafka(self.ends_raise_epoch, self.verifies)
        memory.last_epoch, memory.transactions = self.last_epoch, deepcopy(self.replaced)
        answer = memory._carry_out(request)
        return answer if memory.transactions == self.replaced else None

    def _carry_out(self, request: Any) -> Any:
        return getattr(self, type(request).__name__)(**{name[1:]: value for name, value in vars(request).items()})

    def move_coordinator(self, *, unaware: bool = False) -> None:
        """The other node coordinates from now on. unaware: whether this one does not know yet."""
        self.replaced = deepcopy(self.transactions) if unaware else None
        self.coordinator, self.coordinator_epoch = 3 - self.coordinator, self.coordinator_epoch + 1

    def hand_over(self, request: Any, node: int) -> Any:
        """A coordinator has written what it was asked for, and is replaced; the other one does it, markers and all."""
        if not is_coordinated(request) or node != self.coordinator:
            self.move_coordinator()
            return self.carry_out(request, node)
        self._hands_over = True
        self._carry_out(request)
        if self._hands_over:
            self._hands_over = False
            self.move_coordinator()
        return refused(request)

    @property
    def has_late(self) -> bool:
        return bool(self.late or self.late_markers)

    def deliver_late(self) -> None:
        """All that is late arrives; nobody hears the answers.

        But not a late taking over while a transaction is open that Kafka calls complete: it takes the knowledge of how
        that was to end with it (docs/decisions/0017-late-requests.md, what remains), and the partition halts.
        """
        markers, self.late_markers = self.late_markers, []
        for each in markers:
            self._mark(each)
        late, self.late = self.late, []
        for node, request in late:
            wipes = type(request).__name__ in ("InitProducerIdRequest", "GiveUpRequest")
            if not (wipes and self.left_open()):
                self.carry_out(request, node)

    def left_open(self) -> bool:
        """Whether it calls a transaction complete that it has not ended everywhere."""
        ids = {each.producer: each for each in self.transactions.values()}
        batches = [batch for log in self.logs.values() for batch in log.batches if batch.committed is None]
        # What an open transaction has written itself ends with it.
        return any(
            (last := ids.get(b.producer)) is None or last.state != "open" or b.epoch < last.epoch for b in batches
        )

    def _owned(self, transactional_id: str, producer_id: int, producer_epoch: int) -> tuple[Transaction, int]:
        transaction = self.transactions.get(transactional_id, Transaction(-1))  # one replaced may not know it
        if producer_id != transaction.producer:
            return transaction, INVALID_ID
        return transaction, 0 if producer_epoch == transaction.epoch else INVALID_EPOCH

    def _end(self, transaction: Transaction, kind: int, raises: bool) -> None:
        """raises: whether the markers carry the next epoch, which is the id's from now on."""
        transaction.epoch += raises
        places: list[tuple[str, int] | None] = [*sorted(transaction.partitions)]
        places += [None] if transaction.takes_offsets else []
        if self._hands_over:
            self._hands_over = False
            self.late_markers += [self._marker(place, transaction, kind) for place in places]
            self.move_coordinator()
        for place in places:
            self._mark(self._marker(place, transaction, kind))
        transaction.partitions, transaction.takes_offsets = set(), False
        transaction.state = "committed" if kind == COMMIT else "aborted"
        transaction.raised = False

    def _marker(self, place: tuple[str, int] | None, transaction: Transaction, kind: int) -> Marker:
        return Marker(place, transaction.producer, kind, transaction.epoch, self.coordinator_epoch)

    def _mark(self, marker: Marker) -> None:
        """A marker comes to its partition; one that nobody leads is left out, as Kafka 4.3 does it."""
        place, producer, kind, epoch, by = marker
        if place is not None:
            if place not in self.without_leader:
                self.logs[place].write_marker(producer, kind, epoch, by)
            return
        if epoch < self.offset_epochs.get(producer, epoch) or by < self.offsets_marked_by.get(producer, by):
            return
        self.offset_epochs[producer], self.offsets_marked_by[producer] = epoch, by
        offsets = self.pending.pop(producer, {})
        if kind == COMMIT:
            self.offsets.update(offsets)

    def FeaturesRequest(self) -> Any:
        agreed = [(FEATURE, 2 if self.ends_raise_epoch else 1, 0, {})]
        return SimpleNamespace(error_code=0, tags={FINALIZED_FEATURES: FEATURES.encode(agreed)})

    def InitProducerIdRequest(self, transactional_id: str, **_: Any) -> Any:
        transaction = self.transactions.setdefault(transactional_id, Transaction(1_000 + len(self.transactions)))
        if was_open := transaction.state == "open":
            self._end(transaction, ABORT, raises=True)
        else:
            if transaction.epoch >= self.last_epoch:
                transaction.producer, transaction.epoch = transaction.producer + 100, -1
            transaction.epoch, transaction.state, transaction.raised = transaction.epoch + 1, "empty", False
        return SimpleNamespace(
            error_code=CONCURRENT if was_open else 0,
            producer_id=transaction.producer,
            producer_epoch=transaction.epoch,
        )

    def GiveUpRequest(self, transactional_id: str, transaction_timeout_ms: int, **owner: int) -> Any:
        transaction, code = self._owned(transactional_id, **owner)
        if transaction.state == "open" and code != INVALID_ID:  # Kafka does not look at the epoch here
            code = 0
        return SimpleNamespace(error_code=code) if code else self.InitProducerIdRequest(transactional_id)

    def AddPartitionsToTxnRequest(self, topics: Any, **who: Any) -> Any:
        transaction, code = self._owned(**who)
        if not code:
            transaction.state = "open"
            transaction.partitions.update((topic, number) for topic, numbers in topics for number in numbers)
        return SimpleNamespace(errors=[(topic, [(number, code) for number in numbers]) for topic, numbers in topics])

    def AddOffsetsToTxnRequest(self, group_id: str, **who: Any) -> Any:
        transaction, code = self._owned(**who)
        if not code:
            transaction.state, transaction.takes_offsets = "open", True
        return SimpleNamespace(error_code=code)

    def BatchRequest(self, transactional_id: str, topics: Any, batch: memoryview, **_: Any) -> Any:
        ((topic, ((number, _empty),)),) = topics
        data = bytes(batch)
        fields = HEAD.unpack_from(data)
        producer, epoch, base, count = fields[9], fields[10], fields[11], fields[12]
        transaction, code = self._owned(transactional_id, producer, epoch)
        place, offset, at_ms = (topic, number), -1, -1
        if not self.verifies:
            code = 0
        if not code and self.verifies and (transaction.state != "open" or place not in transaction.partitions):
            code = INVALID_STATE
        if place in self.without_leader:
            code = NOT_LEADER
        log = self.logs[place]
        code = code or log.refuses(producer, epoch, base)
        if not code:
            log.producers[producer] = (epoch, base + count)
            if topic in self.stamped:
                at_ms = self.stamped[topic]()
            offset = log.append(data, producer, at_ms)
        return SimpleNamespace(topics=[(topic, [(number, code, offset, at_ms)])])

    def TxnOffsetCommitRequest(self, group_id: str, topics: Any, **who: Any) -> Any:
        transaction, code = self._owned(**who)
        producer, epoch = who["producer_id"], who["producer_epoch"]
        if not self.verifies:
            code = INVALID_EPOCH if epoch < self.offset_epochs.get(producer, epoch) else 0
        if not code and self.verifies and not transaction.takes_offsets:
            code = INVALID_STATE
        ((topic, ((number, offset, metadata),)),) = topics
        if not code:
            self.pending[producer][group_id, topic, number] = Committed(offset, metadata)
        return SimpleNamespace(errors=[(topic, [(number, code)])])

    def DescribeTransactionsRequest(self, transactional_id: str) -> Any:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return SimpleNamespace(transactions=[(NO_SUCH_ID, transactional_id, "", 0, 0, -1, -1)])
        state = {"empty": "Empty", "open": "Ongoing", "committed": "CompleteCommit", "aborted": "CompleteAbort"}
        told = (0, transactional_id, state[transaction.state], 0, 0, transaction.producer, transaction.epoch)
        return SimpleNamespace(transactions=[told])

    def DescribeProducersRequest(self, places: list[tuple[str, int]]) -> Any:
        answers = []
        for topic, number in places:
            code = NOT_LEADER if (topic, number) in self.without_leader else 0
            log = self.logs[topic, number]
            starts = {b.producer: (b.epoch, b.offset) for b in reversed(log.batches) if b.committed is None}
            producers = [(who, epoch, 0, 0, 0, at) for who, (epoch, at) in starts.items()]
            answers.append((topic, [(number, code, None, producers)]))
        return SimpleNamespace(topics=answers)

    def OffsetCommitRequest(self, consumer_group: str, topics: Any, **_: Any) -> Any:
        for topic, partitions in topics:
            for number, offset, metadata in partitions:
                self.offsets[consumer_group, topic, number] = Committed(offset, metadata)
        return SimpleNamespace(topics=[(topic, [(each[0], 0) for each in partitions]) for topic, partitions in topics])

    def OffsetFetchRequest(self, consumer_group: str, partitions: Any) -> Any:
        found = [
            (topic, [(number, *self.offsets.get((consumer_group, topic, number), (-1, "")), 0) for number in numbers])
            for topic, numbers in partitions
        ]
        return SimpleNamespace(topics=found, error_code=0)

    def EndTxnRequest(self, transaction_result: bool, **who: Any) -> Any:
        transaction, code = self._owned(**who)
        if not code and transaction.state == "open":
            self._end(transaction, COMMIT if transaction_result else ABORT, raises=False)
        elif not code:
            code = self._ended_so(transaction, transaction_result)
        return SimpleNamespace(error_code=code)

    def RaisingEndRequest(self, transaction_result: bool, producer_epoch: int, **who: Any) -> Any:
        assert self.ends_raise_epoch
        transaction, code = self._owned(producer_epoch=producer_epoch, **who)
        if not code and transaction.state == "open":
            self._end(transaction, COMMIT if transaction_result else ABORT, raises=True)
            transaction.raised = True
            if transaction.epoch > self.last_epoch:
                transaction.producer, transaction.epoch = transaction.producer + 100, 0
        elif transaction.raised and code == INVALID_EPOCH and producer_epoch + 1 == transaction.epoch:
            code = self._ended_so(transaction, transaction_result)
        elif not code and not transaction_result:
            transaction.epoch, transaction.state, transaction.raised = transaction.epoch + 1, "aborted", True
        elif not code:
            code = INVALID_STATE
        elif code == INVALID_EPOCH:
            code = FENCED
        return SimpleNamespace(error_code=code, producer_id=transaction.producer, producer_epoch=transaction.epoch)

    def _ended_so(self, transaction: Transaction, committed: bool) -> int:
        """Asked again: the first answer was lost."""
        return 0 if transaction.state == ("committed" if committed else "aborted") else INVALID_STATE


class Fate(Enum):
    """What becomes of a request that gets no answer."""

    LOST = "it never arrives"
    UNANSWERED = "it is carried out, and its answer is lost"
    LATE = "it arrives later"
    TWICE = "it is carried out, its answer is lost, and it comes once more"
    MOVED = "its coordinator is replaced before it comes, and refuses it"
    HANDED_OVER = "its coordinator is replaced when it has written it, and refuses it; the next one carries it out"


SILENT = (Fate.LOST, Fate.UNANSWERED, Fate.LATE, Fate.TWICE)


class MemoryPlace(Place):
    """Looked at now and then, and left out where the worker has lost its way to Kafka: then it is called."""

    def __init__(self, link: Link, topic: str, spot: Spot) -> None:
        self._link, self._topic = link, topic
        super().__init__(spot, SimpleNamespace(answered_at=0.0))  # type: ignore[arg-type]
        self.looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while not self.is_called:
            await asyncio.sleep(0.05)
            await self._link._led(self._topic, self.spot.partition)
            self.is_covered = True
            if self._link.has_something(self._topic, self.spot):
                self.call()


class MemoryWatch:
    """In the place of `kafka_ratchet.transport.client.watch.Watch`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def place(self, topic: str, spot: Spot) -> Place | None:
        if (topic, spot.partition) in self._link.kafka.without_leader:
            return None
        return MemoryPlace(self._link, topic, spot)

    def leave(self, place: MemoryPlace) -> None:
        place.looking.cancel()


class Link:
    """A worker's connection, in the place of `kafka_ratchet.transport.client.cluster.Cluster`."""

    request_timeout_ms = 1_000

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka
        self.dead = False
        self.awake = asyncio.Event()
        self.awake.set()
        self.lose: tuple[int, Fate] | None = None
        """(requests until then, what becomes of that one)"""
        self.coordinates: int | None = None
        """The node that it takes for the coordinator of transactions."""
        self.misled = 0
        """How many times more it is told of the one that was replaced, as long as that one does not know."""

    async def _alive(self) -> None:
        await asyncio.sleep(0)
        if not self.dead:
            await self.awake.wait()
        if self.dead:
            raise PowerOff

    async def send(self, node: int, request: Any, connection: Hashable) -> Any:
        """Nothing comes between the last look at a transaction and taking its id over.

        An owner that is alive and ends a transaction in that millisecond takes the knowledge of its end with it
        (docs/decisions/0016-a-note-before-taking-over.md, what remains), and the partition halts.
        """
        if self.dead:
            raise PowerOff
        if not isinstance(request, InitProducerIdRequest):
            await self._alive()
        fate: Fate | None = None
        if self.lose is not None:
            left, fate = self.lose
            self.lose = (left - 1, fate) if left else None
            fate = None if left else fate
        if fate in (Fate.LATE, Fate.TWICE) and type(request).__name__ in COMES_LATE:
            self.kafka.late.append((node, copy(request)))
        if fate is Fate.MOVED:
            self.kafka.move_coordinator()
        answer = None
        if fate is Fate.HANDED_OVER:
            answer = self.kafka.hand_over(request, node)
        elif fate not in (Fate.LOST, Fate.LATE):
            answer = self.kafka.carry_out(request, node)
        if not isinstance(request, DescribeTransactionsRequest):
            await self._alive()
        if fate in SILENT or answer is None:
            raise KafkaConnectionError("lost on the way")
        return answer

    async def leader(self, topic: str, partition: int) -> int:
        return 1

    async def coordinator(self, kind: int, key: str) -> int:
        if kind != TRANSACTION:
            return 1
        if self.coordinates is None:
            self.coordinates = self.kafka.coordinator
            if self.misled and self.kafka.replaced is not None:
                self.misled -= 1
                self.coordinates = 3 - self.coordinates
        return self.coordinates

    @asynccontextmanager
    async def asking_coordinator(self, kind: int, key: str) -> AsyncIterator[int]:
        try:
            yield await self.coordinator(kind, key)
        except KafkaError:
            self.forget_coordinator(kind, key)
            raise

    def forget_coordinator(self, kind: int, key: str) -> None:
        if kind == TRANSACTION:
            self.coordinates = None

    def refresh(self) -> None:
        pass

    async def _led(self, topic: str, partition: int) -> None:
        await self._alive()
        while (topic, partition) in self.kafka.without_leader:
            await asyncio.sleep(0.05)
            await self._alive()

    def watch(self, name: str) -> MemoryWatch:
        return MemoryWatch(self)

    async def offset(self, topic: str, partition: int, which: int, connection: Hashable) -> int:
        await self._led(topic, partition)
        log = self.kafka.logs[topic, partition]
        return log.start if which == EARLIEST else log.stable_end

    async def committed(self, group: str, topic: str, partition: int, connection: Hashable) -> Committed | None:
        await self._alive()
        return self.kafka.offsets.get((group, topic, partition))

    async def found(self, names: Iterable[str], besides: Iterable[str] = ()) -> dict[str, TopicState]:
        await self._alive()
        there = [name for name in besides if (name, 0) in self.kafka.logs]
        for name in names:
            _ = self.kafka.logs[name, 0]  # there it is
        return {name: TopicState(self.kafka.topic_id(name), 1) for name in (*names, *there)}

    def has_something(self, topic: str, spot: Spot) -> bool:
        """Whether a broker's answer to the watch would name the partition."""
        log = self.kafka.logs[topic, spot.partition]
        return (
            spot.topic_id != self.kafka.topic_id(topic)
            or log.diverges(spot.position, spot.last_epoch)
            or not log.start <= spot.position <= log.end
            or log.stable_end > spot.position
        )

    async def fetch(
        self,
        topic: str,
        partition: int,
        position: int,
        connection: Hashable,
        *,
        max_bytes: int,
        max_wait_ms: int,
        topic_id: bytes,
        last_epoch: int = -1,
    ) -> Fetched:
        await self._led(topic, partition)
        fetched = self._fetched(topic, partition, position, topic_id, last_epoch)
        if not fetched.data:
            await asyncio.sleep(max_wait_ms / 1000)
            await self._led(topic, partition)
            fetched = self._fetched(topic, partition, position, topic_id, last_epoch)
        return fetched

    def _fetched(self, topic: str, partition: int, position: int, topic_id: bytes, last_epoch: int) -> Fetched:
        if topic_id != self.kafka.topic_id(topic):
            raise TopicReplaced(f"{topic}: was replaced")
        log = self.kafka.logs[topic, partition]
        if log.diverges(position, last_epoch):
            error = LogTruncated(f"{topic}: lost its end")
            error.is_certain = True
            raise error
        if not log.start <= position <= log.end:
            raise PositionLost(f"{topic}: offset {position} is outside {log.start} to {log.end}")
        return log.fetch(position)
