"""Offsets of partitions, requested until Kafka has returned each of them.

For a partition without a leader, librdkafka returns -1001 (OFFSET_INVALID) and no error. No partition has a negative
offset, so this does not count as an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError

ASK_AGAIN_S: Final = 0.2
"""Seconds between two requests for the same partition; an election takes about as long."""

Answer: TypeAlias = "int | KafkaError"
Ask = Callable[[list[int]], Mapping[int, Answer]]


def ask_offsets(
    ask: Ask, partitions: Collection[int], patience_s: Callable[[KafkaError | None], float]
) -> tuple[dict[int, int], dict[int, KafkaError | None]]:
    """Request one offset of each partition, and repeat the request for partitions without an answer.

    Args:
        ask: function that requests the offsets of some partitions; its answer may lack a partition.
        partitions: numbers of the partitions.
        patience_s: function that returns the seconds for which requests go on despite an error; its argument is that
            error, or None for an answer with neither error nor offset.

    Returns:
        The offsets; and for each partition without an offset the last error, or None if Kafka named none.
    """
    found, began = dict[int, int](), time.monotonic()
    failures: dict[int, KafkaError | None] = dict.fromkeys(sorted(partitions))
    while failures:
        answers = ask(list(failures))
        still: dict[int, KafkaError | None] = {}
        for partition in failures:
            answer: Any = answers.get(partition)
            if isinstance(answer, int) and answer >= 0:
                found[partition] = answer
            else:
                still[partition] = None if isinstance(answer, int) else answer
        failures, seconds = still, time.monotonic() - began
        if any(seconds >= patience_s(error) for error in failures.values()):
            break
        if failures:
            time.sleep(ASK_AGAIN_S)
    return found, failures


def no_offset(error: KafkaError | None, explain: Callable[[KafkaError], str]) -> str:
    """Return the reason why a partition has no offset, for a message."""
    return "no leader has answered" if error is None else explain(error)
