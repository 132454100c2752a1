"""Names of Ratchet's topics, groups and transactional ids in Kafka, different for any two applications or streams.

A name such as `{app}-{stream}-changelog` would be the same for application `shop`, stream `eu-orders`, and for
application `shop-eu`, stream `orders`. So a dot or a slash separates the parts: a stream's name has no dot, and a topic
name has no slash. All names but those shared by applications begin with `{app}-`, the prefix that rights are given for
(docs/guide/rights.md).
"""

from __future__ import annotations

from typing import Final

PRODUCERS_TOPIC: Final = "ratchet-producers"
"""Topic of producers' progress, shared by all applications on one Kafka cluster.

It equals `kafka_ratchet.producers.PROGRESS_TOPIC`, as a test checks. It is not imported from there, because settings
are also read where that package is missing.
"""
OWNERS_TOPIC: Final = "ratchet-owners"
"""Topic of claims on outputs, shared by all applications on one Kafka cluster (`kafka_ratchet.app.worker.claims`)."""
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
    """Return the name of the topic that an internal stream reads (`group_by` of a program, or `repartition_by`)."""
    return f"{app}-repartition.{stream}"


def replayed_topic(app: str, stream: str) -> str:
    """Return the name of the topic that records which dead letters of a stream were replayed."""
    return f"{app}-replayed.{stream}"


def replay_id(app: str, stream: str) -> str:
    """Return the transactional id that `ratchet dead-letters replay` uses for a stream."""
    return f"{app}-replay/{stream}"


def replay_group(app: str, stream: str) -> str:
    """Return the name of the consumer group with the offsets of the last replay of a stream's dead letters."""
    return f"{app}-dead-letters-{stream}"


def is_repartition_topic(topic: str, app: str) -> bool:
    """Return True if the topic is one of the application's topics for internal streams."""
    return topic.startswith(repartition_topic(app, ""))


OF_A_STREAM: Final = (changelog_name, replayed_topic)


def is_ratchets_own(topic: str, app: str, streams: list[str]) -> bool:
    """Return True if Ratchet or Kafka itself writes the topic; such a topic cannot be an input or output."""
    own = {PRODUCERS_TOPIC, OWNERS_TOPIC, policy_topic(app), proofs_topic(app)}
    own.update(name(app, stream) for stream in streams for name in OF_A_STREAM)
    return topic in own or topic.startswith(KAFKAS_OWN) or is_repartition_topic(topic, app)
