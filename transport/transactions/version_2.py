"""Requests for transactions that raise the producer's epoch at their end (KIP-890, part 2).

With such an end, no late request of one transaction can have an effect in the next. Ratchet does not use the rest of
KIP-890, for reasons in docs/decisions/0017-late-requests.md. The module also has the request that takes an id over only
if its epoch is still ours (KIP-360). aiokafka 0.14 lacks these requests, and has no types.
"""

from __future__ import annotations

from collections.abc import Hashable
from io import BytesIO
from typing import Final

from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    Int16,
    Int32,
    Int64,
    Schema,
)

from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.describe import TAGS, TEXT
from kafka_ratchet.transport.client.errors import raise_for

FEATURE: Final = "transaction.version"
FINALIZED_FEATURES: Final = 2
"""Tag of the answer's field with the features that the whole cluster has agreed on."""
RAISES_EPOCHS: Final = 2


class FeaturesResponse_v3(Response):  # type: ignore[misc]
    API_KEY = 18
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        ("api_keys", CompactArray(("api_key", Int16), ("least", Int16), ("most", Int16), TAGS)),
        ("throttle_time_ms", Int32),
        TAGS,
    )


class FeaturesRequest_v3(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 18
    API_VERSION = 3
    RESPONSE_TYPE = FeaturesResponse_v3
    SCHEMA = Schema(("software_name", TEXT), ("software_version", TEXT), TAGS)

    def parse_response_header(self, read_buffer: BytesIO | bytes) -> ResponseHeader_v0:
        """Decode the header of this response, which never has tags, unlike the headers of others."""
        return ResponseHeader_v0.decode(read_buffer)


class FeaturesRequest(Request[FeaturesRequest_v3]):  # type: ignore[misc]
    """Request for the cluster's features (ApiVersions)."""

    API_KEY = 18

    def build(self, request_struct_class: type[FeaturesRequest_v3]) -> FeaturesRequest_v3:
        return request_struct_class("ratchet", "1", {})


async def ends_raise_epochs(cluster: Cluster, node: int, connection: Hashable) -> bool:
    """Return True if the cluster raises the epoch with every end (feature transaction.version).

    Raises:
        aiokafka.errors.KafkaError: the node does not answer.
    """
    try:
        response = await cluster.send(node, FeaturesRequest(), connection)
    except NotImplementedError:
        return False  # this Kafka is older than features
    raise_for(response.error_code)
    return _finalized(response.tags.get(FINALIZED_FEATURES, b"")).get(FEATURE, 0) >= RAISES_EPOCHS


def _finalized(field: bytes) -> dict[str, int]:
    if not field:
        return {}
    features = CompactArray(("name", TEXT), ("most", Int16), ("least", Int16), TAGS).decode(BytesIO(field))
    return {name: most for name, most, *_ in features or ()}


PRODUCER_NOW: Final = Schema(
    ("throttle_time_ms", Int32), ("error_code", Int16), ("producer_id", Int64), ("producer_epoch", Int16), TAGS
)
"""Fields of the answers to `RaisingEndRequest` and `GiveUpRequest`: the producer's present id and epoch."""


class EndResponse_v5(Response):  # type: ignore[misc]
    API_KEY = 26
    API_VERSION = 5
    SCHEMA = PRODUCER_NOW


class EndRequest_v5(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 26
    API_VERSION = 5
    RESPONSE_TYPE = EndResponse_v5
    SCHEMA = Schema(
        ("transactional_id", TEXT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("committed", Boolean),
        TAGS,
    )


class RaisingEndRequest(Request[EndRequest_v5]):  # type: ignore[misc]
    """Request to end a transaction; the response gives producer id and epoch for the next transaction."""

    API_KEY = 26

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int, transaction_result: bool) -> None:
        self._transactional_id = transactional_id
        self._producer_id, self._producer_epoch = producer_id, producer_epoch
        self._transaction_result = transaction_result

    def build(self, request_struct_class: type[EndRequest_v5]) -> EndRequest_v5:
        identity = (self._transactional_id, self._producer_id, self._producer_epoch)
        return request_struct_class(*identity, self._transaction_result, {})


class InitResponse_v3(Response):  # type: ignore[misc]
    API_KEY = 22
    API_VERSION = 3
    SCHEMA = PRODUCER_NOW


class InitRequest_v3(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 22
    API_VERSION = 3
    RESPONSE_TYPE = InitResponse_v3
    SCHEMA = Schema(
        ("transactional_id", TEXT),
        ("transaction_timeout_ms", Int32),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        TAGS,
    )


class GiveUpRequest(Request[InitRequest_v3]):  # type: ignore[misc]
    """Request to initialise an id only if its epoch is still ours (InitProducerId, KIP-360).

    The coordinator then aborts an open transaction with markers of the next epoch, so that partitions refuse late
    requests. An aborting EndTxn would write markers of the present epoch.
    """

    API_KEY = 22

    def __init__(
        self, transactional_id: str, transaction_timeout_ms: int, producer_id: int, producer_epoch: int
    ) -> None:
        self._transactional_id, self._transaction_timeout_ms = transactional_id, transaction_timeout_ms
        self._producer_id, self._producer_epoch = producer_id, producer_epoch

    def build(self, request_struct_class: type[InitRequest_v3]) -> InitRequest_v3:
        owner = (self._producer_id, self._producer_epoch)
        return request_struct_class(self._transactional_id, self._transaction_timeout_ms, *owner, {})
