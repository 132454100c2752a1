"""Internal streams of a program (`group_by`): the settings that they have, and the topics that they read."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from kafka_ratchet.agents.program import App, StreamDefinition
from kafka_ratchet.app.names import is_repartition_topic, repartition_topic
from kafka_ratchet.app.settings import STREAM_NAME, Settings, StreamSettings
from kafka_ratchet.app.worker.topics import InternalInput, StreamTopics, prepare
from kafka_ratchet.errors import SettingsError


def with_steps(settings: Settings, program: App | None) -> Settings:
    """The settings with a section for each internal stream of a program, behind the streams that feed them.

    Raises:
        SettingsError: a section of the settings does not fit the program.
    """
    internal = {} if program is None else {name: each for name, each in program.streams.items() if each.topic}
    for name, stream in settings.streams.items():
        if is_repartition_topic(stream.input, settings.app) and name not in internal:
            raise SettingsError(
                f"streams.{name}: its input {stream.input} is filled by agents, and no program that is started here "
                "has an internal stream of that name: see `ratchet worker --app`"
            )
    if not internal:
        return settings
    streams = {name: stream for name, stream in settings.streams.items() if name not in internal}
    for name, definition in internal.items():
        assert definition.topic is not None  # noqa: S101 - it is internal
        definition.topic.name = repartition_topic(settings.app, name)
        given = settings.streams.get(name)
        stream = _made(settings, name, definition) if given is None else _checked(settings, name, given)
        _refuse_shared(name, stream, streams)
        streams[name] = stream
    return settings.model_copy(update={"streams": streams})


def _made(settings: Settings, name: str, definition: StreamDefinition) -> StreamSettings:
    if not STREAM_NAME.fullmatch(name):
        raise SettingsError(f"stream {name!r:.100}: use a lower-case letter, then letters, digits, '_' or '-'")
    parents = [settings.streams[each.name] for each in definition.fed_by if each.name in settings.streams]
    try:
        return StreamSettings(
            input=repartition_topic(settings.app, name),
            output=f"{settings.app}-{name}",
            dead_letters=f"{settings.app}-{name}-dead-letters",
            deduplicate=False,
            create_topics=True,
            replication=max((each.replication for each in parents or settings.streams.values()), default=1),
        )
    except ValidationError as error:
        raise SettingsError(f"stream {name}: {error.errors()[0]['msg']}") from None


def _checked(settings: Settings, name: str, given: StreamSettings) -> StreamSettings:
    topic = repartition_topic(settings.app, name)
    if given.input != topic:
        raise SettingsError(f"streams.{name}.input: the program says that it is internal. Write {topic!r}")
    if given.deduplicate:
        raise SettingsError(
            f"streams.{name}.deduplicate: its input is written in transactions: each record is there once, and has no "
            "sequence of its own. Remove it"
        )
    return given.model_copy(update={"deduplicate": False})


def _refuse_shared(name: str, stream: StreamSettings, others: Mapping[str, StreamSettings]) -> None:
    mine = {stream.output, stream.dead_letters}
    for other, its in others.items():
        if shared := mine & {its.output, its.dead_letters}:
            raise SettingsError(
                f"stream {name}: its topic {shared.pop()!r} is one of stream {other}. Write a section [streams.{name}] "
                f"with input = {stream.input!r} and an output and dead_letters of its own"
            )


def prepare_streams(bootstrap: str, settings: Settings, program: App | None) -> dict[str, StreamTopics]:
    """The topics of every stream; those of an internal one after those of the streams that feed it.

    Args:
        bootstrap: host:port[,host:port]
        settings: as `with_steps` has them
        program: whose internal streams there are; None: none

    Raises:
        RatchetError: as `prepare` raises it.
    """
    topics: dict[str, StreamTopics] = {}
    for name, stream in settings.streams.items():
        definition = program.streams.get(name) if program else None
        internal = None
        if definition is not None and definition.topic is not None:
            # What is sent there otherwise may come from any stream: as many partitions as the largest has.
            parents = [topics[each.name] for each in definition.fed_by] or list(topics.values())
            partitions = max(each.partitions for each in parents)
            if "partitions" in stream.model_fields_set:
                partitions = stream.partitions
            internal = InternalInput(partitions, max(each.dead_letters_limit for each in parents))
        topics[name] = prepare(bootstrap, settings, name, stream, internal)
    return topics
