"""`repartition_by`: splits a stream in two, so that all records of an identity are judged in one partition.

The records of an identity may arrive in several partitions of the input. The internal stream `S-arrivals` copies each
record of stream S, byte for byte, to the partition of an internal topic that the record's identity determines.
It commits the copy and the input's offset in one transaction, so the internal topic has each record exactly once.
Stream S then reads and judges the internal topic, which may have more partitions than the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafka_ratchet.app.names import is_repartition_topic, repartition_topic
from kafka_ratchet.app.settings_sections import StreamSettings
from kafka_ratchet.errors import SettingsError

ARRIVALS: Final = "-arrivals"
NAME_MOST: Final = 63
"""Maximum number of characters of a stream's name, as in `kafka_ratchet.app.streams.STREAM_NAME`."""


class RepartitionSettings(StreamSettings):
    """Internal stream that copies another stream's records to the partitions of their identities.

    of: name of the other stream, which judges the copies
    to_partitions: number of partitions of the target topic; None: as many as the input has
    """

    of: str
    to_partitions: int | None = None

    @property
    def rule(self) -> dict[str, str]:
        """Return the settings that must not change while a partition of this stream has state."""
        return {"identity": str(self.identity), "sends_to": self.output}


def arrivals_of(name: str) -> str:
    """Return the name of the internal stream that sends a stream's records to their partitions."""
    return name + ARRIVALS


def repartitioned(app: str, streams: Mapping[str, StreamSettings]) -> dict[str, StreamSettings]:
    """Return the streams, with each stream that sets `repartition_by` split in two.

    A stream split by an earlier call stays as it is.

    Raises:
        SettingsError: the name of an internal stream or topic is too long or already used; or a stream with
            `repartition_by` reads a topic that Ratchet fills.
    """
    made: dict[str, StreamSettings] = {}
    for name, stream in streams.items():
        other, topic = arrivals_of(name), repartition_topic(app, name)
        if stream.repartition_by is None or isinstance(streams.get(other), RepartitionSettings):
            made[name] = stream
            continue
        if is_repartition_topic(stream.input, app):
            raise SettingsError(
                f"streams.{name}.input is {stream.input!r}, a topic that Ratchet itself fills. Set input to the topic "
                "that producers publish to; with repartition_by, Ratchet creates and fills the other topic"
            )
        if other in streams or len(other) > NAME_MOST:
            raise SettingsError(
                f"streams.{name}.repartition_by: Ratchet adds an internal stream {other!r} for this stream, and "
                + (
                    f"the settings already have a stream of that name. Rename {name!r} or {other!r}"
                    if other in streams
                    else f"that name is longer than {NAME_MOST} characters. Give {name!r} a shorter name"
                )
            )
        letters = f"{app}-{other}-dead-letters"
        if taken := {letters} & {each for its in streams.values() for each in (its.input, *its.writes)}:
            raise SettingsError(
                f"streams.{name}.repartition_by: Ratchet writes records without a valid identity to the topic "
                f"{taken.pop()!r}, which another setting names too. Give that setting another topic"
            )
        made[other] = RepartitionSettings(
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
    """Return the streams that judge records, without the internal ones that only copy records to another stream."""
    return {name: stream for name, stream in streams.items() if not isinstance(stream, RepartitionSettings)}


def is_judged(stream: StreamSettings, app: str) -> bool:
    """Return True if workers can judge the stream's records.

    They never judge a program's internal stream: agents write its input in transactions, without sequences. Its section
    in the settings file need not show this, so commands, which read only the file, call this function.
    """
    if isinstance(stream, RepartitionSettings):
        return False
    return stream.repartition_by is not None or not is_repartition_topic(stream.input, app)


def arrives_in(streams: Mapping[str, StreamSettings], name: str) -> str:
    """Return the topic that producers publish a stream's records to.

    streams: all streams, after `repartitioned`; name: the stream that judges the records
    """
    other = streams.get(arrivals_of(name))
    return other.input if isinstance(other, RepartitionSettings) else streams[name].input
