"""Consumer group of the workers: live members, their status addresses, and committed offsets.

Faust's assignor puts each worker's `canonical_url` into the metadata of the group's members (JSON, field `url`). A
member may write anything there, so this module accepts only plain http://host:port addresses.

It does not use confluent-kafka for the committed offsets. In version 2.16, that call ends the process (SIGSEGV in
librdkafka) if the broker has no group yet, and `Consumer.committed` reads past the end of an offset's metadata.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
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
)

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.http import url_of
from kafka_ratchet.errors import BrokerUnavailable, RatchetError
from kafka_ratchet.transport.assignor import RULES, is_worker
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.connection import mend_connections, refused_by
from kafka_ratchet.transport.client.group_log import group_log
from kafka_ratchet.transport.client.groups import SHARE, describe, strangers
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.transactions.requests import is_ours, topic_in

log = structlog.get_logger(__name__)

TIMEOUT_S = 5.0
"""Maximum seconds that a page or a command waits for Kafka's answer."""

RETRY_S = 0.1
"""Seconds until the next request to a broker that does not coordinate the group yet."""

JOINS_WITHIN_S = 15.0
"""Maximum seconds until a refused worker tries again to join the group
(`kafka_ratchet.transport.assignment.REFUSED_MOST_S`, with a margin)."""

MAX_URL_CHARACTERS = 300
"""Maximum number of characters of a worker's address: http://, the longest host name (253) and a port."""

REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance"})
"""Group states during a rebalance. Kafka then hides the members' addresses, so the last known addresses are used."""


@dataclass(frozen=True, slots=True)
class Group:
    """Consumer group of the workers.

    state      state of the group, as Kafka names it: Stable, PreparingRebalance, CompletingRebalance, Empty, Dead.
    workers    sorted status addresses of the members; known only while the group is Stable.
    members    number of members, including those without an address.
    committed  next offset to read, by topic and partition; only offsets that a lane has committed.
    foreign    offset by topic and partition; only offsets that another client has committed.
    topic_ids  id of the topic that a committed offset belongs to, as text, by topic and partition, if known.
    kind       classic, consumer, share or streams; "": the group does not exist.
    strangers  phrase about members other than workers; "": there are none.
    protocol   protocol that the members have agreed on (`kafka_ratchet.transport.assignor.RuledAssignor`); "": none.
    rules      stream settings that the members have reported, by name.
    """

    state: str
    workers: list[str] = field(default_factory=list)
    members: int = 0
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    protocol: str = ""
    rules: list[dict[str, str]] = field(default_factory=list)
    foreign: dict[tuple[str, int], int] = field(default_factory=dict)
    topic_ids: dict[tuple[str, int], str] = field(default_factory=dict)
    kind: str = ""
    strangers: str = ""


