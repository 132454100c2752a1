"""Groups of every protocol as their coordinator describes them: classic, consumer (KIP-848), share (KIP-932), streams.

All of them share one space of names. aiokafka 0.14 knows the classic ones only, and has no types.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import errors as kafka
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, Int16, Int32, Schema

from kafka_ratchet.transport.client.cluster import GROUP, Cluster
from kafka_ratchet.transport.client.errors import raise_for
from kafka_ratchet.transport.client.topic_id import TAGS, TEXT, Uuid

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"
STREAMS: Final = "streams"
STABLE: Final = "Stable"
EMPTY: Final = "Empty"
DEAD: Final = "Dead"
"""State of a classic group that does not exist; another protocol may have a group of that name."""
NAMED: Final = 5
"""Maximum number of members that a message names."""
SHOWN: Final = 80
"""Maximum number of characters of a client id in a message; the client chooses its id, of any length."""

Send = Callable[[Any], Awaitable[Any]]
"""Function that sends a request to the group's coordinator."""


class Member(NamedTuple):
    """Member of a consumer group.

    metadata: written by a classic member's assignor; Kafka returns it only while the group is Stable
    """

    client_id: str
    host: str
    metadata: bytes = b""

    def __str__(self) -> str:
        return f"client id {self.client_id[:SHOWN]!r} at {self.host.lstrip('/')}"


class GroupDescription(NamedTuple):
    """Kind, state and members of a group, as its coordinator describes them.

    members is empty for a streams group.
    """

    kind: str
    """classic, consumer, share or streams; "" where there is no such group."""
    state: str
    """State of the group, in Kafka's word, such as Stable or Empty; "" if unknown."""
    protocol_type: str = ""
    """Type of a classic group: consumer, connect, ..."""
    protocol: str = ""
    """Assignor of all members."""
    members: tuple[Member, ...] = ()


class ListGroupsResponse_v5(Response):  # type: ignore[misc]
    API_KEY = 16
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "groups",
            CompactArray(("group", TEXT), ("protocol_type", TEXT), ("state", TEXT), ("kind", TEXT), TAGS),
        ),
        TAGS,
    )


class ListGroupsRequest_v5(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 16
    API_VERSION = 5
    RESPONSE_TYPE = ListGroupsResponse_v5
    SCHEMA = Schema(("states", CompactArray(TEXT)), ("kinds", CompactArray(TEXT)), TAGS)


class ListGroupsRequest(Request[ListGroupsRequest_v5]):  # type: ignore[misc]
    """Request to a broker for the groups of given kinds that it coordinates. Kafka 3.8 or newer.

    The answer has only groups that this user may see.
    """

    API_KEY = 16

    def __init__(self, kinds: list[str]) -> None:
        self._kinds = kinds

    def build(self, request_struct_class: type[ListGroupsRequest_v5]) -> ListGroupsRequest_v5:
        return request_struct_class([], self._kinds, {})


ASSIGNMENT: Final = (
    "topics",
    CompactArray(("id", Uuid), ("topic", TEXT), ("partitions", CompactArray(Int32)), TAGS),
)


class ConsumerGroupResponse_v0(Response):  # type: ignore[misc]
    API_KEY = 69
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("error_message", TEXT),
                ("group", TEXT),
                ("state", TEXT),
                ("group_epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor", TEXT),
                (
                    "members",
                    CompactArray(
                        ("member_id", TEXT),
                        ("instance_id", TEXT),
                        ("rack_id", TEXT),
                        ("member_epoch", Int32),
                        ("client_id", TEXT),
                        ("client_host", TEXT),
                        ("subscribed_topics", CompactArray(TEXT)),
                        ("subscribed_pattern", TEXT),
                        ASSIGNMENT,
                        ("assignment_tags", TAGS[1]),
                        ("target", ASSIGNMENT[1]),
                        ("target_tags", TAGS[1]),
                        TAGS,
                    ),
                ),
                ("authorized_operations", Int32),
                TAGS,
            ),
        ),
        TAGS,
    )


class ConsumerGroupRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 69
    API_VERSION = 0
    RESPONSE_TYPE = ConsumerGroupResponse_v0
    SCHEMA = Schema(("groups", CompactArray(TEXT)), ("operations", Boolean), TAGS)


class ConsumerGroupRequest(Request[ConsumerGroupRequest_v0]):  # type: ignore[misc]
    """Request for state and members of a group of the consumer protocol (KIP-848)."""

    API_KEY = 69

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[ConsumerGroupRequest_v0]) -> ConsumerGroupRequest_v0:
        return request_struct_class([self._group], False, {})


