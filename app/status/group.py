"""The consumer group of the workers: who is alive, at which status address, and how far the group has committed.

Faust's assignor puts each worker's `canonical_url` into the member metadata of the group (JSON, field `url`). Whoever
may join the group may write anything there, so only bare http://host:port addresses are accepted.

confluent-kafka has a call for the committed offsets too, but in 2.16 it ends the process (SIGSEGV in librdkafka) on a
broker where no group has ever been; so they come over the connection that the members are read by.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import structlog
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaError,
    NotCoordinatorForGroupError,
    for_code,
)

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.http import url_of
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.transport.assignor import RULES
from kafka_ratchet.transport.client.connection import mend_connections, refused_by
from kafka_ratchet.transport.client.security import client_options

log = structlog.get_logger(__name__)

TIMEOUT_S = 5.0
"""A page or a command that waits longer than this for Kafka should say so instead."""

RETRY_S = 0.1
"""Pause before a broker is asked again that was not ready to speak for the group."""

MAX_URL_CHARACTERS = 300
"""http:// with the longest host name (253) and a port; anything longer is no worker's address."""

REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance"})
"""States in which Kafka does not tell its members' addresses: the ones known before are asked again."""


@dataclass(frozen=True, slots=True)
class Group:
    """The consumer group of the workers.

    state      Kafka's word: Stable, PreparingRebalance, CompletingRebalance, Empty, Dead
    workers    status addresses of the members, sorted; Kafka tells them only while the group is Stable
    members    number of members, those without an address included
    committed  next offset to be read, by topic and partition
    protocol   what the members have agreed on (`kafka_ratchet.transport.assignor.RuledAssignor`); empty: nothing yet
    rules      of the members that tell theirs: setting to value
    """

    state: str
    workers: list[str] = field(default_factory=list)
    members: int = 0
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    protocol: str = ""
    rules: list[dict[str, str]] = field(default_factory=list)


async def describe_group(bootstrap: str, settings: Settings) -> Group:
    """Ask Kafka for the group `settings.app`.

    Raises:
        BrokerUnavailable: Kafka did not answer within five seconds, or refused.
    """
    mend_connections()
    admin = AIOKafkaAdminClient(**_client_options(bootstrap, settings))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await admin.start()
            return await _describe(admin, settings.app)
    except (KafkaError, OSError, TimeoutError) as error:
        if (refusal := refused_by(bootstrap.split(","))) is not None:
            raise refusal from error
        raise BrokerUnavailable(
            f"the consumer group {settings.app!r} cannot be read: Kafka at {bootstrap} did not answer "
            f"({error if str(error) else 'no answer in time'}). "
            "Check that it runs and that bootstrap and kafka.* are right"
        ) from error
    finally:
        await admin.close()


async def _describe(admin: AIOKafkaAdminClient, name: str) -> Group:
    while True:
        try:
            # One group per request: aiokafka reads a v3 answer by the layout of v2, which fits the first group only.
            response = (await admin.describe_consumer_groups([name]))[0]
            error_code, _, state, _, protocol, members = response.groups[0][:6]
            if error_code:
                raise for_code(error_code)(f"group {name}")
            committed = await admin.list_consumer_group_offsets(name)
            break
        # The first question to a new broker makes it create the topic of the groups, and it asks for patience.
        except (GroupCoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError):
            await asyncio.sleep(RETRY_S)
    return Group(
        state=state,
        workers=sorted(set(_addresses(member[3] for member in members))),
        members=len(members),
        committed={
            (where.topic, where.partition): position.offset
            for where, position in committed.items()
            if position.offset >= 0
        },
        protocol=protocol or "",
        rules=[rules for member in members if (rules := member_rules(member[3])) is not None],
    )


def _client_options(bootstrap: str, settings: Settings) -> dict[str, Any]:
    return {**client_options(bootstrap, settings.kafka), "request_timeout_ms": int(TIMEOUT_S * 1000)}


def _addresses(metadata: Iterable[bytes]) -> Iterable[str]:
    for raw in metadata:
        address = worker_address(raw)
        if address is None:
            log.debug("member_without_address", metadata_bytes=len(raw or b""))
        else:
            yield address


def worker_address(member_metadata: bytes) -> str | None:
    """The address in one member's metadata, or None where there is none that may be asked."""
    try:
        user_data = ConsumerProtocolMemberMetadata.decode(member_metadata).user_data
        url = json.loads(user_data)["url"]
    # The bytes are whatever a client of the group sent: any failure to read them means "not a worker of ours".
    except Exception:
        return None
    return accepted_url(url)


def member_rules(member_metadata: bytes) -> dict[str, str] | None:
    """The rules in one member's metadata, or None where there are none that can be read."""
    try:
        user_data = ConsumerProtocolMemberMetadata.decode(member_metadata).user_data
        rules = json.loads(user_data)[RULES]
        return {str(name): str(value) for name, value in rules.items()}
    except Exception:  # as in `worker_address`
        return None


def accepted_url(url: object) -> str | None:
    """`http://host:port` as it may be asked, else None: no other scheme, no user, path, query or link-local host."""
    if not isinstance(url, str) or len(url) > MAX_URL_CHARACTERS:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    host = parts.hostname
    if parts.scheme != "http" or not host or not port or parts.path not in {"", "/"}:
        return None
    accepted = url_of(host, port)
    # Rebuilt and compared: whatever urlsplit overlooks (user, query, fragment, white space) makes a difference here.
    if accepted != url.rstrip("/").lower() or not _may_be_asked(host):
        return None
    return accepted


def _may_be_asked(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return all(character.isalnum() or character in "-._" for character in host) and host.isascii()
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    # Link-local is where clouds keep their credentials service.
    return not (address.is_link_local or address.is_multicast or address.is_unspecified)
