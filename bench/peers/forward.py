"""Ratchet's worker without deduplication: it forwards every record.

A comparison with the normal worker shows the cost of deduplication.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from numpy.typing import NDArray

from bench.subjects import Task, worker_settings
from kafka_ratchet.agents.deduplicate import Deduplicator
from kafka_ratchet.app.cli import main
from kafka_ratchet.transport.delivery import Delivery


def forward_all(_: Deduplicator, delivery: Delivery) -> NDArray[np.bool_]:
    """Return True for every record of a delivery. It replaces `Deduplicator.judge`."""
    return np.ones(delivery.batch.count, np.bool_)


if __name__ == "__main__":
    setattr(Deduplicator, "judge", forward_all)  # noqa: B010 - it is not meant to be replaced
    task = Task(**json.loads(sys.argv[1]))
    sys.argv[1:] = ["worker", "--config", str(worker_settings(task))]
    main()
