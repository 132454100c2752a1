"""Sends each record, as it is, to the partition of an internal topic that its identity gives (`repartition_by`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.agents.whose import whose
from kafka_ratchet.tables.identities import in_columns
from kafka_ratchet.tables.identity import Identity
from kafka_ratchet.tables.reasons import NONE
from kafka_ratchet.transport.batch.encoding import forward
from kafka_ratchet.transport.batch.partitioner import choose_partitions
from kafka_ratchet.transport.delivery import Delivery


def router(identity: Identity, topic: str) -> Callable[[Delivery, NDArray[np.bool_]], None]:
    """What sends a batch's records to their partitions, for `kafka_ratchet.agents.deduplicate.deduplicate`.

    A record whose identity cannot be read goes to the partition of the number of its own; the stream that reads the
    topic says why it has none.

    Args:
        identity: whose records are judged together
        topic: one of the lane's `sends`

    Raises:
        SettingsError: the user's function cannot be imported.
    """
    read = whose(identity)

    def send(delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
        batch, sent = delivery.batch, delivery.spec.sends[topic]
        reasons = np.full(batch.count, NONE, np.uint8)
        found = in_columns(batch, identity) if read is None else read(batch, reasons)
        is_known = (reasons == NONE) & (found.lengths >= found.least)
        numbers = np.full(batch.count, -1, np.int64)
        spans = found.data, found.begins, np.where(is_known, found.lengths, -1)
        choose_partitions(spans, numbers, sent.partitions, delivery.spec.partition % sent.partitions)
        for number in np.unique(numbers).tolist():
            for encoded in forward(batch, fresh & (numbers == number), sent.limit, delivery.compression):
                delivery.outputs.append((topic, number, encoded))

    return send
