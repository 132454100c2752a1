"""The switch: whether a lane's records are judged, or forwarded as they come."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kafka_ratchet.transport.client.retry import Attempts


class Policy(NamedTuple):
    """Policy of a batch, taken once for each, so that a change never splits one.

    It is taken once for each, so a change never falls into the middle of one.

    deduplicate: judge the records; False: forward all of them unjudged position: next offset of the policy topic at
    this policy; 0 where that topic has no policy
    """

    deduplicate: bool = True
    position: int = 0


class Forget(NamedTuple):
    """Operator's request to forget an identity.

    id: unique.
    above: the sequences above it are forgotten, None: all of them.
    at: ISO 8601, UTC.
    by: user and machine.
    reason: as given.
    partition: None: in all of the stream.
    input: id of the input topic at the request.
    ends: ends of its partitions then, by number.
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
        """Return the first input offset that the request applies to.

        Records that waited below it came before the request.

        topic: id of the input.

        It is 0 for a deleted topic, and for a partition added later.
        """
        return self.ends[partition] if topic == self.input and partition < len(self.ends) else 0


class Requests(NamedTuple):
    """Operators' requests to a stream's partitions.

    forgets: in their order position: it rises with each new request; 0 before the first
    """

    forgets: tuple[Forget, ...] = ()
    position: int = 0


class Switch(Protocol):
    """Supplier of a lane's deduplication policy, and of operators' requests."""

    @property
    def policy(self) -> Policy:
        """Return the present policy.

        Raises:
            Aborted: the policy has become unknown since `known_to`; the lane starts again.
        """

    @property
    def requests(self) -> Requests:
        """Return the present requests.

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
        """Return at once: there is no policy topic."""


class AlwaysOff(AlwaysOn):
    """Switch for lanes with an input that Ratchet has written itself, in transactions."""

    policy = Policy(deduplicate=False)
