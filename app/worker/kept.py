"""Options of the maps that keep a stream's last sequences, made from the stream's settings."""

from __future__ import annotations

from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.rule.windows import StateOptions


def kept_of(stream: StreamSettings) -> StateOptions:
    """Return the options of the maps with the stream's last sequences; see `StateOptions`."""
    return StateOptions(stream.reorder_window, stream.conflicts != "ignore", stream.dense)
