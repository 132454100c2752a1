"""Reasons why records are invalid: a number in compiled passes, and a name in messages."""

from __future__ import annotations

from typing import Final

(
    NONE,
    SEQUENCE_MISSING,
    SEQUENCE_NOT_A_NUMBER,
    SEQUENCE_NEGATIVE,
    SEQUENCE_OUT_OF_RANGE,
    SEQUENCE_REPEATED,
    IDENTITY_MISSING,
    IDENTITY_REPEATED,
    IDENTITY_TOO_LONG,
    EXTRACTOR_FAILED,
    VALUE_NOT_JSON,
    REPLAY_NOT_NEW,
    IDENTITY_NOT_TEXT,
    VALUE_SCHEMA_REGISTRY,
) = range(14)
"""Numbers of the reasons, uint8. NONE: the record is valid."""

REASONS: Final = (
    "",
    "sequence-missing",
    "sequence-not-a-number",
    "sequence-negative",
    "sequence-out-of-range",
    "sequence-repeated",
    "identity-missing",
    "identity-repeated",
    "identity-too-long",
    "extractor-failed",
    "value-not-json",
    "replay-not-new",
    "identity-not-text",
    "value-schema-registry",
)
"""Names of the reasons, by number. Dead letters contain them in the header `ratchet-reason`, so they never change."""

_REGISTRY_BYTES: Final = 5
"""Number of bytes before a value in Confluent's wire format: byte 0, and 4 bytes big-endian of a schema id."""


def has_registry_bytes(value: bytes) -> bool:
    """Return True if a JSON object or list follows five bytes of a Schema Registry."""
    return value[:1] == b"\0" and value[_REGISTRY_BYTES:].lstrip(b" \t\r\n")[:1] in (b"{", b"[")


def not_json(value: bytes) -> str:
    """Return the reason why a value other than JSON text makes its record invalid."""
    return REASONS[VALUE_SCHEMA_REGISTRY if has_registry_bytes(value) else VALUE_NOT_JSON]
