"""Coordinators of memory_kafka's transactions, and the acts of a replaced one.

Modelled after Kafka's TransactionCoordinator, TransactionStateManager, TransactionMarkerChannelManager and
ProducerAppendInfo (branch trunk of 2024-10, between 3.9 and 4.0):

- A coordinator is the leader of a partition of `__transaction_state`, and its epoch is that leader's. Whatever it
  changes it writes there first. One that was replaced cannot write: it refuses with NOT_COORDINATOR, or, as long as it
  does not know, gives no answer. So a late request has no effect there, unless that node coordinates again.
- What was written when it was replaced is carried out by the next one, which reads the log, although the sender hears
  NOT_COORDINATOR.
- An answer that needs no write comes from memory. One that was replaced and does not know gives it as of before: what
  state an id is in, that an epoch is too old, and that a transaction of this epoch has ended. A node that does not know
  either still names it to whoever looks for the coordinator.
- Markers carry the coordinator epoch. A partition refuses those of an older one than its last marker of that producer.
  So markers that a replaced coordinator had on their way count only where the next one has not written any.

Left out: a marker that the *same* coordinator has sent twice, the first of which is late. Kafka takes it for the end of
the next transaction of that epoch (before it raises epochs with each end), and no client can do anything about that.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, NamedTuple

NOT_COORDINATOR: Final = 16
COORDINATED: Final = (
    "AddPartitionsToTxnRequest",
    "AddOffsetsToTxnRequest",
    "DescribeTransactionsRequest",
    "EndTxnRequest",
    "RaisingEndRequest",
    "GiveUpRequest",
    "InitProducerIdRequest",
)


class Marker(NamedTuple):
    """The end of a transaction in one partition. place: None for the group's offsets; by: the coordinator's epoch."""

    place: tuple[str, int] | None
    producer: int
    kind: int
    epoch: int
    by: int


def is_coordinated(request: Any) -> bool:
    """Return True if it has to go to the coordinator of its transactional id."""
    return type(request).__name__ in COORDINATED


def refused(request: Any) -> Any:
    """The answer of a node that does not coordinate (any more)."""
    code = NOT_COORDINATOR
    if type(request).__name__ == "AddPartitionsToTxnRequest":
        return SimpleNamespace(
            errors=[(topic, [(each, code) for each in numbers]) for topic, numbers in request._topics]
        )
    if type(request).__name__ == "DescribeTransactionsRequest":
        return SimpleNamespace(transactions=[(code, request._transactional_id, "", 0, 0, -1, -1, [])])
    return SimpleNamespace(error_code=code, producer_id=-1, producer_epoch=-1)
