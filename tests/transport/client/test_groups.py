"""Groups of every protocol, and the phrases that name their members."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors as kafka
from aiokafka.protocol.admin import DescribeGroupsRequest

from kafka_ratchet.transport.client.groups import (
    CLASSIC,
    CONSUMER,
    DEAD,
    SHARE,
    STREAMS,
    ConsumerGroupRequest,
    GroupDescription,
    ListGroupsRequest,
    Member,
    ShareGroupRequest,
    describe,
    strangers,
)

ONE = Member("console", "/10.0.0.7", b"other")
CLIENT = "client id 'console' at 10.0.0.7"
WORKER = Member("worker", "/10.0.0.8", b"worker")


@pytest.mark.parametrize(
    ("found", "phrase"),
    [
        (GroupDescription(CLASSIC, "Stable", "consumer", "range", (WORKER,)), ""),
        (
            GroupDescription(CLASSIC, "Stable", "consumer", "range", (WORKER, ONE)),
            f"1 client that is no Ratchet worker (assignor 'range'): {CLIENT}",
        ),
        (
            GroupDescription(CLASSIC, "Stable", "connect", "sessioned", (ONE, ONE)),
            f"2 clients that are no Ratchet workers (type connect, assignor 'sessioned'): {CLIENT}, {CLIENT}",
        ),
        (GroupDescription(CLASSIC, "PreparingRebalance", "consumer", "", (ONE,)), ""),
        (
            GroupDescription(CONSUMER, "Stable", "", "uniform", (ONE,) * 5),
            f"a consumer group of the new protocol: 5 members: {', '.join([CLIENT] * 5)}",
        ),
        (
            GroupDescription(CONSUMER, "Stable", "", "uniform", (ONE,) * 7),
            f"a consumer group of the new protocol: 7 members: {', '.join([CLIENT] * 5)} and 2 more",
        ),
        (GroupDescription(CONSUMER, "Empty"), ""),
        (GroupDescription(SHARE, "Empty"), "a share group: empty, but not deleted"),
        (GroupDescription(SHARE, "Stable", members=(ONE,)), f"a share group: 1 member: {CLIENT}"),
        (GroupDescription(STREAMS, "Stable"), "a streams group (KIP-1071)"),
        (GroupDescription(STREAMS, "Empty"), ""),
        (GroupDescription("", DEAD), ""),
    ],
)
def test_members_other_than_workers_are_named(found: GroupDescription, phrase: str) -> None:
    assert strangers(found, lambda metadata: metadata == b"worker") == phrase


class Coordinator:
    """Answers each request with the next prepared answer."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.requests = deque(answers), list[type]()

    async def __call__(self, request: Any) -> Any:
        self.requests.append(type(request))
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _groups(*fields: Any) -> Any:
    return SimpleNamespace(groups=[fields])


def _listed(kind: str, code: int = 0) -> Any:
    return SimpleNamespace(error_code=code, groups=[("other", "", "Dead", "Share", {}), ("g", "", "Stable", kind, {})])


NO_CLASSIC = _groups(0, "g", DEAD, "", "", [])


async def test_a_classic_group_is_described_by_one_request() -> None:
    send = Coordinator(_groups(0, "g", "Stable", "consumer", None, [("id", "console", "/10.0.0.7", None, b"")]))
    found = await describe(send, "g")
    assert found == GroupDescription(CLASSIC, "Stable", "consumer", "", (Member("console", "/10.0.0.7"),))
    assert send.requests == [DescribeGroupsRequest]


@pytest.mark.parametrize(
    ("kind", "request_of", "member"),
    [
        ("Consumer", ConsumerGroupRequest, ("id", "instance", "rack", 4, "console", "/10.0.0.7", [])),
        ("Share", ShareGroupRequest, ("id", "rack", 4, "console", "/10.0.0.7", [])),
    ],
)
@pytest.mark.parametrize("assignor", ["uniform", None])
async def test_a_group_of_a_newer_protocol_is_described_by_its_own_request(
    kind: str, request_of: type, member: tuple[Any, ...], assignor: str | None
) -> None:
    send = Coordinator(NO_CLASSIC, _listed(kind), _groups(0, None, "g", "Assigning", 3, 3, assignor, [member], 0, {}))
    found = await describe(send, "g")
    members = (Member("console", "/10.0.0.7"),)
    assert found == GroupDescription(kind.lower(), "Assigning", "", assignor or "", members)
    assert send.requests == [DescribeGroupsRequest, ListGroupsRequest, request_of]


async def test_a_streams_group_is_known_by_the_list_alone() -> None:
    assert await describe(Coordinator(NO_CLASSIC, _listed("Streams")), "g") == GroupDescription(STREAMS, "Stable")


@pytest.mark.parametrize("listed", [kafka.IncompatibleBrokerVersion(), NotImplementedError(), _listed("Share")])
async def test_a_group_that_no_protocol_knows_is_dead(listed: Any) -> None:
    name = "absent" if isinstance(listed, SimpleNamespace) else "g"
    assert await describe(Coordinator(NO_CLASSIC, listed), name) == GroupDescription("", DEAD)


async def test_a_refused_request_raises_the_error_of_kafka() -> None:
    refused = kafka.GroupAuthorizationFailedError.errno
    with pytest.raises(kafka.GroupAuthorizationFailedError):
        await describe(Coordinator(_groups(refused, "g", "", "", "", [])), "g")
    with pytest.raises(kafka.CoordinatorLoadInProgressError):
        await describe(Coordinator(NO_CLASSIC, _listed("Share", kafka.CoordinatorLoadInProgressError.errno)), "g")
    described = _groups(refused, "refused", "g", "", 0, 0, "", [], 0, {})
    with pytest.raises(kafka.GroupAuthorizationFailedError):
        await describe(Coordinator(NO_CLASSIC, _listed("Share"), described), "g")
