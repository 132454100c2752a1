"""Lag of readers, and an operator's move of a reader to other offsets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_ratchet.errors import ReaderError, SettingsError, TopicMissing
from kafka_ratchet.reader.event import NO_TIMESTAMP
from kafka_ratchet.reader.positions import NAME, TABLE, Positions, StoredPosition, stored
from kafka_ratchet.reader.stores.database import Store
from kafka_ratchet.reader.topic import Options, TopicReading

STALLED_AFTER_S: Final = 15.0
"""Least age of the first unread record, in seconds, at which a reader counts as standing still."""
RECORDS_S: Final = 5.0
"""Seconds to wait for the first unread records of a topic, shared by its readers."""
LEAST_RECORDS_S: Final = 1.0
"""Seconds to wait for those of one reader after others have used up `RECORDS_S`."""
OPEN_TRANSACTION: Final = "open-transaction"
LOOKING = ""
"""Owner name of a connection that only reads and takes no partition over."""


@dataclass(frozen=True, slots=True)
class ReaderProgress:
    """Progress of one reader in one partition."""

    stored: StoredPosition
    end: int | None
    """High watermark; None: the topic or the partition does not exist."""
    is_other_topic: bool
    """True if the topic's name now belongs to another topic than the one read."""
    stable_end: int | None = None
    """Last stable offset. An open transaction holds back the offsets from here to `end`."""
    beginning: int | None = None
    """First offset of the partition."""
    has_leader: bool = True
    waits_long: bool = False
    """True if the first unread record is older than `STALLED_AFTER_S`; see `_long_waits`."""

    @property
    def blocked(self) -> int:
        """Return the number of offsets held back by an open transaction."""
        return 0 if self.end is None or self.stable_end is None else max(0, self.end - self.stable_end)

    @property
    def lag(self) -> int | None:
        """Return the number of offsets left to read, markers and rolled-back records included; None: unknown."""
        if self.end is None or self.is_other_topic:
            return None
        return max(0, self.end - self.stored.next)

    @property
    def stalled(self) -> tuple[str, str] | None:
        """Return cause and message of a standstill; None if the reader progresses, or has no records to read."""
        row, begin, end = self.stored, self.beginning, self.end
        place = f"reader {row.reader}: {row.topic}, partition {row.partition}"
        if not self.has_leader:
            return "no-leader", f"{place}: the partition has no leader. Start a broker with a replica in sync"
        if end is None:
            return "topic-missing", (
                f"{place}: the topic or the partition does not exist. Restore it; or create the topic again, and "
                "choose where to go on with `ratchet reader resume`"
            )
        if self.is_other_topic:
            return "halted", (
                f"{place}: the topic was deleted and created again. Choose where to go on with `ratchet reader resume`"
            )
        if begin is not None and not begin <= row.next <= end:
            return "halted", (
                f"{place}: offset {row.next:,} is to be read next, but the topic holds {begin:,} to {end:,}. Choose "
                "where to go on with `ratchet reader resume`"
            )
        if not self.lag:
            return None
        if self.stable_end is not None and row.next >= self.stable_end:
            return OPEN_TRANSACTION, f"{place}: {self.lag:,} offsets wait for an open transaction"
        if not self.waits_long:
            return None
        if not row.owner:
            return "no-reader", f"{place}: {self.lag:,} offsets wait, and no process reads under this name"
        ago = f"for {time.time() - row.committed_ms / 1000:,.0f} s" if row.committed_ms else "yet"
        return "reader-silent", (
            f"{place}: {self.lag:,} offsets wait, and the process {row.owner[:8]} has committed nothing {ago}. It "
            "holds its transaction, waits for Kafka or its database, or was killed"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the row for `ratchet reader status --json`."""
        row = self.stored
        return {
            "reader": row.reader,
            "topic": row.topic,
            "partition": row.partition,
            "next": row.next,
            "end": self.end,
            "lag": self.lag,
            "generation": row.generation,
            "owner": row.owner or None,
            "committed_ms": row.committed_ms or None,
            "topic_replaced": self.is_other_topic,
            **({"stable_end": self.stable_end, "blocked": self.blocked} if self.blocked else {}),
            **({"stalled": {"cause": self.stalled[0], "text": self.stalled[1]}} if self.stalled else {}),
        }


def standings(store: Store, options: Options, timeout_s: float) -> list[ReaderProgress]:
    """Return the progress of every reader in a database, without fencing any.

    Args:
        store: database with the positions.
        options: options of the Kafka client.
        timeout_s: longest wait for Kafka's answer, in seconds.

    Raises:
        ReaderError: the table of positions cannot be read; for example, no reader has used this database.
        DatabaseUnavailable, BrokerUnavailable: no answer.
    """
    rows = _stored(store)
    found = []
    for topic in sorted({row.topic for row in rows}):
        of_topic = [row for row in rows if row.topic == topic]
        reading = TopicReading(topic, options, timeout_s)
        try:
            shape = reading.shape()
        except TopicMissing:
            found += [ReaderProgress(row, None, is_other_topic=False) for row in of_topic]
            continue
        away = reading.leaderless()
        led = [number for number in range(shape.partitions) if number not in away]
        high = reading.high_watermarks(led)  # first: records written after it do not count as held back
        stable, beginnings = reading.ends(led), reading.beginnings(led)
        waiting = _long_waits(reading, of_topic, beginnings, stable)
        ends = {partition: max(high[partition], end) for partition, end in stable.items()}
        found += [
            ReaderProgress(
                row,
                ends.get(row.partition),
                row.topic_id != shape.id,
                stable.get(row.partition),
                beginnings.get(row.partition),
                has_leader=row.partition not in away,
                waits_long=(row.reader, row.partition) in waiting,
            )
            for row in of_topic
        ]
    return sorted(found, key=lambda each: (each.stored.reader, each.stored.topic, each.stored.partition))


def _stored(store: Store) -> list[StoredPosition]:
    """Return the positions of all readers in a database; it raises the errors of `standings`."""
    database = store.connect(LOOKING)
    try:
        return stored(database)
    except Exception as error:
        raise ReaderError(
            f"{store.where}: table {TABLE} cannot be read ({str(error).strip()}). If the table is missing, no reader "
            "has used this database: check its address. Otherwise check the connection and this user's rights"
        ) from error
    finally:
        database.close()


def _refuse_unknown(store: Store, name: str, topic: str) -> None:
    """Refuse a reader without positions, because a misspelt name would move no reader.

    Raises:
        SettingsError: the database has no position of the reader in the topic.
        ReaderError: the table of positions cannot be read.
    """
    known = sorted({(row.reader, row.topic) for row in _stored(store)})
    if (name, topic) not in known:
        pairs = ", ".join(f"{reader} of {read}" for reader, read in known) or "none"
        raise SettingsError(
            f"{store.where}: no reader {name!r} of topic {topic!r} has a position there. Nothing was changed. It has "
            f"the readers: {pairs}. Correct the name, --topic or the address of the database"
        )


def _long_waits(
    reading: TopicReading, rows: Sequence[StoredPosition], beginnings: Mapping[int, int], stable: Mapping[int, int]
) -> set[tuple[str, int]]:
    """Return reader and partition of each position with a first unread record older than `STALLED_AFTER_S`.

    If Kafka does not send that record, or it has no timestamp or one in the future, the time of the reader's last
    commit decides.
    """
    now_ms, limit_ms = int(time.time() * 1000), int(STALLED_AFTER_S * 1000)
    deadline = time.monotonic() + RECORDS_S
    found = set()
    for reader in sorted({row.reader for row in rows}):
        mine = {row.partition: row for row in rows if row.reader == reader}
        starts = {n: row.next for n, row in mine.items() if n in stable and row.next >= beginnings[n]}
        limit_s = max(LEAST_RECORDS_S, deadline - time.monotonic())
        for number, at_ms in reading.first_times(starts, stable, limit_s).items():
            is_unknown = at_ms == NO_TIMESTAMP or at_ms > now_ms + limit_ms
            if (mine[number].committed_ms if is_unknown else at_ms) < now_ms - limit_ms:
                found.add((reader, number))
    return found


def resume(
    store: Store, name: str, topic: str, source: str, options: Options, timeout_s: float, *, execute: bool
) -> dict[int, int]:
    """Move a reader to other offsets, and fence its present process; without `execute`, change nothing.

    Args:
        store: database with the positions.
        name: name of the reader.
        topic: topic to read.
        source: `earliest`, `latest`, or `PARTITION:OFFSET,...` with every partition of the topic.
        options: options of the Kafka client.
        timeout_s: longest wait for Kafka's answer, in seconds.
        execute: True to move the reader; False to return only the plan.

    Returns:
        next offset of each partition.

    Raises:
        SettingsError: the name or `source` is invalid, or the database has no position of such a reader.
        ReaderError: the table of positions cannot be read.
        TopicMissing: the topic does not exist.
        DatabaseUnavailable, BrokerUnavailable: no answer.
    """
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"reader name {name!r} is invalid. Use a letter or digit, then at most 199 letters, digits, '.', '_' or '-'"
        )
    _refuse_unknown(store, name, topic)
    reading = TopicReading(topic, options, timeout_s)
    shape = reading.shape()
    offsets = _offsets(reading, source, shape.partitions)
    if not execute:
        return offsets
    database = store.connect(LOOKING)
    positions = Positions(name, topic, LOOKING, store.placeholder, store.where)
    try:
        positions.create(database)
        database.begin()
        if owners := positions.others(database, range(shape.partitions)):
            database.end_sessions(owners)
        positions.reset(database, offsets, shape.id)
        database.commit()
    except BaseException:
        database.rollback()
        raise
    finally:
        database.close()
    return offsets


def _offsets(reading: TopicReading, source: str, partitions: int) -> dict[int, int]:
    everything = range(partitions)
    beginnings, ends = reading.beginnings(everything), reading.ends(everything)
    if source == "earliest":
        return beginnings
    if source == "latest":
        return ends
    try:
        pairs = [each.split(":") for each in source.split(",")]
        offsets = {int(partition): int(offset) for partition, offset in pairs}
    except ValueError:
        raise SettingsError(f"--from {source} is invalid. Write earliest, latest, or PARTITION:OFFSET,...") from None
    if len(offsets) != len(pairs) or set(offsets) != set(everything):
        raise SettingsError(
            f"--from {source}: a partition is missing or named twice. Name each once; topic {reading.topic!r} has 0 "
            f"to {partitions - 1}"
        )
    for partition, offset in offsets.items():
        if not beginnings[partition] <= offset <= ends[partition]:
            raise SettingsError(
                f"--from {source}: the offset is not in partition {partition}, which holds offsets "
                f"{beginnings[partition]} to {ends[partition]}. Write one of these"
            )
    return offsets
