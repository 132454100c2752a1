"""Rows and Kafka offsets in one transaction of the user's own database, without Spark.

The path of a record: `Source.fetch` takes it from Kafka, the program writes rows within a `Transaction`, and
`Reader._commit` stores the offset after it and commits rows and offset at once. After a crash the database says where
to go on (PIP-6: the reader stores the message id together with the result).
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from types import FrameType, TracebackType
from typing import Any, Final, Literal

import structlog

from kafka_ratchet.errors import (
    BatchUnread,
    BrokerUnavailable,
    PositionLost,
    ReaderMisused,
    SettingsError,
)
from kafka_ratchet.reader.ownership import Ownership
from kafka_ratchet.reader.partitions import Partitions
from kafka_ratchet.reader.positions import NAME, HeldPartition, Positions
from kafka_ratchet.reader.source import FetchedRecords, Source
from kafka_ratchet.reader.stores.database import Store
from kafka_ratchet.reader.topic import Options, TopicReading
from kafka_ratchet.reader.transaction import Transaction

log = structlog.get_logger(__name__)

WATCH_S: Final = 10.0
"""Seconds between checks of the topic's id and partition count by a reader without records."""

AGAIN_S: Final = 0.5
"""Seconds before a transaction ended by the database is retried: the cause may last, such as a full disk."""

POLL_S: Final = 0.5
"""Seconds of one fetch; the assignment and the ends are checked between two fetches."""


class _Steps(Generator[Transaction, None, None]):
    """Iterator over a reader's transactions, which checks each step's thread.

    Args:
        found: the transactions.
        begin_step: function that raises an error while another thread works on a transaction.
    """

    def __init__(self, found: Generator[Transaction, None, None], begin_step: Callable[[], None]) -> None:
        self._found, self._begin_step = found, begin_step

    def send(self, value: None) -> Transaction:
        """Commit the previous transaction, and return the next transaction."""
        self._begin_step()
        return self._found.send(value)

    def throw(self, *error: Any) -> Transaction:
        """Raise an error inside the generator of transactions; `close` does so too."""
        self._begin_step()
        return self._found.throw(*error)


