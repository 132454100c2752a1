"""Missing sequences: columns and sentences for `ratchet gaps`.

Separate module: each module of this package answers one question of an operator.
"""

from __future__ import annotations

from typing import Final

from kafka_ratchet.app.inspect.columns import Column
from kafka_ratchet.app.operations.gaps import Gap, Gaps
from kafka_ratchet.app.status.producers import shown

COLUMNS: Final = (
    Column[Gap](
        "identity", "Identity", "name", lambda row: shown(bytes.fromhex(row.identity_hex)), is_row_heading=True
    ),
    Column[Gap]("partition", "Partition"),
    # Sequences without separators, because an operator copies them into other commands.
    Column[Gap]("first", "First", "text", lambda row: str(row.first)),
    Column[Gap]("last", "Last", "text", lambda row: str(row.last)),
    Column[Gap]("seen", "Seen"),
    Column[Gap]("missing", "Missing", is_bad=True),
)


def missing_sentence(found: Gaps) -> str:
    """Return the sentence with the number of missing sequences of a stream."""
    if not found.missing:
        return f"{found.stream}: no sequence is missing"
    return f"{found.stream}: {found.missing:,} sequences are missing, of {found.identities:,} identities"
