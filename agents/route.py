"""Sends each record, as it is, to the partition of an internal topic that its identity gives (`repartition_by`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.agents.sends import contents, spans_at
from kafka_ratchet.agents.whose import reads
from kafka_ratchet.tables.identity import Identity
from kafka_ratchet.tables.reasons import NONE, REASONS
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.partitioner import choose_partitions
from kafka_ratchet.transport.batch.rows import encode_rows
from kafka_ratchet.transport.delivery import Delivery


def router(identity: Identity, topic: str) -> Callable[[Delivery, NDArray[np.bool_]], None]:
    """What sends a batch's records to their partitions, for `kafka_ratchet.agents.deduplicate.deduplicate`.

    A record whose identity cannot be read becomes a dead letter here, and goes no further: in whatever partition it
    were judged, its identity might be read there all the same, by a function that fails now and then.

    Args:
        identity: whose records are judged together
        topic: one of the lane's `sends`

    Raises:
        SettingsError: the user's function cannot be imported.
    """
    read = reads(identity)

    def send(delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
        batch, sent = delivery.batch, delivery.spec.sends[topic]
        reasons = np.full(batch.count, NONE, np.uint8)
        found = read(batch, reasons)
        for index in np.flatnonzero(reasons != NONE).tolist():
            delivery.dead_letter(index, REASONS[reasons[index]])
        rows = np.flatnonzero(fresh & (reasons == NONE))
        numbers = np.full(len(rows), -1, np.int64)
        choose_partitions(spans_at((found.data, found.begins, found.lengths), rows), numbers, sent.partitions, 0)
        keys = batch.data, batch.columns[records.KEY], batch.columns[records.KEY_LENGTH]
        what = f"{topic}: sent between offsets {batch.start} and {batch.next - 1} of {batch.topic}-{batch.partition}"
        order = np.argsort(numbers, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(rows) else ():
            at = rows[mine]
            values, headers = contents(batch, at)
            times = batch.timestamps[at]
            for one in encode_rows(spans_at(keys, at), values, times, sent.limit, what, delivery.compression, headers):
                delivery.outputs.append((topic, int(numbers[mine[0]]), one))

    return send
