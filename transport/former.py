"""Fencing of a partition's former owners, also of one with another input.

A transactional id contains the name of the input, so initialising it fences only owners with that input. But the input
may change before the first record, and later with `ratchet resume`. A former owner, suspended in between, would still
commit to changelog and output, with the id of its own input. So the lane initialises that id too; the owner entry names
the input.

The former owner may start again after this, while the changelog still names it. So the first commit initialises its id
once more, after the new owner entry was written and before the transaction ends: an owner that starts later waits for
that end, and then finds the entry.

One owner remains: no entry names a worker that was suspended before its very first commit. That commit would write its
owner entry, and the present lane would then start again or halt.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from kafka_ratchet.errors import Aborted, TransactionError
from kafka_ratchet.transport.changelog import Changelog
from kafka_ratchet.transport.names import transactional_id
from kafka_ratchet.transport.owner import INPUT, OUTPUT, Owner
from kafka_ratchet.transport.transactions.producer import TransactionalProducer

log = structlog.get_logger(__name__)


async def restore_fenced(
    changelog: Changelog, producer: TransactionalProducer, app: str, is_former: Callable[[Owner], bool]
) -> int:
    """Replay the changelog, and replay it again after fencing an owner with another input.

    Args:
        changelog: changelog with the state that it is replayed into.
        producer: producer of the partition, already initialised.
        app: name of the application.
        is_former: function that tells if an owner entry is from a former owner with another input.

    Returns:
        Number of entries applied.

    Raises:
        Fenced: another owner has taken over the producer's id, or a former owner's id.
        RatchetError: as `Changelog.restore`.
    """
    restored, fenced = 0, set[str]()
    producer.formers.clear()
    while True:
        failure: TransactionError | None = None
        try:
            restored += await changelog.restore(is_fenced=True)
        except TransactionError as error:
            if isinstance(error, Aborted):
                await producer.still_owns()
                raise
            # A former owner may hold the open transaction. The entries before it name that owner.
            failure, restored = error, restored + await changelog.restore()
        owner = changelog.state.owner
        former = owner.topics[INPUT].name if owner is not None and owner.app == app and INPUT in owner.topics else ""
        if owner is None or not former or former in fenced or not is_former(owner):
            if failure is not None:
                await producer.still_owns()  # otherwise a successor works in that transaction
                raise failure
            return restored
        fenced.add(former)
        await _fence(owner, changelog.partition, producer)


async def _fence(owner: Owner, partition: int, producer: TransactionalProducer) -> None:
    """Initialise the transactional id of a former owner, which ends its open transaction, now and at our commit."""
    name = transactional_id(owner.app, owner.topics[INPUT].name, partition)
    log.info("fencing the former owner of the partition, which had another input", id=name, partition=partition)
    places: list[tuple[str, int]] = []
    if output := owner.topics.get(OUTPUT):
        found = await producer.cluster.found([], besides=[output.name])  # a deleted topic would never answer
        places = [(topic, partition) for topic, there in found.items() if partition < there.partitions]
    former = producer.of(name, places)
    await former.initialise()
    producer.formers.append(former)
