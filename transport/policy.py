"""The switch: whether a lane's records are judged, or forwarded as they come."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kafka_ratchet.transport.client.retry import Attempts


class Policy(NamedTuple):
    """What holds for a batch. It is taken once for each, so a change never falls into the middle of one.

    deduplicate: judge the records; False: forward all of them unjudged
    position: the next offset of the policy topic as of which this holds; 0 where that topic has nothing to say
    """

    deduplicate: bool = True
    position: int = 0


class Forget(NamedTuple):
    """A person's request to forget what is known of an identity.

    id: unique; above: the sequences above it are forgotten, None: all of them;
    at: ISO 8601, UTC; by: user and machine; reason: as given; partition: None: in all of the stream;
    input: id of the input topic when it was asked for; ends: where each of its partitions ended then, by number
    """

    id: str
    identity: bytes
    above: int | None
    at: str
    by: str
    reason: str
    partition: int | None = None
    input: str = ""
    ends: tuple[int, ...] = ()

    def holds_from(self, partition: int, topic: str) -> int:
        """Input offset before which it is not applied: what waited there came before it. topic: id of the input.

        Of a topic that is gone, and of a partition that was added later, it is 0.
        """
        return self.ends[partition] if topic == self.input and partition < len(self.ends) else 0


class Requests(NamedTuple):
    """What people ask of a stream's partitions.

    forgets: in their order
    position: it rises with each request that comes; 0 where there never was one
    """

    forgets: tuple[Forget, ...] = ()
    position: int = 0


class Switch(Protocol):
    """Supplies a lane's deduplication policy, and what people ask of it."""

    @property
    def policy(self) -> Policy:
        """As of now.

        Raises:
            Aborted: it is not known since `known_to` was waited for; the lane starts again.
        """

    @property
    def requests(self) -> Requests:
        """As of now.

        Raises:
            Aborted: as `policy`.
        """

    @property
    def attempts(self) -> Attempts:
        """Requests for the policy topic under way."""

    async def known_to(self, position: int) -> None:
        """Wait until the policy topic was read to its end once, and to this position at least.

        Raises:
            PolicyLost: it will never get there: the topic ends before.
        """


class AlwaysOn:
    """A switch for lanes without a policy topic."""

    policy = Policy()
    requests = Requests()
    attempts = Attempts()

    async def known_to(self, position: int) -> None:
        """Nothing to wait for."""


class AlwaysOff(AlwaysOn):
    """For lanes whose input Ratchet has written itself, in transactions."""

    policy = Policy(deduplicate=False)
