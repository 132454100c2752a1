"""Checks of several streams in one settings file: their names, and the topics that they share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kafka_ratchet.app.names import is_ratchets_own, repartition_topic
from kafka_ratchet.app.settings_sections import StreamSettings

STREAM_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def require_apart(streams: Mapping[str, StreamSettings]) -> None:
    """Check that no two streams use a topic in conflicting ways.

    Raises:
        ValueError: two streams conflict, or a stream's name is invalid.
    """
    readers, writers = dict[str, str](), dict[str, str]()
    for name, stream in streams.items():
        if not STREAM_NAME.fullmatch(name):
            raise ValueError(f"stream name {name!r}: use a lower-case letter, then at most 62 of a-z, 0-9, '_' and '-'")
        if stream.input in readers:
            raise ValueError(
                f"streams {readers[stream.input]!r} and {name!r} read the same input {stream.input!r}. Remove one "
                "of the two streams"
            )
        readers[stream.input] = name
        if stream.output in writers:
            other = writers[stream.output]
            raise ValueError(
                f"streams {other!r} and {name!r} write the same output {stream.output!r}. Give one of them another "
                "output"
            )
        writers[stream.output] = name
    for name, stream in streams.items():
        if stream.dead_letters in writers:
            raise ValueError(
                f"dead_letters of stream {name!r} is {stream.dead_letters!r}, the output of stream "
                f"{writers[stream.dead_letters]!r}. Name another topic for dead letters"
            )
        if stream.duplicates in readers:
            raise ValueError(
                f"duplicates of stream {name!r} is {stream.duplicates!r}, the input of stream "
                f"{readers[stream.duplicates]!r}, which would read the dropped records. Name another topic for "
                "duplicates"
            )
        others = {topic: other for other, its in streams.items() if other != name for topic in its.writes}
        if stream.duplicates in others:
            raise ValueError(
                f"duplicates of stream {name!r} is {stream.duplicates!r}, which stream "
                f"{others[stream.duplicates]!r} writes too. Name another topic for duplicates"
            )


def require_not_our_own(app: str, streams: Mapping[str, StreamSettings]) -> None:
    """Check that streams do not use topics that Ratchet or Kafka writes for itself.

    Raises:
        ValueError: a stream uses such a topic.
    """
    for name, stream in streams.items():
        for part in ("input", "output", "dead_letters", "duplicates"):
            topic = getattr(stream, part)
            if topic is None:
                continue
            if part == "input" and topic == repartition_topic(app, name):
                continue  # an internal stream of a program, with an optional section here
            if is_ratchets_own(topic, app, list(streams)):
                raise ValueError(
                    f"{part} of stream {name!r} is {topic!r}, a topic that Ratchet or Kafka writes for its own use. "
                    "Name another topic"
                )
