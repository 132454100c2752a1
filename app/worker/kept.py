"""What a stream's settings have remembered of an identity beside its last sequence."""

from __future__ import annotations

from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.rule.windows import Kept


def kept_of(stream: StreamSettings) -> Kept:
    """For its maps; see `Kept`."""
    return Kept(stream.reorder_window, stream.conflicts != "ignore", stream.dense)
