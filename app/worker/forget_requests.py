"""Requests to forget an identity, in the policy topic: key `["forget", STREAM, ID]`, value JSON.

The topic is compacted and each request has a key of its own, so all of them stay. A null value withdraws a request,
for partitions that have not carried it out yet.
"""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

from kafka_ratchet.app.streams import STREAM_NAME
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, SEQUENCE_MAX
from kafka_ratchet.transport.policy import ForgetRequest, Requests

FORGET: Final = "forget"
MAX_REQUEST_BYTES: Final = 512 * 1024
"""Maximum bytes of a request's value. A value with the longest identity and reason and ten thousand end offsets is
far smaller.
"""
MAX_REASON: Final = 1000
"""Maximum number of characters of a reason, which each partition keeps for ever."""
ID: Final = re.compile(r"[0-9a-f]{16}")


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON value of a request. identity: in hex; the other fields: as in `ForgetRequest`."""

    identity: str
    at: str
    by: str
    reason: str
    above: int | None = None
    partition: int | None = None
    input: str = ""
    ends: tuple[int, ...] = ()


def request_key(stream: str, request: str) -> bytes:
    """Return the key of a request's record in the policy topic. request: id of the request."""
    return json.dumps([FORGET, stream, request], separators=(",", ":")).encode()


def request_value(request: ForgetRequest) -> bytes:
    """Return the value of a request's record in the policy topic."""
    who = request.at, request.by, request.reason
    where = request.partition, request.input, request.ends
    return msgspec.json.encode(_Value(request.identity.hex(), *who, request.above, *where))


def stream_and_id(parts: object) -> tuple[str, str] | None:
    """Return stream and request id from a key's parsed JSON; None for a key of another kind.

    Raises:
        ValueError: the key begins like the key of a request, but is malformed.
    """
    if not (isinstance(parts, list) and parts[:1] == [FORGET]):
        return None
    match parts:
        case [_, str(stream), str(request)] if STREAM_NAME.fullmatch(stream) and ID.fullmatch(request):
            return stream, request
    raise ValueError('the key of a request to forget must be ["forget", STREAM, ID]')


def read_request(request: str, value: bytes) -> ForgetRequest:
    """Decode a request from its id and the value of its record.

    Raises:
        ValueError: the value is too long or malformed.
    """
    if len(value) > MAX_REQUEST_BYTES:
        raise ValueError(f"the value has {len(value)} bytes, more than {MAX_REQUEST_BYTES}")
    try:
        found = msgspec.json.decode(value, type=_Value)
    except RecursionError:
        raise ValueError("the value is not JSON") from None
    identity = bytes.fromhex(found.identity)
    if len(identity) > MAX_IDENTITY_BYTES:
        raise ValueError(f"the identity has {len(identity)} bytes, more than {MAX_IDENTITY_BYTES}")
    if found.above is not None and not 0 <= found.above <= SEQUENCE_MAX:
        raise ValueError(f"{found.above} is not a sequence")
    who = found.at[:40], found.by[:200], found.reason[:MAX_REASON]
    return ForgetRequest(request, identity, found.above, *who, found.partition, found.input, found.ends)


class ReadRequests:
    """Requests to forget identities, of all streams, from the part of the policy topic read so far."""

    def __init__(self) -> None:
        """Start without any request."""
        self._forgets: dict[str, dict[str, ForgetRequest]] = {}
        self._positions: dict[str, int] = {}
        self._answers: dict[str, Requests] = {}
        """Cached results of `of`, each valid until the stream's next record: lanes call it before each batch."""

    def take(self, stream: str, request: str, value: bytes | None, offset: int) -> None:
        """Apply the next record of a request; a null value withdraws the request.

        Raises:
            ValueError: the value cannot be decoded; the request then has no effect.
        """
        forgets = self._forgets.setdefault(stream, {})
        self._positions[stream] = offset + 1
        self._answers.pop(stream, None)
        forgets.pop(request, None)
        if value is not None:
            forgets[request] = read_request(request, value)

    def of(self, stream: str) -> Requests:
        """Return the present requests of a stream, with the offset after the last record about such a request."""
        if (known := self._answers.get(stream)) is None:
            forgets = tuple(self._forgets.get(stream, {}).values())
            known = self._answers[stream] = Requests(forgets, self._positions.get(stream, 0))
        return known
