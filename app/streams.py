"""Several streams in one settings file: their names, and that none of them writes what another one reads as its own."""

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
            raise ValueError(f"stream name {name!r}: use a lower-case letter, then letters, digits, '_' or '-'")
        if stream.input in readers:
            raise ValueError(
                f"streams {readers[stream.input]!r} and {name!r} read the same input {stream.input!r}. Remove one "
                "of them"
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
                f"the dead_letters of {name!r} are the output of {writers[stream.dead_letters]!r}: "
                f"{stream.dead_letters!r}. Give dead letters a topic without results in it"
            )
        if stream.duplicates in readers:
            raise ValueError(
                f"the duplicates of {name!r} are {stream.duplicates!r}, the input of "
                f"{readers[stream.duplicates]!r}, which would read dropped records. Name another topic for "
                "duplicates"
            )
        others = {topic: other for other, its in streams.items() if other != name for topic in its.writes}
        if stream.duplicates in others:
            raise ValueError(
                f"the duplicates of {name!r} are {stream.duplicates!r}, which {others[stream.duplicates]!r} also "
                "writes. Name another topic for duplicates"
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
                    f"the {part} of {name!r} is {topic!r}, which Ratchet or Kafka writes for itself. Name another topic"
                )
