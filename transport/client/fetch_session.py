"""Fetches from very many partitions at once, in a session that the broker keeps (KIP-227).

The first request of a session names every partition. Later requests name only added and removed partitions, and the
broker's answers contain only partitions with news. Kafka 3.1 or newer, as for all requests by topic id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Schema

from kafka_ratchet.transport.client.answer import Reader
from kafka_ratchet.transport.client.topic_id import DIVERGING_EPOCH, ID_BYTES, NO_EPOCH, READ_COMMITTED

NO_SESSION: Final = 0
LEAST_BYTES: Final = 1
"""Maximum bytes requested, per partition and in the whole answer.

Kafka then sends one batch, which shows that new records exist.
"""

_HEAD: Final = struct.Struct(">iiiibii")
_PLACE: Final = struct.Struct(">iiqiqiB")
_PLAIN: Final = struct.Struct(">i")
_NO_LOG_START: Final = -1
_CONSUMER: Final = -1
_NO_TAGS, _EMPTY = b"\x00", b"\x01"

_ANSWER_HEAD: Final = struct.Struct(">ihi")
_ANSWERED: Final = struct.Struct(">ihqqq")
_ABORTED: Final = 16
_REPLICA: Final = 4
"""Size in bytes of an unused field of the answer: the preferred read replica."""


class PositionToWatch(NamedTuple):
    """Position to watch: a topic's partition and the next offset there.

    topic_id: 16 bytes; position: next offset; last_epoch: leader epoch of the batch before that offset, or NO_EPOCH
    """

    topic_id: bytes
    partition: int
    position: int
    last_epoch: int = NO_EPOCH


NO_OFFSET: Final = -1


class SpotAnswer(NamedTuple):
    """Broker's answer about one watched partition.

    error_code: 0 without an error.
    stable_end: the last stable offset.
    has_records: True if the answer contains records.
    parts: True if the log no longer continues the records read up to the position (KIP-320).
    high_watermark: end of the log for readers of uncommitted records.
    """

    topic_id: bytes
    partition: int
    error_code: int
    stable_end: int
    has_records: bool
    parts: bool
    high_watermark: int = NO_OFFSET


class SessionAnswer(NamedTuple):
    """Broker's answer to a request of a fetch session, by partition.

    error_code: error of the session, 0 without one; session_id: NO_SESSION if the broker keeps no session.
    """

    error_code: int
    session_id: int
    answers: list[SpotAnswer]


class SessionFetchResponse_v13(Response):  # type: ignore[misc]
    """Response of a fetch session, kept undecoded; `answer_of` decodes it."""

    API_KEY = 1
    API_VERSION = 13
    SCHEMA = Schema()

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.body = body

    @classmethod
    def decode(cls, data: Any) -> SessionFetchResponse_v13:
        """Wrap the response's bytes without decoding them."""
        return cls(data if isinstance(data, bytes) else data.read())


class SessionFetchRequest_v13(RequestStruct):  # type: ignore[misc]
    """Request of a fetch session, already encoded."""

    FLEXIBLE_VERSION = True
    API_KEY = 1
    API_VERSION = 13
    RESPONSE_TYPE = SessionFetchResponse_v13
    SCHEMA = Schema()

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.body = body

    def encode(self) -> bytes:
        """Return the encoded request."""
        return self.body


class SessionFetchRequest(Request[SessionFetchRequest_v13]):  # type: ignore[misc]
    """Request that waits until any partition of a fetch session has new records."""

    API_KEY = 1

    def __init__(
        self,
        session: tuple[int, int],
        max_wait_ms: int,
        spots: Iterable[PositionToWatch],
        forgotten: Iterable[tuple[bytes, int]],
    ) -> None:
        """Encode the request.

        Args:
            session: session id, and number of this request in the session, from 1; (NO_SESSION, 0) begins a session.
            max_wait_ms: milliseconds that the broker may hold back an answer without records.
            spots: new or moved positions of the session.
            forgotten: topic id and partition of positions to stop watching.
        """
        self._body = b"".join(_encoded(session, max_wait_ms, spots, forgotten))

    def build(self, request_struct_class: type[SessionFetchRequest_v13]) -> SessionFetchRequest_v13:
        """Return the request in aiokafka's type."""
        return request_struct_class(self._body)


def _encoded(
    session: tuple[int, int], max_wait_ms: int, spots: Iterable[PositionToWatch], forgotten: Iterable[tuple[bytes, int]]
) -> Iterator[bytes]:
    places: dict[bytes, list[bytes]] = {}
    for topic_id, partition, position, last_epoch in spots:
        places.setdefault(topic_id, []).append(
            _PLACE.pack(partition, NO_EPOCH, position, last_epoch, _NO_LOG_START, LEAST_BYTES, 0)
        )
    numbers: dict[bytes, list[bytes]] = {}
    for topic_id, partition in forgotten:
        numbers.setdefault(topic_id, []).append(_PLAIN.pack(partition))
    yield _HEAD.pack(_CONSUMER, max_wait_ms, 1, LEAST_BYTES, READ_COMMITTED, *session)
    for topics in (places, numbers):
        yield _length(topics)
        for topic_id, partitions in topics.items():
            yield from (topic_id, _length(partitions), *partitions, _NO_TAGS)
    yield from (_EMPTY, _NO_TAGS)  # no rack


def _length(of: Any) -> bytes:
    number, found = len(of) + 1, bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def answer_of(response: SessionFetchResponse_v13) -> SessionAnswer:
    """Decode an answer.

    Raises:
        aiokafka.errors.KafkaError: the response ends before its last field.
    """
    answer = Reader(response.body)
    _, error_code, session_id = answer.take(_ANSWER_HEAD)
    answers = []
    for _ in range(answer.length()):
        topic_id = answer.take_bytes(ID_BYTES)
        for _ in range(answer.length()):
            partition, code, high, stable_end, _ = answer.take(_ANSWERED)
            for _ in range(answer.length()):
                answer.skip(_ABORTED)
                answer.skip_tags()
            answer.skip(_REPLICA)
            records = answer.length()
            answer.skip(records)
            parts = DIVERGING_EPOCH in answer.tags()
            answers.append(SpotAnswer(topic_id, partition, code, stable_end, records > 0, parts, high))
        answer.skip_tags()
    return SessionAnswer(error_code, session_id, answers)
