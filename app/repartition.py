"""`repartition_by`: two streams in place of one, so that an identity is judged in one partition.

The records of a stream S arrive in any partition. The stream `S-arrivals` sends each of them, byte for byte, to the
partition of an internal topic that its identity gives, in the transaction of the input's offsets: so each is there
exactly once. S judges the records there. The topic may have more partitions than the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafka_ratchet.app.names import is_repartition_topic, repartition_topic
from kafka_ratchet.app.settings_sections import StreamSettings
from kafka_ratchet.errors import SettingsError

ARRIVALS: Final = "-arrivals"
NAME_MOST: Final = 63
"""Characters of a stream's name: `kafka_ratchet.app.streams.STREAM_NAME`."""


class Arrivals(StreamSettings):
    """Internal stream that sends another stream's records to the partitions of their identities.

    of: name of the other stream
    to_partitions: number of partitions of the target topic; None: as many as the input has
    """

    of: str
    to_partitions: int | None = None

    @property
    def rule(self) -> dict[str, str]:
        """Return the settings that must not change while the partition has state."""
        return {"identity": str(self.identity), "sends_to": self.output}


def arrivals_of(name: str) -> str:
    """Return the name of the internal stream that sends a stream's records to their partitions."""
    return name + ARRIVALS


def repartitioned(app: str, streams: Mapping[str, StreamSettings]) -> dict[str, StreamSettings]:
    """Return the streams, with each stream that sets `repartition_by` split in two. Idempotent.

    Raises:
        SettingsError: the name of an internal stream or topic is already used.
    """
    made: dict[str, StreamSettings] = {}
    for name, stream in streams.items():
        other, topic = arrivals_of(name), repartition_topic(app, name)
        if stream.repartition_by is None or isinstance(streams.get(other), Arrivals):
            made[name] = stream
            continue
        if is_repartition_topic(stream.input, app):
            raise SettingsError(
                f"streams.{name}.input is {stream.input!r}, a topic that Ratchet itself fills. Name the topic of "
                "the published records; repartition_by does the rest"
            )
        if other in streams or len(other) > NAME_MOST:
            raise SettingsError(
                f"streams.{name}.repartition_by: Ratchet adds a stream {other!r}, which sends the records to their "
                "partitions, and "
                + (f"{other} is already a stream of the settings" if other in streams else "that name is too long")
                + ". Give one of the two another name"
            )
        letters = f"{app}-{other}-dead-letters"
        if taken := {letters} & {each for its in streams.values() for each in (its.input, *its.writes)}:
            raise SettingsError(
                f"streams.{name}.repartition_by: records without a known target partition go to {taken.pop()!r}, which "
                "is already a topic of the settings. Name another topic there"
            )
        made[other] = Arrivals(
            of=name,
            input=stream.input,
            output=topic,
            dead_letters=letters,
            identity=stream.identity,
            deduplicate=False,
            create_topics=stream.create_topics,
            compression=stream.compression,
            partitions=stream.partitions,
            to_partitions=stream.partitions if "partitions" in stream.model_fields_set else None,
            replication=stream.replication,
        )
        made[name] = stream.model_copy(update={"input": topic})
    return made


def judging(streams: Mapping[str, StreamSettings]) -> dict[str, StreamSettings]:
    """Return the streams without internal ones that only send records to another stream."""
    return {name: stream for name, stream in streams.items() if not isinstance(stream, Arrivals)}


def arrives_in(streams: Mapping[str, StreamSettings], name: str) -> str:
    """Return the topic that a stream's records are published to."""
    other = streams.get(arrivals_of(name))
    return other.input if isinstance(other, Arrivals) else streams[name].input
