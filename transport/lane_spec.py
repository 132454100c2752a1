"""A lane's configuration, and the status that it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kafka_ratchet.transport.batch.chunk import ALL_RECORDS, BATCH_MOST
from kafka_ratchet.transport.sent_topics import SentTopics


class LaneState(StrEnum):
    """State of a lane, as the page and the commands show it; docs/design.md has the picture."""

    STARTING = "starting"
    """Waits for its turn, and takes the transactional id over, which fences the previous owner."""
    RESTORING = "restoring"
    """Replays the changelog, and compares its owner and positions with the topics."""
    RUNNING = "running"
    """Fetches, judges, produces and commits."""
    RETRYING = "retrying"
    """Pauses after a rollback or after fencing."""
    HALTED = "halted"
    """Pauses after an error that an operator must resolve, or after a programming error."""
    STOPPED = "stopped"
    """Ended. Another lane object serves the partition if it comes back."""


LEGAL: Final = {
    LaneState.STARTING: {
        LaneState.STARTING,  # the first try: a lane is starting as soon as it is made
        LaneState.RESTORING,
        LaneState.RETRYING,
        LaneState.HALTED,
        LaneState.STOPPED,
    },
    LaneState.RESTORING: {LaneState.RUNNING, LaneState.RETRYING, LaneState.HALTED, LaneState.STOPPED},
    LaneState.RUNNING: {LaneState.RETRYING, LaneState.HALTED, LaneState.STOPPED},
    LaneState.RETRYING: {LaneState.STARTING, LaneState.HALTED, LaneState.STOPPED},
    LaneState.HALTED: {LaneState.STARTING, LaneState.HALTED, LaneState.STOPPED},
    LaneState.STOPPED: set[LaneState](),
}
"""Legal successors of each state. HALTED may follow every state except STOPPED, so that every programming error becomes
visible.
"""


def letters_in(app: str, topic: str, topic_id: str) -> bytes:
    """Return the prefix of an application's dead letter names; partition and offset follow. topic_id: as text."""
    return f"{app}/{topic}/{topic_id}/".encode()


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """Configuration of a lane: topics, names, sizes."""

    topic: str
    partition: int
    output: str
    dead_letters: str
    group: str
    transactional_id: str
    sequence_header: bytes = b""
    identity_header: bytes = b""
    """Header that holds the identity, such as the producer's name; b"" if the identity comes from key or value."""
    compression: str = "input"
    commit_interval_ms: int = 100
    records_per_transaction: int = 500_000
    transaction_timeout_ms: int = 60_000
    output_limit: int = 1_048_588
    """max.message.bytes of the output topic, in bytes; Kafka's default until the lane knows it."""
    dead_letters_limit: int = 1_048_588
    judging: Mapping[str, str] = field(default_factory=dict)
    """Deduplication settings outside the rule that differ from their defaults; see `JudgingFrom`."""
    duplicates: str = ""
    """Topic that dropped records go to; "" if they are only counted."""
    duplicates_limit: int = 1_048_588
    duplicates_values: bool = True
    """True if the `duplicates` topic gets the values of dropped records too, not only their headers."""
    batch_most: int = BATCH_MOST
    """Maximum bytes that one batch may unpack to."""
    records_at_first: int = ALL_RECORDS
    """Number of records of a lane's first batch; see `BatchLimit`."""
    app: str = ""
    stream: str = ""
    rule: Mapping[str, str] = field(default_factory=dict)
    """Settings of the rule, as in `Owner.rule`."""
    policy_topic: str = ""
    claimed: Mapping[str, str] = field(default_factory=dict)
    """Topic ids, as text by topic name, from the time when this stream claimed the topics. A lane checks them if the
    changelog has no owner entry."""
    begins_at_0: bool = False
    """True if Ratchet writes the input for this stream alone. Then a deleted unread record is an error."""
    sends: SentTopics = field(default_factory=dict)
    """Topics that agents send to."""
    event_header: str = ""
    """Header of input records that holds the event id; "" if topic, partition and offset are the id."""
    input_id: str = ""
    """Id of the input topic, as Kafka's tools print it; "" until the lane has asked for it."""
    letters: bytes = b""
    """Prefix of the stream's own dead letter names; b"" until the lane knows the topic's id."""

    @property
    def writes(self) -> tuple[str, ...]:
        """Return the topics that the stream writes records to: output, dead letters, and duplicates if kept."""
        return (self.output, self.dead_letters, *([self.duplicates] if self.duplicates else []))

    def correlation(self, offset: int) -> dict[str, object]:
        """Return the fields for the lane's log lines. offset: of the current record, or the next one."""
        return {
            "stream": self.stream,
            "topic": self.topic,
            "partition": self.partition,
            "offset": offset,
            "transaction": self.transactional_id,
        }


