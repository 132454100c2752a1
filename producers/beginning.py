"""Where a name goes on: what it has reached is compared with the topic and the source as they are now."""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from kafka_ratchet.errors import SourceError, TopicReplaced
from kafka_ratchet.producers.headers import NOTHING_YET
from kafka_ratchet.producers.progress import Progress
from kafka_ratchet.producers.source import CheckedSource, Source
from kafka_ratchet.producers.topics import TopicShape

TopicDecision = Literal["resend", "keep"]


@dataclass(frozen=True, slots=True)
class Beginning:
    """A producer that is about to go on with its name."""

    topic: str
    name: str
    session: str
    """Of the progress store."""
    source: Source | None
    decision: TopicDecision | None
    """What to do where the topic was created again; None: nobody has decided."""

    def after(self, stored: Progress | None, shape: TopicShape) -> tuple[Progress, str | None]:
        """The progress to begin with.

        Args:
            stored: what the name has reached; None for a new one
            shape: the topic as it is now

        Returns:
            (progress; a sentence for the user, where the source has one)

        Raises:
            TopicReplaced: the topic was deleted and created again, and nobody has decided.
            SourceError: the source is not the one that was published under this name.
        """
        kept = stored.decision if stored else None
        if stored is not None and stored.topic_id != shape.id and stored.sequence != NOTHING_YET:
            decided, kept = self._decided(stored, shape)
            stored = replace(stored, topic_id=shape.id, partitions=shape.partitions) if decided == "keep" else None
        if stored is None or stored.topic_id != shape.id:
            mark = self.source.mark(NOTHING_YET) if self.source else None
            reached = NOTHING_YET
            return Progress(reached, 0, shape.partitions, shape.id, mark, reached, self.session, kept), None
        said = self._check(self.source, stored) if self.source is not None else None
        return replace(stored, session=self.session, decision=kept), said

    def _decided(self, stored: Progress, shape: TopicShape) -> tuple[TopicDecision, str]:
        """What is to be done about a topic that was created again, and the sentence that is kept of it."""
        both = f"topic {self.topic!r} had the id {stored.topic_id}, and has {shape.id}"
        if self.decision is None:
            raise TopicReplaced(
                f"{both}: it was deleted and created again since producer {self.name!r} published "
                f"{stored.records:,} records up to sequence {stored.sequence}, and these are not in it. To send them "
                "again, publish with --topic-replaced resend (Producer: topic_replaced='resend'); to go on after them, "
                "with --topic-replaced keep. What is chosen is kept with the producer's progress"
            )
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return self.decision, f"{self.decision} by {_user()} at {when}: {both}; sequence {stored.sequence} was reached"

    def _check(self, source: Source, stored: Progress) -> str | None:
        if stored.source is None:
            if stored.sequence != NOTHING_YET:
                raise SourceError(
                    f"producer {self.name!r} has published to {self.topic!r} up to sequence {stored.sequence} without "
                    "a source that tells what that was: a program has numbered its records itself. Nobody can say "
                    "whether it was this source. Publish it under another producer name"
                )
            return None
        if isinstance(source, CheckedSource):
            return source.check(stored.sequence, stored.source)
        if source.mark(stored.sequence) != stored.source:
            raise SourceError(
                f"the source has changed since producer {self.name!r} published it to {self.topic!r} up to sequence "
                f"{stored.sequence}: what stands before that position is not the same. Publish it under another "
                "producer name"
            )
        return None


def _user() -> str:
    """Who runs this, for the record of a decision."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a user without a name, as in a container
        return f"a user without a name@{socket.gethostname()}"
