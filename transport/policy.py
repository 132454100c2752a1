"""Sources of a stream's deduplication policy: lanes judge records, or forward them unchanged."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kafka_ratchet.transport.client.retry import Attempts


class Policy(NamedTuple):
    """Deduplication policy of a batch, taken once per batch so that a change never splits a batch.

    deduplicate: True to judge the records; False to forward all of them.
    position: next offset to read in the policy topic when this policy was taken; 0 if the topic has no policy.
    """

    deduplicate: bool = True
    position: int = 0


class ForgetRequest(NamedTuple):
    """Operator's request to forget an identity.

    id: unique id of the request.
    above: number above which sequences are forgotten; None: all sequences.
    at: time of the request, ISO 8601, UTC.
    by: user and machine.
    reason: the operator's reason.
    partition: partition to forget in; None: all partitions of the stream.
    input: id of the input topic at that time.
    ends: end offset of each input partition at that time.
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

        Records below that offset came before the request. The result is 0 if the input topic was replaced, or if the
        partition was added later.

        topic: id of the present input topic.
        """
        return self.ends[partition] if topic == self.input and partition < len(self.ends) else 0


class Requests(NamedTuple):
    """Operators' requests to a stream's partitions.

    forgets: requests to forget, in their order.
    position: number that rises with each new request; 0 before the first request.
    """

    forgets: tuple[ForgetRequest, ...] = ()
    position: int = 0


class PolicySource(Protocol):
    """Supplier of a lane's deduplication policy and of operators' requests."""

    @property
    def policy(self) -> Policy:
        """Return the present policy.

        Raises:
            Aborted: the policy is unknown again, after a loss of the policy topic; the lane starts again.
        """

    @property
    def requests(self) -> Requests:
        """Return the operators' requests known so far.

        Raises:
            Aborted: as in `policy`.
        """

    @property
    def attempts(self) -> Attempts:
        """Return the requests about the policy topic now being repeated, for stall detection."""

    async def known_to(self, position: int) -> None:
        """Wait until the policy topic has been read to its end once, and at least to `position`.

        Raises:
            PolicyLost: the topic ends before `position`.
        """


class AlwaysOn:
    """Policy source for a lane without a policy topic: deduplication is always on."""

    policy = Policy()
    requests = Requests()
    attempts = Attempts()

    async def known_to(self, position: int) -> None:
        """Return at once: there is no policy topic."""


class AlwaysOff(AlwaysOn):
    """Policy source for a lane with an input that Ratchet writes in transactions: deduplication is always off."""

    policy = Policy(deduplicate=False)
