"""Internal streams of a program (`group_by`), as the workers tell of them: settings need no section for them."""

from __future__ import annotations

from pydantic import ValidationError

from kafka_ratchet.app.names import repartition_topic
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.answers import TableStatus
from kafka_ratchet.app.streams import STREAM_NAME


def with_internal(settings: Settings, told: TableStatus) -> Settings | None:
    """The settings with a section for a stream that a worker serves; None where it is no internal one of theirs."""
    if not STREAM_NAME.fullmatch(told.stream) or told.input != repartition_topic(settings.app, told.stream):
        return None
    try:
        stream = StreamSettings(input=told.input, output=told.output, dead_letters=told.dead_letters, deduplicate=False)
    except ValidationError:
        return None
    return settings.model_copy(update={"streams": {**settings.streams, told.stream: stream}})
