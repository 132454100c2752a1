"""Conversion of a stream's settings into the options of its maps of last sequences."""

from __future__ import annotations

from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.rule.windows import Kept


def kept_of(stream: StreamSettings) -> Kept:
    """Return the options of the stream's maps; see `Kept`."""
    return Kept(stream.reorder_window, stream.conflicts != "ignore", stream.dense)
