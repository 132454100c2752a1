"""The names that Ratchet gives in Kafka. Two applications, or two streams, never come to the same one.

`{app}-{stream}-changelog`, as it was called at first, is the same for application `shop`, stream `eu-orders`, and for
application `shop-eu`, stream `orders`. A stream's name has no dot and no name in Kafka has a slash, so these do not run
together. All begin with `{app}-`, which is what rights are given for (docs/guide/rights.md).
"""

from __future__ import annotations

from typing import Final

PRODUCERS_TOPIC: Final = "ratchet-producers"
"""Topic of producers' progress:

`kafka_ratchet.producers.PROGRESS_TOPIC`, which a test compares.

Settings are also read where that package is missing.
"""
OWNERS_TOPIC: Final = "ratchet-owners"
"""Topic of claims, for all applications on one Kafka; see `kafka_ratchet.app.worker.claims`."""
KAFKAS_OWN: Final = "__"
"""Prefix of Kafka's internal topics."""


def policy_topic(app: str) -> str:
    """Return the name of an application's policy topic."""
    return f"{app}-policy"


def proofs_topic(app: str) -> str:
    """Return the name of the topic with the last proof of each stream (`ratchet verify --record`)."""
    return f"{app}-proofs"


def changelog_name(app: str, stream: str) -> str:
    """Return the name of a stream's changelog topic."""
    return f"{app}-changelog.{stream}"


def repartition_topic(app: str, stream: str) -> str:
    """Return the name of the topic that an internal stream of a program reads (`group_by`)."""
    return f"{app}-repartition.{stream}"


def replayed_topic(app: str, stream: str) -> str:
    """Return the name of the topic that records which dead letters of a stream were replayed."""
    return f"{app}-replayed.{stream}"


def replay_id(app: str, stream: str) -> str:
    """Return the transactional id of `ratchet dead-letters replay`."""
    return f"{app}-replay/{stream}"


def replay_group(app: str, stream: str) -> str:
    """Return the consumer group that holds the offsets of the last replay of dead letters, for display."""
    return f"{app}-dead-letters-{stream}"


def is_repartition_topic(topic: str, app: str) -> bool:
    """Return True for an internal topic of the application (`group_by`)."""
    return topic.startswith(repartition_topic(app, ""))


def transactional_id(app: str, input_topic: str, partition: int) -> str:
    """Return the transactional id of the lane of an input partition."""
    return f"{app}-lane/{input_topic}/{partition}"


OF_A_STREAM: Final = (changelog_name, replayed_topic)


def is_ratchets_own(topic: str, app: str, streams: list[str]) -> bool:
    """Return True if Ratchet or Kafka itself writes the topic, so that it cannot be an input or output."""
    own = {PRODUCERS_TOPIC, OWNERS_TOPIC, policy_topic(app), proofs_topic(app)}
    own.update(name(app, stream) for stream in streams for name in OF_A_STREAM)
    return topic in own or topic.startswith(KAFKAS_OWN) or is_repartition_topic(topic, app)
