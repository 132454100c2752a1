"""Three requests of KIP-664 that aiokafka 0.14 lacks.

These requests list a broker's transactions, return a transaction's state, and list a partition's producers. aiokafka
has no types.
"""

from __future__ import annotations

from typing import Final

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

TEXT: Final = CompactString("utf-8")
TAGS: Final = ("tags", TaggedFields)


class DescribeTransactionsResponse_v0(Response):  # type: ignore[misc]
    API_KEY = 65
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transactions",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", TEXT),
                ("state", TEXT),
                ("timeout_ms", Int32),
                ("start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("topics", CompactArray(("topic", TEXT), ("partitions", CompactArray(Int32)), TAGS)),
                TAGS,
            ),
        ),
        TAGS,
    )


class DescribeTransactionsRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 65
    API_VERSION = 0
    RESPONSE_TYPE = DescribeTransactionsResponse_v0
    SCHEMA = Schema(("transactional_ids", CompactArray(TEXT)), TAGS)


class DescribeTransactionsRequest(Request[DescribeTransactionsRequest_v0]):  # type: ignore[misc]
    """Request to a transaction coordinator for the state of transactional ids (KIP-664)."""

    API_KEY = 65

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id

    def build(self, request_struct_class: type[DescribeTransactionsRequest_v0]) -> DescribeTransactionsRequest_v0:
        return request_struct_class([self._transactional_id], {})


class ListTransactionsResponse_v0(Response):  # type: ignore[misc]
    API_KEY = 66
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("unknown_state_filters", CompactArray(TEXT)),
        (
            "transactions",
            CompactArray(("transactional_id", TEXT), ("producer_id", Int64), ("state", TEXT), TAGS),
        ),
        TAGS,
    )


class ListTransactionsRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 66
    API_VERSION = 0
    RESPONSE_TYPE = ListTransactionsResponse_v0
    SCHEMA = Schema(("state_filters", CompactArray(TEXT)), ("producer_id_filters", CompactArray(Int64)), TAGS)


class ListTransactionsRequest(Request[ListTransactionsRequest_v0]):  # type: ignore[misc]
    """Request to a broker for the transactional ids that belong to given producer ids (KIP-664).

    The answer has only ids that this user may see.
    """

    API_KEY = 66

    def __init__(self, producer_ids: list[int]) -> None:
        self._producer_ids = producer_ids

    def build(self, request_struct_class: type[ListTransactionsRequest_v0]) -> ListTransactionsRequest_v0:
        return request_struct_class([], self._producer_ids, {})


class DescribeProducersResponse_v0(Response):  # type: ignore[misc]
    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("error_message", TEXT),
                        (
                            "producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("transaction_start", Int64),
                                TAGS,
                            ),
                        ),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
        TAGS,
    )


class DescribeProducersRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 61
    API_VERSION = 0
    RESPONSE_TYPE = DescribeProducersResponse_v0
    SCHEMA = Schema(
        ("topics", CompactArray(("name", TEXT), ("partitions", CompactArray(Int32)), TAGS)),
        TAGS,
    )


class DescribeProducersRequest(Request[DescribeProducersRequest_v0]):  # type: ignore[misc]
    """Request to a partition's leader for its producers and the start of their open transactions (KIP-664)."""

    API_KEY = 61

    def __init__(self, places: list[tuple[str, int]]) -> None:
        self._places = places

    def build(self, request_struct_class: type[DescribeProducersRequest_v0]) -> DescribeProducersRequest_v0:
        return request_struct_class([(topic, [partition], {}) for topic, partition in self._places], {})