def _calling_frame() -> FrameType | None:
    """Return the frame of the program that calls the reader, without the reader's own generators."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and (
        frame.f_code.co_filename == __file__
        or frame.f_globals.get("__name__") == Generator.__module__
        or frame.f_code.co_flags & inspect.CO_GENERATOR
    ):
        frame = frame.f_back
    return frame


def _runs_elsewhere(frame: FrameType) -> bool:
    """Return True if another thread is now executing the frame."""
    here = threading.get_ident()
    for thread, innermost in sys._current_frames().items():  # noqa: SLF001  # nothing else has the frames of other threads
        each: FrameType | None = innermost if thread != here else None
        while each is not None:
            if each is frame:
                return True
            each = each.f_back
    return False


class Reader:
    """Reader of a topic's committed records that stores positions with the program's rows.

    ::

        options = {"bootstrap.servers": "..."}
        with Reader("orders.once", store=Sqlite("bill.db"), name="billing", options=options) as reader:
            for transaction in reader.transactions(until_end=True):
                for event in transaction.events:
                    transaction.execute("insert into bill values (?, ?)", (event.key, event.value))

    Rows and positions are committed in one transaction of the database.

    A starting reader takes over its partitions: the next commit of an older process with the same name is refused, and
    its rows are rolled back. With `group`, processes of one name share the partitions instead. Kafka assigns them, and
    each new owner takes a partition over in the same way, so that rebalances lose and double nothing.

    The positions are in the table `ratchet_reader_positions` of the database, which is created if missing. The reader
    may be used by one thread at a time; each step may come from another thread, as those of `asyncio.to_thread` do.

    Args:
        topic: topic to read; usually a stream's output.
        store: database for rows and positions.
        name: name of the reader: 1 to 200 letters, digits, '.', '_' or '-'. Each name has its own positions.
        options: librdkafka client options, at least "bootstrap.servers". Options that exactness needs cannot be
            overridden.
        group: consumer group of the processes that share the partitions. None: this process reads all partitions.
        start: first position of a new name. Partitions that the topic gets later are read from their beginning.
        max_records: highest number of records in one transaction.
        timeout_s: how long to wait for Kafka or the database at the start, and within `until_end`, in seconds. A reader
            that runs without end waits without limit.

    Raises:
        SettingsError: a name or client option is invalid.
    """

    def __init__(
        self,
        topic: str,
        *,
        store: Store,
        name: str,
        options: Options,
        group: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        max_records: int = 1000,
        timeout_s: float = 60.0,
    ) -> None:
        if not NAME.fullmatch(name):
            raise SettingsError(
                f"reader name {name!r}: use a letter or digit, then at most 199 letters, digits, '.', '_' or '-'"
            )
        if start not in ("earliest", "latest"):
            raise SettingsError(f"start {start!r} is invalid. Write earliest or latest")
        if max_records < 1:
            raise SettingsError(f"max_records {max_records} is too small. Write 1 or more")
        self.topic, self.name = topic, name
        self._store, self._group, self._start = store, group, start
        self._options, self._max_records, self._timeout_s = options, max_records, timeout_s
        owner = uuid.uuid4().hex
        self._positions = Positions(name, topic, owner, store.placeholder, store.where)
        self._ours = Ownership(store, self._positions, owner, name)
        self._topic = TopicReading(topic, options, timeout_s)
        self._partitions = Partitions(name, group, self._topic, self._positions, self._ours, store.where)
        self._partitions.limit_s = timeout_s
        self._transaction: Transaction | None = None
        self._watched_at = self._answered_at = 0.0
        self._loop = 0
        """Number of loops begun by `transactions`; only the newest loop may continue."""
        self._stopped = threading.Event()
        self._user: tuple[threading.Thread, FrameType | None] | None = None
        """Thread and calling frame of the newest step; None: no loop runs."""

    # -- start and end

    def __enter__(self) -> Reader:
        """Connect; without a group, take over all partitions.

        Raises:
            TopicMissing: the topic does not exist.
            TopicReplaced: the topic is not the one that this name has read before.
            PositionNotStored: a trigger, rule or policy of the database keeps the positions from being stored.
            BrokerUnavailable, DatabaseUnavailable: no answer within `timeout_s`.
            Exception: the database's error, if it refuses the reader's table.
        """
        try:
            ours, reading = self._ours, self._partitions
            reading.connect(Source(self.topic, self._options, self.name, self._group, on_revoked=ours.give_back))
            ours.connect(self._timeout_s)
            self._positions.create(ours.database)
            reading.begin(self._start)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Roll back an open transaction, release the partitions, and close the connections."""
        try:
            self._roll_back()
        finally:
            try:
                self._ours.close()
            finally:
                self._partitions.close()

    def stop(self) -> None:
        """Stop the loop before its next transaction, within half a second. May be called from any thread."""
        self._stopped.set()

    # -- reading

    def transactions(self, *, until_end: bool = False) -> Generator[Transaction, None, None]:
        """Yield transactions with at least one record each.

        A transaction commits when the caller requests the next one. `break` and exceptions roll it back; its records
        come again in the next loop, or at the next start. If the database is unreachable between transactions, the
        reader waits for it. An error of the program's own statements ends the loop; see `run`.

        Args:
            until_end: True: end after the records committed until now; in a group, wait until all processes of the
                group have reached them. False: run without end.

        Raises:
            ReaderFenced: another process has taken over the partitions.
            ReaderMisused: the program has ended the transaction, begun another loop, or used the reader outside `with`
                or in two threads at once.
            TopicReplaced, TopicMissing, PositionLost: the topic was replaced or deleted, or has lost records.
            BatchUnread: librdkafka does not read a batch to its end.
            ReaderError: Kafka refuses a request.
            PositionNotStored: a trigger, rule or policy of the database prevents storing the positions.
            BrokerUnavailable, DatabaseUnavailable: with `until_end`, no answer within `timeout_s`.
        """
        return _Steps(self._transactions(self._ends(until_end)), self._begin_step)

    def run(self, handle: Callable[[Transaction], object], *, until_end: bool = False) -> None:
        """Call `handle` with each transaction, and commit the transaction afterwards.

        Unlike a loop over `transactions`, it also waits if the database becomes unreachable while `handle` runs;
        `handle` is then called again with the same records. Raises the errors of `transactions` and of `handle`.
        """
        ends = self._ends(until_end)
        while True:
            try:
                for transaction in self._transactions(ends):
                    handle(transaction)
                return
            except Exception as error:
                if not self._store.is_away(error):
                    raise
                self._go_back(error)

    def _ends(self, until_end: bool) -> Mapping[int, int] | None:
        return self._topic.ends(range(self._partitions.shape.partitions)) if until_end else None

    def _transactions(self, ends: Mapping[int, int] | None) -> Generator[Transaction, None, None]:
        self._begin_step()
        self._loop += 1
        loop, transaction = self._loop, None
        self._partitions.limit_s = None if ends is None else self._timeout_s
        self._roll_back()  # also an interrupted begin that the reader does not know of
        self._ours.database.rollback()  # also an interrupted begin that the reader does not know of
        self._answered_at = time.monotonic()
        try:
            while not self._stopped.is_set():
                if loop != self._loop:
                    raise ReaderMisused(
                        "another loop over this reader's transactions has begun. Continue with that loop"
                    )
                try:
                    self._partitions.follow()
                    if ends is not None and self._has_reached(ends):
                        return
                    transaction = self._next(ends)
                    if transaction is not None:
                        yield transaction
                        self._answered_at = time.monotonic()
                        if transaction.is_open:
                            transaction.try_commit()
                except (PositionLost, BatchUnread):
                    self._topic.same_shape(self._partitions.shape.id)  # the offset may be one of another topic
                    raise
                except BrokerUnavailable as error:
                    if ends is not None:
                        raise
                    log.warning(
                        "Kafka does not answer; the reader yields the transaction's records again",
                        reader=self.name,
                        why=str(error),
                    )
                except Exception as error:
                    if not self._store.is_away(error):
                        raise
                    self._go_back(error)
        finally:
            if loop == self._loop:
                self._user = None
            if transaction is not None and transaction is self._transaction:
                self._roll_back()

    def _begin_step(self) -> None:
        """Record the thread and the frame that request the next transaction.

        Raises:
            ReaderMisused: see `_require_no_other`.
        """
        self._require_no_other()
        self._user = threading.current_thread(), _calling_frame()

    def _require_no_other(self) -> None:
        """Refuse a call while another thread still runs the code that requested the open transaction.

        Raises:
            ReaderMisused: another thread still runs that code.
        """
        if self._user is None or (frame := self._user[1]) is None:
            return
        owner, here = self._user[0], threading.current_thread()
        if owner is not here and _runs_elsewhere(frame):
            raise ReaderMisused(
                f"thread {here.name!r} uses a reader while thread {owner.name!r} works on its transaction: the "
                "next step would commit unfinished work. Read in one thread, and give each other thread a Reader "
                "of its own, with a group for all of them"
            )

    def _next(self, ends: Mapping[int, int] | None) -> Transaction | None:
        """Return the next transaction; None if no record has come yet."""
        fetched = self._partitions.source.fetch(self._max_records, POLL_S)
        if fetched.positions:
            self._answered_at = time.monotonic()
        if fetched.events:
            return self._begin(fetched, self._topic.ask())
        self._while_idle(fetched, ends)
        return None

    def _while_idle(self, fetched: FetchedRecords, ends: Mapping[int, int] | None) -> None:
        """Store positions past transaction markers, and check the topic at intervals."""
        if fetched.positions:
            self._begin(fetched, self._topic.ask()).try_commit()
        elif time.monotonic() - self._watched_at > WATCH_S:
            self._watched_at = time.monotonic()
            self._partitions.count = self._topic.same_shape(self._partitions.shape.id).partitions
        elif ends is not None and not self._is_behind(ends):
            self._answered_at = time.monotonic()  # others of the group read; a partition of theirs may come here
        elif ends is not None and time.monotonic() - self._answered_at > self._timeout_s:
            raise BrokerUnavailable(
                f"Kafka returned no record of topic {self.topic!r} for {self._timeout_s:g} s, although the topic's "
                "end is not reached. Check that the leaders of its partitions run"
            )

    def _has_reached(self, ends: Mapping[int, int]) -> bool:
        """Return True if the database has all records up to these offsets.

        In a group, the positions of the other processes count as well.
        """
        if self._is_behind(ends):
            return False
        mine = {partition: held.position.next for partition, held in self._ours.held.items()}
        if self._group is not None:
            mine = {row.partition: row.next for row in self._positions.stored(self._ours.database)}
        return all(mine.get(partition, -1) >= end for partition, end in ends.items())

    def _is_behind(self, ends: Mapping[int, int]) -> bool:
        """Return True if a partition of this process has unstored records before these offsets."""
        return any(held.position.next < ends.get(partition, 0) for partition, held in self._ours.held.items())

    # -- one transaction

    def _begin(self, fetched: FetchedRecords, question: Future[Any]) -> Transaction:
        database = self._ours.database
        database.begin()
        transaction = Transaction(fetched.events, database, lambda: self._commit(transaction, fetched, question))
        self._transaction = transaction
        return transaction

    def _commit(self, transaction: Transaction, fetched: FetchedRecords, question: Future[Any]) -> bool:
        """Check the topic's id, store the positions, and commit; on a mismatch, roll back.

        Returns:
            False: rolled back, because the positions in the database have changed since this transaction began.
        """
        self._require_no_other()
        database = self._ours.database
        try:
            if not database.is_in_transaction():
                raise ReaderMisused(
                    "the program has ended the reader's transaction, so that the rows it committed are in the database "
                    f"without their offsets, and their records come again ({self._range(fetched)}). Leave commit and "
                    "rollback to the reader"
                )
            # Before the positions are stored, which locks their rows.
            self._partitions.count = self._topic.confirm(question, self._partitions.shape.id).partitions
            now_ms = time.time_ns() // 1_000_000
            if behind := self._positions.move(database, self._ours.held, fetched.positions, now_ms):
                self._roll_back()
                self._partitions.continue_from_stored(behind)
                return False
            database.commit()
        except BaseException:
            self._roll_back()
            raise
        transaction.end()
        self._transaction = None
        for partition, position in fetched.positions.items():
            self._ours.held[partition] = HeldPartition(position, self._ours.held[partition].generation)
        self._watched_at = time.monotonic()
        return True

    def _range(self, fetched: FetchedRecords) -> str:
        return ", ".join(
            f"partition {partition} offsets {self._ours.held[partition].position.next} to {position.next - 1}"
            for partition, position in fetched.positions.items()
        )

    def _roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.end()
            self._ours.database.rollback()

    def _go_back(self, error: Exception) -> None:
        """Reconnect after the database was unreachable, and continue from its positions.

        The positions may include this process's last commit.
        """
        self._roll_back()
        begun = time.monotonic()
        while True:
            log.warning(
                "the database does not answer; the reader yields the transaction's records again",
                reader=self.name,
                why=str(error).strip(),
            )
            time.sleep(AGAIN_S)
            try:
                self._ours.connect(self._partitions.limit_s)
                return self._partitions.continue_from_stored([])
            except Exception as again:
                is_late = self._partitions.limit_s is not None and time.monotonic() - begun > self._partitions.limit_s
                if is_late or not self._store.is_away(again):
                    raise
                error = again
