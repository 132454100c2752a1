"""Start of a named producer: comparison of its stored progress with the present topic and source."""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from kafka_ratchet.errors import SourceError, TopicReplaced
from kafka_ratchet.producers.headers import NOTHING_YET
from kafka_ratchet.producers.progress import Progress
from kafka_ratchet.producers.source import CheckedSource, NumberedFiles, Source
from kafka_ratchet.producers.topics import TopicShape

TopicDecision = Literal["resend", "keep"]


@dataclass(frozen=True, slots=True)
class ProgressCheck:
    """Check of a producer's stored progress against the present topic and source."""

    topic: str
    name: str
    session: str
    """Unique text of the producer's run, see `ProgressStore.session`."""
    source: Source | None
    decision: TopicDecision | None
    """User's decision for a topic that was created again; None: the user has not decided."""

    def after(self, stored: Progress | None, shape: TopicShape) -> tuple[Progress, str | None]:
        """Return the progress that the producer starts with.

        Args:
            stored: stored progress of the name; None: the name is new.
            shape: id and number of partitions of the present topic.

        Returns:
            The progress; and the source's notice for the user, see `CheckedSource.check`, or None.

        Raises:
            TopicReplaced: the topic was deleted and created again, and `decision` is None.
            SourceError: another source was published under this name, or files to send again are missing.
        """
        kept = stored.decision if stored else None
        if stored is not None and stored.topic_id != shape.id and stored.sequence != NOTHING_YET:
            decided, kept = self._decided(stored, shape)
            if decided == "resend" and stored.source is not None and isinstance(self.source, NumberedFiles):
                self.source.require_all_files(stored.sequence, stored.source)
            stored = replace(stored, topic_id=shape.id, partitions=shape.partitions) if decided == "keep" else None
        if stored is None or stored.topic_id != shape.id:
            mark = self.source.mark(NOTHING_YET) if self.source else None
            reached = NOTHING_YET
            return Progress(reached, 0, shape.partitions, shape.id, mark, reached, self.session, kept), None
        notice = self._check(self.source, stored) if self.source is not None else None
        return replace(stored, session=self.session, decision=kept), notice

    def _decided(self, stored: Progress, shape: TopicShape) -> tuple[TopicDecision, str]:
        """Return the user's decision for a topic that was created again, and the sentence to store with it."""
        both = f"topic {self.topic!r} had the id {stored.topic_id}, and has {shape.id}"
        if self.decision is None:
            raise TopicReplaced(
                f"{both}: it was deleted and created again since producer {self.name!r} published "
                f"{stored.records:,} records up to sequence {stored.sequence}, and these are not in it. To send them "
                "again, publish with --topic-replaced resend (Producer: topic_replaced='resend'); to go on after them, "
                "with --topic-replaced keep. The choice is kept with the producer's progress"
            )
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return self.decision, f"{self.decision} by {_user()} at {when}: {both}; sequence {stored.sequence} was reached"

    def _check(self, source: Source, stored: Progress) -> str | None:
        if stored.source is None:
            if stored.sequence != NOTHING_YET:
                raise SourceError(
                    f"producer {self.name!r} has published to {self.topic!r} up to sequence {stored.sequence} from a "
                    "program that chose the sequences itself. The source that you want to publish now may contain the "
                    "same records, and Ratchet cannot check this. Publish the source under another producer name"
                )
            return None
        if isinstance(source, CheckedSource):
            return source.check(stored.sequence, stored.source)
        if source.mark(stored.sequence) != stored.source:
            raise SourceError(
                f"the source has changed since producer {self.name!r} published it to {self.topic!r} up to sequence "
                f"{stored.sequence}: the content before that position is not the same. Publish it under another "
                "producer name"
            )
        return None


def _user() -> str:
    """Return user and host as text, to be stored with a decision."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a user without a name, as in a container
        return f"a user without a name@{socket.gethostname()}"
