"""A lane's configuration, and the status that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kafka_ratchet.transport.batch.chunk import BATCH_MOST
from kafka_ratchet.transport.sent_topics import SentTopics


class LaneState(StrEnum):
    """What a lane is doing, as the page and the commands show it."""

    STARTING = "starting"
    RESTORING = "restoring"
    RUNNING = "running"
    RETRYING = "retrying"
    HALTED = "halted"
    STOPPED = "stopped"


def letters_in(app: str, topic: str, topic_id: str) -> bytes:
    """What the names of an application's dead letters begin with; partition and offset follow. topic_id: as text."""
    return f"{app}/{topic}/{topic_id}/".encode()


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A lane's configuration: topics, names, sizes."""

    topic: str
    partition: int
    output: str
    dead_letters: str
    group: str
    transactional_id: str
    sequence_header: bytes = b""
    identity_header: bytes = b""
    """The one header whose value is the identity, such as the producer's name; b"" where it is something else."""
    compression: str = "input"
    commit_interval_ms: int = 100
    records_per_transaction: int = 500_000
    transaction_timeout_ms: int = 60_000
    output_limit: int = 1_048_588
    """bytes, max.message.bytes of the output topic; Kafka's default"""
    dead_letters_limit: int = 1_048_588
    judging: Mapping[str, str] = field(default_factory=dict)
    """Beside the rule, settings by which records are judged and that are not the default; see `JudgingFrom`."""
    duplicates: str = ""
    """Topic that dropped records go to; "" where they are counted only."""
    duplicates_limit: int = 1_048_588
    duplicates_values: bool = True
    """Whether their values go there as well."""
    batch_most: int = BATCH_MOST
    """bytes that one batch may unpack to"""
    app: str = ""
    stream: str = ""
    rule: Mapping[str, str] = field(default_factory=dict)
    """How records are judged, as `Owner.rule` has it."""
    policy_topic: str = ""
    claimed: Mapping[str, str] = field(default_factory=dict)
    """Ids, as text, that topics had when this stream claimed them, by topic: for a changelog that says nothing
    itself."""
    earlier_id: str = ""
    """The transactional id that an earlier version of Ratchet had for this partition: it is fenced as well."""
    begins_at_0: bool = False
    """Whether the input is written for this stream alone, so that nothing of it may be gone before it is read."""
    sends: SentTopics = field(default_factory=dict)
    """Topics to which agents send."""
    letters: bytes = b""
    """What the names of the stream's own dead letters begin with; b"" until the lane has asked for the topic's id."""

    @property
    def writes(self) -> tuple[str, ...]:
        """Topics that records of the stream go to: output, dead letters, and dropped ones where they are kept."""
        return (self.output, self.dead_letters, *([self.duplicates] if self.duplicates else []))

    def correlation(self, offset: int) -> dict[str, object]:
        """What log lines of the lane belong to. offset: of the record at hand, or the next one."""
        return {
            "stream": self.stream,
            "topic": self.topic,
            "partition": self.partition,
            "offset": offset,
            "transaction": self.transactional_id,
        }


@dataclass(slots=True)
class LaneStatus:
    """What a lane is doing, how far it has come, and what went wrong last. For showing only.

    position: input offset of the last commit, to be read next
    end: last stable offset of the input, when it was fetched last
    commits, records: since the lane was started
    restored: changelog entries replayed
    error: why it has started again or halted; None while it runs
    halted: class of the error that it has halted for, until it goes on; "" where it has not. While a lane tries again,
        `state` says how far that try has come
    fetched_at: when Kafka has last answered a fetch of the input, in seconds since 1970
    unread_since_ms: timestamp of the first record that is not committed (`Unread.since_ms`)
    """

    state: LaneState = LaneState.STARTING
    position: int | None = None
    end: int | None = None
    commits: int = 0
    records: int = 0
    restored: int = 0
    restarts: int = 0
    """How often it has started again after an error. It only rises, so that whoever waits for the next try sees it."""
    error: str | None = None
    halted: str = ""
    fetched_at: float | None = None
    unread_since_ms: int | None = None

    def lag_s(self, now_s: float) -> float | None:
        """Seconds since the first record was written that is not committed yet, by that record's timestamp.

        0 where all is; None: not known. now_s: seconds since the epoch
        """
        if self.position is not None and self.end is not None and self.position >= self.end:
            return 0.0
        return None if self.unread_since_ms is None else max(0.0, now_s - self.unread_since_ms / 1000)