class ShareGroupResponse_v1(Response):  # type: ignore[misc]
    API_KEY = 77
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("error_message", TEXT),
                ("group", TEXT),
                ("state", TEXT),
                ("group_epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor", TEXT),
                (
                    "members",
                    CompactArray(
                        ("member_id", TEXT),
                        ("rack_id", TEXT),
                        ("member_epoch", Int32),
                        ("client_id", TEXT),
                        ("client_host", TEXT),
                        ("subscribed_topics", CompactArray(TEXT)),
                        ASSIGNMENT,
                        ("assignment_tags", TAGS[1]),
                        TAGS,
                    ),
                ),
                ("authorized_operations", Int32),
                TAGS,
            ),
        ),
        TAGS,
    )


class ShareGroupRequest_v1(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 77
    API_VERSION = 1
    RESPONSE_TYPE = ShareGroupResponse_v1
    SCHEMA = Schema(("groups", CompactArray(TEXT)), ("operations", Boolean), TAGS)


class ShareGroupRequest(Request[ShareGroupRequest_v1]):  # type: ignore[misc]
    """Request for state and members of a share group (KIP-932)."""

    API_KEY = 77

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[ShareGroupRequest_v1]) -> ShareGroupRequest_v1:
        return request_struct_class([self._group], False, {})


async def describe(send: Send, name: str) -> GroupDescription:
    """Return the description of the group with this name, whatever protocol the group uses.

    Raises:
        aiokafka.errors.KafkaError: the coordinator does not answer, or refuses the request.
    """
    # One group per request: aiokafka reads a v3 answer by the layout of v2, which fits the first group only.
    code, _, state, protocol_type, protocol, members = (await send(DescribeGroupsRequest([name]))).groups[0][:6]
    raise_for(code, f"group {name}")
    if state != DEAD:
        found = tuple(Member(client_id, host, metadata or b"") for _, client_id, host, metadata, *_ in members)
        return GroupDescription(CLASSIC, state, protocol_type or "", protocol or "", found)
    return await _of_newer_protocol(send, name)


async def _of_newer_protocol(send: Send, name: str) -> GroupDescription:
    try:
        listed = await send(ListGroupsRequest([CONSUMER, SHARE, STREAMS]))
        raise_for(listed.error_code)
    except (kafka.IncompatibleBrokerVersion, NotImplementedError):
        return GroupDescription("", DEAD)  # this Kafka has no newer protocols
    kinds = {group: (kind.lower(), state) for group, _, state, kind, _ in listed.groups}
    kind, state = kinds.get(name, ("", DEAD))
    request = {CONSUMER: ConsumerGroupRequest, SHARE: ShareGroupRequest}.get(kind)
    if request is None:
        return GroupDescription(kind, state)
    code, _, _, state, _, _, assignor, members, *_ = (await send(request(name))).groups[0]
    raise_for(code, f"group {name}")
    at = 4 if kind == CONSUMER else 3
    return GroupDescription(kind, state, "", assignor or "", tuple(Member(*each[at : at + 2]) for each in members))


async def describe_in(cluster: Cluster, name: str, connection: Any) -> GroupDescription:
    """Return the description of a group from its coordinator in a cluster; see `describe`.

    Raises:
        aiokafka.errors.KafkaError: as in `describe`.
    """
    async with cluster.asking_coordinator(GROUP, name) as node:
        return await describe(lambda request: cluster.send(node, request, connection), name)


def strangers(found: GroupDescription, is_worker: Callable[[bytes], bool]) -> str:
    """Return a phrase that names the group's members other than workers; "" without such members.

    An empty share group is named too, because Kafka keeps it and lets no worker join.

    Args:
        found: the group
        is_worker: function that tells from a classic member's metadata if it is a worker
    """
    if found.kind == CLASSIC:
        others = [each for each in found.members if found.state == STABLE and not is_worker(each.metadata)]
        if not others:
            return ""
        kind = f"type {found.protocol_type}, " * (found.protocol_type not in ("", "consumer"))
        is_no = "are no Ratchet workers" if len(others) > 1 else "is no Ratchet worker"
        return named("client", others, f" that {is_no} ({kind}assignor {found.protocol!r})")
    members = [*found.members]
    if found.kind == CONSUMER:
        return f"a consumer group of the new protocol: {named('member', members)}" if members else ""
    if found.kind == SHARE:
        return f"a share group: {named('member', members) if members else 'empty, but not deleted'}"
    return "a streams group (KIP-1071)" if found.kind == STREAMS and found.state != EMPTY else ""


def named(what: str, members: Sequence[Member], more: str = "") -> str:
    """Return a phrase with the number of members, and the first of them by client id and host.

    Args:
        what: noun for one member
        members: members to name, at least one
        more: words that follow the noun
    """
    first = ", ".join(map(str, members[:NAMED])) + (f" and {len(members) - NAMED} more" if len(members) > NAMED else "")
    return f"{len(members)} {what}{'s' * (len(members) > 1)}{more}: {first}"
