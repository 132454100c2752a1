"""Question about one record.

The page reads it from its address, and shows the `ratchet why` command that asks the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import NamedTuple

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.lookup import QueryError, parse_offset, parse_partition, parse_parts, parse_sequence
from kafka_ratchet.rule.identity import Identity


class Question(NamedTuple):
    """Question about a record, by topic, partition and offset, or about an identity's records.

    sequence, partition: None: any
    """

    stream: str
    identity: bytes | None = None
    sequence: int | None = None
    partition: int | None = None
    topic: str | None = None
    offset: int | None = None

    @property
    def command(self) -> str:
        """Return the command line of `ratchet why` for the same question, quoted for a shell."""
        words = ["ratchet", "why", "--stream", self.stream]
        if self.topic is not None:
            words += ["--topic", self.topic]
        elif self.identity is not None:
            words += identity_words(self.identity)
        numbers = {"--sequence": self.sequence, "--partition": self.partition, "--offset": self.offset}
        words += [word for name, number in numbers.items() if number is not None for word in (name, str(number))]
        return shlex.join(words)


def identity_words(identity: bytes) -> list[str]:
    """Return the option of `ratchet why` for an identity: text if a terminal can print it, else hex."""
    try:
        text = identity.decode()
    except UnicodeDecodeError:
        text = ""
    if not identity or (text and text.isprintable() and not text.startswith("[")):
        return ["--identity", text]
    return ["--identity-hex", identity.hex()]


def stream_asked(settings: Settings, stream: str | None, topic: str | None) -> tuple[str, StreamSettings]:
    """Return name and settings of a question's stream.

    stream: name of the stream; None: the only stream with the topic `topic`, or the only stream of the settings.
    topic: topic in the question; None: the question names no topic.

    Raises:
        SettingsError: the stream does not exist, or several are possible.
    """
    with_topic = [
        name for name, each in settings.streams.items() if topic in (each.input, each.output, each.dead_letters)
    ]
    return settings.stream(with_topic[0] if stream is None and len(with_topic) == 1 else stream)


def question_of(settings: Settings, asked: Mapping[str, str]) -> Question | None:
    """Return the question in the parameters of a page's address; None if the address has none.

    asked: the parameters stream, producer, identity, hex, sequence, topic, partition and offset

    Raises:
        SettingsError: the stream does not exist.
        QueryError: the parameters do not name one record or identity.
    """
    said = {name: text for name, text in asked.items() if text}
    is_form = "identity" in asked and "hex" in asked
    if not said.keys() - {"stream"} and (is_form or not {"identity", "hex"} & asked.keys()):
        return None
    name, stream = stream_asked(settings, said.get("stream"), said.get("topic"))
    sequence = parse_sequence(said.get("sequence", "").strip())
    partition = parse_partition(said.get("partition", "").strip())
    offset = parse_offset(said.get("offset", "").strip())
    is_empty_key = stream.identity == Identity.KEY and ("identity" in asked) != ("hex" in asked)
    if is_empty_key and not asked.get("producer"):
        said.setdefault("identity" if "identity" in asked else "hex", "")
    names = [said[each] for each in ("producer", "identity", "hex") if each in said]
    if "topic" in said or offset is not None:
        if "topic" not in said or partition is None or offset is None:
            raise QueryError("topic, partition and offset go together: give all three")
        if names or sequence is not None:
            raise QueryError("topic, partition and offset name one record: leave out identity and sequence")
        return Question(name, partition=partition, topic=said["topic"], offset=offset)
    if stream.identity == Identity.PARTITION:
        if names or partition is None:
            raise QueryError(f"stream {name!r} has one sequence for each partition: give partition and sequence only")
        return Question(name, None, sequence, partition)
    if len(names) != 1:
        raise QueryError(
            "name the record in one way: by its producer, by its identity as text, by its identity in hex, or by its "
            "topic, partition and offset"
        )
    if "producer" in said and stream.identity != Identity.PRODUCER:
        raise QueryError(f"the identity of stream {name!r} is {stream.identity}, and not the producer: give identity")
    texts = [] if "hex" in said else names
    return Question(name, parse_parts(stream.identity, texts, said.get("hex")), sequence, partition)
