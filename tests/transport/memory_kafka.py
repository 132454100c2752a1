"""Kafka in memory, as far as a lane needs it: partition logs, one consumer group, transactions with epochs.

Only the broker is replaced by it. The end of a transaction raises the producer's epoch (KIP-890, part 2), or leaves it
as it is. In the latter case it can be a Kafka that does not ask the coordinator before it appends a transaction's batch
(before part 1 of KIP-890): then nothing but the epoch in the log refuses one that comes late.

A `Link` is a worker's connection to it, in the place of `Cluster` (memory_link.py). A request can be lost on it before
or after it is carried out, or come late: its sender has given it up, and perhaps sent it again, and it is carried out
at some later time, or once more then. The worker behind it can stand still, and it can be gone. Transactions have a
coordinator, which can be replaced (memory_coordinators.py).

Topics have ids and logs have leader epochs. An operator can create a topic anew or delete records, an unclean election
can take the end of a log away, and compaction can take out what later entries replace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from aiokafka.protocol.types import CompactArray, Int16

from kafka_ratchet.transport.client.cluster import CommittedPosition
from kafka_ratchet.transport.client.describe import TAGS, TEXT
from kafka_ratchet.transport.transactions.version_2 import FEATURE, FINALIZED_FEATURES
from tests.transport.batch.known_batches import HEAD
from tests.transport.memory_coordinators import Marker, is_coordinated, refused
from tests.transport.memory_log import ABORT, COMMIT, INVALID_EPOCH, Log

INVALID_STATE, CONCURRENT, NOT_LEADER, NO_SUCH_ID, INVALID_ID, FENCED = 48, 51, 6, 105, 49, 90
FEATURES = CompactArray(("name", TEXT), ("most", Int16), ("least", Int16), TAGS)


@dataclass
class Transaction:
    """A transactional id. state: empty, open, committed or aborted."""

    producer: int
    epoch: int = -1
    state: str = "empty"
    partitions: set[tuple[str, int]] = field(default_factory=set)
    takes_offsets: bool = False
    raised: bool = False
    """True if its last end has raised the epoch."""


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
        self.offsets: dict[tuple[str, str, int], CommittedPosition] = {}
        self.pending: defaultdict[int, dict[tuple[str, str, int], CommittedPosition]] = defaultdict(dict)
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
        """Number of times each topic was deleted and created again."""
        self.late: list[tuple[int, Any]] = []
        """Requests whose senders have given them up, on their way, and to which node."""
        self.coordinator, self.coordinator_epoch = 1, 0
        """Node 1 or 2."""
        self.replaced: dict[str, Transaction] | None = None
        """Memory of the other node, while it does not know that it was replaced."""
        self.late_markers: list[Marker] = []
        """Markers of replaced coordinators, on their way."""
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
        """Return True if it calls a transaction complete that it has not ended everywhere."""
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
        agreed: list[Any] = [(FEATURE, 2 if self.ends_raise_epoch else 1, 0, {})]
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
            self.pending[producer][group_id, topic, number] = CommittedPosition(offset, metadata)
        return SimpleNamespace(errors=[(topic, [(number, code)])])

    def DescribeTransactionsRequest(self, transactional_id: str) -> Any:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return SimpleNamespace(transactions=[(NO_SUCH_ID, transactional_id, "", 0, 0, -1, -1, [])])
        state = {"empty": "Empty", "open": "Ongoing", "committed": "CompleteCommit", "aborted": "CompleteAbort"}
        members: list[Any] = [(topic, [number], {}) for topic, number in sorted(transaction.partitions)]
        members += [("__consumer_offsets", [0], {})] if transaction.takes_offsets else []
        told = (0, transactional_id, state[transaction.state], 0, 0, transaction.producer, transaction.epoch, members)
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
                self.offsets[consumer_group, topic, number] = CommittedPosition(offset, metadata)
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
