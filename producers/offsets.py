"""Partition offsets, requested until Kafka has given each of them.

librdkafka answers -1001 (OFFSET_INVALID), and no error, for a partition without a leader. No partition has a
negative offset, so such an answer is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError

ASK_AGAIN_S: Final = 0.2
"""Pause between two questions about the same partition, in seconds; an election takes about as long."""

Answer: TypeAlias = "int | KafkaError"
Ask = Callable[[list[int]], Mapping[int, Answer]]


def ask_offsets(
    ask: Ask, partitions: Collection[int], patience_s: Callable[[KafkaError | None], float]
) -> tuple[dict[int, int], dict[int, KafkaError | None]]:
    """Ask for one offset of each partition, and ask again where the answer is none.

    Args:
        ask: one question to Kafka about some partitions; a partition may be missing in the answer.
        partitions: numbers.
        patience_s: seconds after which an error ends the questions; of None, which stands for an answer without error
            and without offset, as well.

    Returns:
        the offsets, and for each partition without one the last error, None where Kafka named none.
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
    """Return why a partition has no offset, for a message."""
    return "no leader has answered" if error is None else explain(error)
