"""Several streams in one settings file: their names, and that none of them writes what another one reads as its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kafka_ratchet.app.names import is_ratchets_own, repartition_topic
from kafka_ratchet.app.settings_sections import StreamSettings

STREAM_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def require_apart(streams: Mapping[str, StreamSettings]) -> None:
    """Refuse streams that read or write one topic where that cannot be meant.

    Raises:
        ValueError: two do, or a stream's name cannot be used.
    """
    readers, writers = dict[str, str](), dict[str, str]()
    for name, stream in streams.items():
        if not STREAM_NAME.fullmatch(name):
            raise ValueError(f"stream name {name!r}: use a lower-case letter, then letters, digits, '_' or '-'")
        if stream.input in readers:
            raise ValueError(f"streams {readers[stream.input]!r} and {name!r} read the same input {stream.input!r}")
        readers[stream.input] = name
        if stream.output in writers:
            other = writers[stream.output]
            raise ValueError(f"streams {other!r} and {name!r} write the same output {stream.output!r}")
        writers[stream.output] = name
    for name, stream in streams.items():
        if stream.dead_letters in writers:
            raise ValueError(
                f"the dead_letters of {name!r} are the output of {writers[stream.dead_letters]!r}: "
                f"{stream.dead_letters!r}. Give dead letters a topic without results in it"
            )
        if stream.duplicates in readers:
            raise ValueError(
                f"the duplicates of {name!r} are {stream.duplicates!r}, which {readers[stream.duplicates]!r} reads: "
                "dropped records would stand among its own. Give them a topic of their own"
            )
        others = {topic: other for other, its in streams.items() if other != name for topic in its.writes}
        if stream.duplicates in others:
            raise ValueError(
                f"the duplicates of {name!r} are {stream.duplicates!r}, which {others[stream.duplicates]!r} writes "
                "to as well. Give them a topic of their own"
            )


def require_not_our_own(app: str, streams: Mapping[str, StreamSettings]) -> None:
    """Refuse topics that Ratchet or Kafka writes for itself.

    Raises:
        ValueError: a stream has one.
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