def ask_group(bootstrap: str, settings: Settings, timeout_s: float = TIMEOUT_S) -> Group:
    """Return the consumer group `settings.app`, as read from Kafka. The call blocks, even inside an event loop.

    Raises:
        BrokerUnavailable: Kafka did not answer in time, or refused the request.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(describe_group(bootstrap, settings, timeout_s))).result()


async def describe_commits(
    bootstrap: str, settings: Settings, offsets: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], str]:
    """Search for the commits of given offsets, to describe their times and the group's clients then.

    Args:
        bootstrap: host:port[,host:port]
        settings: settings with the group's name
        offsets: committed offsets by topic and partition

    Returns:
        phrase about the commit by topic and partition, if it was found in `__consumer_offsets`
    """
    cluster = Cluster(client_options(bootstrap, settings.kafka))
    try:
        await cluster.start(TIMEOUT_S)
        known = group_log(cluster, settings.app)
        found = {place: await known.commit(cluster, *place, offset, "group") for place, offset in offsets.items()}
    except RatchetError as error:
        log.debug("commits cannot be read", reason=str(error))
        return {}
    finally:
        await cluster.close()
    return {place: str(commit) for place, commit in found.items() if commit is not None}


async def describe_group(bootstrap: str, settings: Settings, timeout_s: float = TIMEOUT_S) -> Group:
    """Return the consumer group `settings.app`, as read from Kafka.

    Raises:
        BrokerUnavailable: Kafka did not answer within timeout_s, or refused the request.
    """
    mend_connections()
    admin = AIOKafkaAdminClient(**_client_options(bootstrap, settings, timeout_s))
    try:
        async with asyncio.timeout(timeout_s):
            await admin.start()
            return await _describe(admin, settings.app)
    except (KafkaError, OSError, TimeoutError) as error:
        if (refusal := refused_by(bootstrap.split(","))) is not None:
            raise refusal from error
        raise BrokerUnavailable(
            f"the consumer group {settings.app!r} cannot be read: Kafka at {bootstrap} did not answer "
            f"({error if str(error) else 'no answer in time'}). "
            "Check that Kafka runs, and that bootstrap and kafka.* in the settings are right"
        ) from error
    finally:
        await admin.close()


async def _describe(admin: AIOKafkaAdminClient, name: str) -> Group:
    while True:
        try:
            node = await admin.find_coordinator(name)
            found = await describe(lambda request: admin._send_request(request, node), name)  # noqa: SLF001, B023
            committed = await admin.list_consumer_group_offsets(name)
            break
        # After the first request, a new broker creates the topic of the groups, and refuses requests until then.
        except (GroupCoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError):
            await asyncio.sleep(RETRY_S)
    offsets = {(where.topic, where.partition): found for where, found in committed.items() if found.offset >= 0}
    ids = {where: topic_in(position.metadata or "") for where, position in offsets.items()}
    ours = {where for where, position in offsets.items() if is_ours(position.metadata or "")}
    return Group(
        state=found.state,
        workers=sorted(set(_addresses(member.metadata for member in found.members))),
        members=len(found.members),
        committed={where: offsets[where].offset for where in sorted(ours)},
        protocol=found.protocol,
        rules=[rules for member in found.members if (rules := member_rules(member.metadata)) is not None],
        foreign={where: offsets[where].offset for where in sorted(offsets.keys() - ours)},
        topic_ids={where: found_in for where, found_in in ids.items() if found_in is not None},
        kind=found.kind,
        strangers=strangers(found, is_worker),
    )


def sentence_of_strangers(bootstrap: str, app: str, group: Group) -> str:
    """Return the message about other clients in the workers' group, with the remedy; "" if there are none."""
    if not group.strangers:
        return ""
    does = "No worker can join, and their offsets do not tell which records were judged"
    way = "Stop them"
    if group.kind == SHARE:
        does = "No worker can join"
        delete = f"kafka-share-groups.sh --bootstrap-server {bootstrap} --delete --group {app}"
        way += f" and delete the share group, which Kafka keeps: `{delete}`"
    return (
        f"others use the group {app!r}: {group.strangers}. {does}. {way}, or give this application another name "
        f"(app in the settings). Workers join on their own within {JOINS_WITHIN_S:.0f} s after that"
    )


def _client_options(bootstrap: str, settings: Settings, timeout_s: float) -> dict[str, Any]:
    return {**client_options(bootstrap, settings.kafka), "request_timeout_ms": int(timeout_s * 1000)}


def _addresses(metadata: Iterable[bytes]) -> Iterable[str]:
    for raw in metadata:
        address = worker_address(raw)
        if address is None:
            log.debug("member_without_address", metadata_bytes=len(raw or b""))
        else:
            yield address


def worker_address(member_metadata: bytes) -> str | None:
    """Return the status address in a member's metadata; None if it has none, or not a plain http://host:port."""
    try:
        user_data = ConsumerProtocolMemberMetadata.decode(member_metadata).user_data
        url = json.loads(user_data)["url"]
    # The bytes are whatever a client of the group sent: any failure to read them means "not a worker of ours".
    except Exception:
        return None
    return accepted_url(url)


def member_rules(member_metadata: bytes) -> dict[str, str] | None:
    """Return the stream settings, by name, in a member's metadata; None if missing or unreadable."""
    try:
        user_data = ConsumerProtocolMemberMetadata.decode(member_metadata).user_data
        rules = json.loads(user_data)[RULES]
        return {str(name): str(value) for name, value in rules.items()}
    except Exception:  # as in `worker_address`
        return None


def accepted_url(url: object) -> str | None:
    """Return the address `url` if it is a plain `http://host:port`; else None.

    With another scheme, a user, a path, a query or a link-local host, it is None.
    """
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