@dataclass(slots=True)
class LaneStatus:
    """State of a lane: activity, progress and last error. For display only.

    position: input offset of the last commit, to be read next.
    end: high watermark of the input from the last answer to the lane or its idle watcher.
    stable_end: last stable offset of the input at the last fetch; an open transaction holds back the offsets from
        `stable_end` to `end`.
    commits, records: counted since the lane was started.
    restored: changelog entries replayed.
    error: reason of the last restart or halt; None while the lane runs.
    halted: class of the error that halted the lane, until the next progress; "" without a halt. `state` shows the
        state of a new attempt.
    fetched_at: time of Kafka's last answer about the input to the lane or its idle watcher, in seconds since 1970.
    unread_since_ms: timestamp of the first uncommitted record (`PendingTimestamps.since_ms`).

    For stall detection (`kafka_ratchet.transport.stalls`), in seconds since 1970:
    behind_since: time since which the input has had records after `position` and nothing was committed.
    blocked_since: time since which an open transaction holds back the offsets from `stable_end` on.
    blocked_by: phrase that names this transaction, for the end of the stall's message.
    failing_since: time of the first failure after the last progress.
    failed_by: class of the last failure.
    failure: text of the last failure; cleared by the next progress.
    started_at: start of the present attempt.
    running_since: time when this attempt reached RUNNING.
    held_by: function that names the agent now processing the batch, and the time when the agent got it.
    """

    state: LaneState = LaneState.STARTING
    position: int | None = None
    end: int | None = None
    commits: int = 0
    records: int = 0
    restored: int = 0
    restarts: int = 0
    """Number of failures, of restarts and halts alike. It only rises, so that an observer sees each failure."""
    error: str | None = None
    halted: str = ""
    fetched_at: float | None = None
    unread_since_ms: int | None = None
    stable_end: int | None = None
    behind_since: float | None = None
    blocked_since: float | None = None
    blocked_by: str = ""
    failing_since: float | None = None
    failed_by: type[BaseException] | None = None
    failure: str = ""
    started_at: float = field(default_factory=time.time)
    running_since: float = 0.0
    held_by: tuple[Callable[[], str], float] | None = None

    def move(self, to: LaneState) -> None:
        """Change the state; no other code changes it.

        Raises:
            ValueError: `LEGAL` has no such transition, which would be an error in Ratchet.
        """
        if to not in LEGAL[self.state]:
            raise ValueError(f"a lane in state {self.state} cannot become {to}")
        self.state = to

    def saw_ends(self, stable_end: int, end: int, now_s: float) -> None:
        """Store the ends of the input from Kafka's last answer."""
        if end <= stable_end:
            self.blocked_since, self.blocked_by = None, ""
        elif self.blocked_since is None or stable_end != self.stable_end:
            self.blocked_since, self.blocked_by = now_s, ""
        self.stable_end, self.end = stable_end, end
        if self.position is None or self.position >= end:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = now_s

    def progressed(self, position: int, now_s: float) -> None:
        """Store the position after a commit or an empty fetch, and clear earlier failures.

        After an empty fetch, call it only if no transaction is open.
        """
        self.position, self.halted = position, ""
        self.failing_since, self.failed_by, self.failure = None, None, ""
        self.behind_since = now_s if self.end is not None and position < self.end else None

    @property
    def blocked(self) -> int:
        """Return the number of offsets held back by an open transaction."""
        return 0 if self.end is None or self.stable_end is None else max(0, self.end - self.stable_end)

    def lag_s(self, now_s: float) -> float | None:
        """Return the seconds since the first uncommitted record was written, by its timestamp.

        If an open transaction holds the record back, its timestamp is unknown, and the time counts since this worker
        noticed the wait. The result is 0 if all records are committed, and None if the time is unknown.

        now_s: present time in seconds since the epoch
        """
        if self.position is not None and self.end is not None and self.position >= self.end:
            return 0.0
        if self.blocked_since is not None and self.position is not None and self.position >= (self.stable_end or 0):
            return max(0.0, now_s - self.blocked_since)
        return None if self.unread_since_ms is None else max(0.0, now_s - self.unread_since_ms / 1000)
