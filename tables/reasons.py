"""Why a record is invalid: the number that the compiled passes write, and the name that people read."""

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
) = range(13)
"""Numbers, uint8. NONE: the record is valid."""

LATE: Final = "too-late"
CONTENT_DIFFERS: Final = "content-differs"
"""Of records that are dead-lettered by their verdict: the stream's settings ask for it."""

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
)
"""Names, by number. They stand in the header `ratchet-reason` of dead letters, so they never change."""
