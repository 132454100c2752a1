"""Origin of a dead letter or dropped record, read from Ratchet's headers."""

from __future__ import annotations

from typing import NamedTuple

from kafka_ratchet.app.verify.rule import Headers


class OriginHeaders(NamedTuple):
    """Contents of Ratchet's headers: topic, partition and offset of the input record.

    If present, also reason, verdict and last sequence.
    """

    topic: str
    partition: int
    offset: int
    reason: str | None
    verdict: str | None
    last_sequence: int | None


def origin_of(headers: Headers) -> OriginHeaders | None:
    """Return the origin in a record's headers; None if topic, partition or offset are missing or malformed.

    If a header occurs several times, the last one counts, because Ratchet appends its headers.
    """
    said = dict(headers)
    partition, offset = _number(said.get("ratchet-partition")), _number(said.get("ratchet-offset"))
    topic = said.get("ratchet-topic")
    if partition is None or offset is None or topic is None:
        return None
    return OriginHeaders(
        topic.decode("utf-8", "replace"),
        partition,
        offset,
        _text(said.get("ratchet-reason")),
        _text(said.get("ratchet-verdict")),
        _number(said.get("ratchet-last-sequence")),
    )


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= 19 else None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
