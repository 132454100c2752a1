"""Identities and their sequences: columns and sentences for `ratchet status`, `ratchet tables` and the page."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kafka_ratchet.app.inspect.columns import Column
from kafka_ratchet.app.status.answers import ForgetEffect
from kafka_ratchet.app.status.model import KnownIdentity, Lookup

PARTITION: Final = Column[KnownIdentity]("partition", "Partition", "text", is_row_heading=True)
PERSISTED: Final = Column[KnownIdentity]("persisted", "Last persisted")
PUSHED: Final = Column[KnownIdentity]("pushed", "Last pushed")
WORKER: Final = Column[KnownIdentity]("worker", "Worker", "worker")


def identity_columns(sequence: int | None = None) -> list[Column[KnownIdentity]]:
    """Return the columns for the state of an identity in its partitions.

    sequence: sequence in the request to the workers, for a column with its verdict; None: no such column
    """
    asked = [] if sequence is None else [Column[KnownIdentity]("verdict", f"{sequence} would be", "verdict")]
    return [PARTITION, PERSISTED, PUSHED, *asked, WORKER]


def silent_partitions(numbers: Collection[int]) -> str:
    """Return the sentence about partitions without an answer from a worker. numbers: the partitions, at least one."""
    return f"no worker can answer now for partition{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def lookup_notices(found: Lookup) -> list[str]:
    """Return the sentences about records without a sequence, and about partitions without an answer."""
    said = []
    if found.not_asked:
        said.append(silent_partitions(found.not_asked))
    if found.deduplicate is False:
        said.append(
            f"deduplication is off ({found.origin}): records are forwarded unjudged and leave no sequence here, so "
            "unseen does not mean not forwarded"
        )
    elif found.unjudged:
        said.append(
            f"{found.unjudged:,} records of the stream were forwarded unjudged while deduplication was off; of these "
            "unseen does not mean not forwarded"
        )
    return said


def forgotten_sentence(partition: int, edit: ForgetEffect) -> str:
    """Return the sentence about an operator's request to forget the identity in a partition."""
    what = "all" if edit.above is None else f"sequences above {edit.above}"
    before, after = ("none" if each is None else each for each in (edit.before, edit.after))
    return (
        f"{edit.at}: {edit.by} had {what} forgotten in partition {partition}, from input offset {edit.position:,} on; "
        f"its last sequence was {before}, and then {after}. Reason: {edit.reason}"
    )


def no_partition(found: Lookup) -> str:
    """Return the sentence to show when no partition knows the identity."""
    return f"None of the {len(found.asked)} partitions that answered knows this identity."
