"""Watches the inputs' partition counts while the worker runs.

A producer that learns of more partitions sends a key elsewhere. Last sequences are kept by partition, so a record that
is sent again after that would be new where it arrives. Nothing in the record tells; the count does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from errors import PartitionsDiffer
from transport import Cluster

ASK_EVERY_S: Final = 1.0
"""Producers learn of new partitions within minutes (metadata.max.age.ms), those that just start at once. One small
request a second for all topics together costs nothing that can be measured."""


async def watch(cluster: Cluster, inputs: Mapping[str, int]) -> None:
    """Return never; raise when an input has other partitions than it had.

    Args:
        cluster: connected.
        inputs: partitions of each input topic as the worker found them.

    Raises:
        PartitionsDiffer: one was given more.
    """
    while True:
        counts = await cluster.partition_counts(inputs)
        for topic, before in inputs.items():
            if counts[topic] > before:
                raise PartitionsDiffer(
                    f"{topic}: had {before} partitions when this worker started, and has {counts[topic]} now. Keys "
                    "have moved between partitions, so records that are sent again could no longer be recognised; the "
                    "worker stops. The way to more partitions is in docs/guide/partitions.md"
                )
        await asyncio.sleep(ASK_EVERY_S)
