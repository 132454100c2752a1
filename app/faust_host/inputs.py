"""Search for the topics, steps and tables of an agent: in its options, a probe run, and its function's code."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from functools import partial
from itertools import compress
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from faust.channels import Channel
from faust.tables.sets import SetTableManager
from faust.tables.wrappers import WindowWrapper
from faust.topics import Topic
from faust.types.tables import CollectionT
from mode.utils.times import want_seconds

from kafka_ratchet.agents.topic import TopicOptions
from kafka_ratchet.app.faust_host.refusals import is_library
from kafka_ratchet.app.faust_host.stream import LaneChannel, ProbeEnded, RepartitionStep, stream_for
from kafka_ratchet.errors import SettingsError

STEPS: Final = frozenset({"group_by", "through"})
CONTAINERS: Final = (dict, list, tuple, set)
SEARCHED: Final = (CollectionT, WindowWrapper, FunctionType, MethodType, partial)
"""Types of containers' items to search, because such an item may be a table or lead to one."""
DEPTH_MOST: Final = 12
"""Maximum number of nested calls from an agent to the function that uses a table."""


def place_of(function: Any) -> str:
    """Return the place of a function's first line, as "file.py:12"."""
    function = function_of(function)
    code = getattr(function, "__code__", None)
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}" if code else repr(function)


def sources_of(app: Any) -> list[Path]:
    """Return the source files of an app's agents."""
    functions = (function_of(agent.fun) for agent in app.agents.values())
    found = {each.__code__.co_filename for each in functions if hasattr(each, "__code__")}
    return [path for path in map(Path, sorted(found)) if path.is_file()]


def topics_of(agent: Any) -> dict[str, Any]:
    """Return an agent's topics by name, each as an object that decodes the topic's records.

    Raises:
        SettingsError: the agent reads a pattern of topics, or a channel in memory.
    """
    channel = agent.channel
    where = f"{place_of(agent.fun)}: agent {agent.name}"
    if not isinstance(channel, Topic):
        raise SettingsError(
            f"{where}: reads a channel in memory, and its records are lost when the worker ends. Give the agent a topic"
        )
    if channel.pattern:
        raise SettingsError(
            f"{where}: reads topics by the pattern {channel.pattern.pattern!r}, but Ratchet must know the topics "
            "before it starts. Name the topics"
        )
    return dict.fromkeys(channel.topics, channel)


async def steps_of(agent: Any) -> list[RepartitionStep]:
    """Find the steps (`group_by`, `through`) of an agent, by running its function up to the first event.

    A function with neither method in its code is not called.
    """
    if not any(STEPS & set(code.co_names) for code in _codes(function_of(agent.fun))):
        return []
    stream = stream_for(agent.app, LaneChannel(agent.app, None, topics_of(agent)))
    stream.steps = []
    made = agent.fun(stream)
    try:
        if inspect.isasyncgen(made):
            await anext(made)
        else:
            await made
    except ProbeEnded:
        return stream.steps
    raise SettingsError(
        f"{place_of(agent.fun)}: agent {agent.name} returns before it reads its first event. Read the stream with "
        "`async for`"
    )


def function_of(found: Any) -> Any:
    """Return the program's own function, found inside a bound method, a `functools.partial` or a wrapper."""
    while isinstance(found, partial):
        found = found.func
    return inspect.unwrap(getattr(found, "__func__", found))


def _codes(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function, and of functions defined inside it."""
    code = getattr(function, "__code__", None)
    left = [code] if code else []
    while left:
        yield (code := left.pop())
        left += [const for const in code.co_consts if isinstance(const, CodeType)]


def tables_of(function: Any) -> set[Any]:
    """Return the tables that a function uses, directly or through functions of the same program."""
    found: set[Any] = set()
    _search(function, found, set(), DEPTH_MOST)
    return found


def _search(value: Any, found: set[Any], seen: set[int], depth: int) -> None:
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    if isinstance(value, WindowWrapper):
        if value.key_index_table is not None:
            found.add(value.key_index_table)
        value = value.table
    if isinstance(value, CollectionT):
        found.add(value)
        _search(getattr(value, "_on_window_close", None), found, seen, depth - 1)
        return
    if isinstance(value, partial):
        for each in (value.func, *value.args, *value.keywords.values()):
            _search(each, found, seen, depth - 1)
        return
    owner = getattr(value, "__self__", None)
    if isinstance(owner, SetTableManager):
        found.add(owner.set_table)
    elif owner is not None and not isinstance(owner, ModuleType) and not inspect.isbuiltin(value):
        _search_object(owner, found, seen, depth)
    function = function_of(value)
    if isinstance(function, FunctionType) and not is_library(function.__code__.co_filename):
        for each in _named(function):
            _search(each, found, seen, depth - 1)
    elif not isinstance(value, (type, ModuleType)) and _is_of_program(type(value)):
        _search_object(value, found, seen, depth)
    elif isinstance(value, type) and _is_of_program(value):
        for each in vars(value).values():
            _search(getattr(each, "__func__", each), found, seen, depth - 1)


def _search_object(value: Any, found: set[Any], seen: set[int], depth: int) -> None:
    for each in [*getattr(value, "__dict__", {}).values(), *vars(type(value)).values()]:
        if isinstance(each, (CollectionT, WindowWrapper, FunctionType)):
            _search(each, found, seen, depth - 1)


def _is_of_program(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    path = getattr(module, "__file__", None)
    return path is not None and not is_library(path)


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield the objects named in a function's code.

    They are globals, attributes of modules and objects, and variables of its closure.
    """
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if isinstance(value, CONTAINERS):
            yield from (each for each in _items(value) if isinstance(each, SEARCHED))
        else:
            yield value
    for code in _codes(function):
        names = code.co_names
        for name in names:
            value = function.__globals__.get(name)
            if value is None:
                continue
            if isinstance(value, CONTAINERS):
                yield from (each for each in _items(value) if isinstance(each, SEARCHED))
            elif isinstance(value, ModuleType):
                yield from (vars(value)[each] for each in names if each in vars(value) and not is_library_module(value))
            else:
                yield value


def is_library_module(module: ModuleType) -> bool:
    """Return True if a module does not belong to the user's program."""
    path = getattr(module, "__file__", None)
    return path is None or is_library(path)


def _items(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value)


def find_topics(app: Any) -> dict[str, Any]:
    """Return every topic object of an app, by topic name.

    The topics are searched in Python's memory, because Faust keeps no list of them.
    """
    found = [each for each in _in_memory(Topic) if each.app is app and not each.pattern]
    return {name: topic for topic in found for name in topic.topics}


def options_of(app: Any) -> dict[str, TopicOptions]:
    """Return the options of an app's topics by name, as Faust's transport would create them.

    Where several objects have one name, each option comes from one that sets it. The configuration of the changelogs
    that Faust makes for tables is left to Ratchet.
    """
    made = {table._changelog_topic_name() for table in app.tables.values()}
    found: dict[str, TopicOptions] = {}
    for topic in _in_memory(Topic):
        if topic.app is not app or topic.pattern:
            continue
        for name in topic.topics:
            before = found.get(name, TopicOptions())
            found[name] = TopicOptions(
                topic.partitions or before.partitions,
                topic.replicas or before.replication,
                {} if name in made and topic.internal else {**before.config, **_config_of(topic)},
            )
    return found


def _config_of(topic: Topic) -> dict[str, str]:
    """Return a topic's configuration by Kafka's names, from its options."""
    policies = [name for name, is_on in (("compact", topic.compacting), ("delete", topic.deleting)) if is_on]
    config: dict[str, Any] = {"cleanup.policy": ",".join(policies)} if policies else {}
    if topic.retention:
        config["retention.ms"] = int(want_seconds(topic.retention) * 1000)
    config |= topic.config
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in config.items()}


def find_channels(app: Any) -> list[Channel]:
    """Return every in-memory channel of an app, from a search of Python's memory."""
    return [each for each in _in_memory(Channel) if type(each) is Channel and each.app is app]


def find_wrappers(app: Any) -> list[WindowWrapper]:
    """Return every window wrapper of an app's tables, from a search of Python's memory."""
    return [each for each in _in_memory(WindowWrapper) if each.table.app is app]


def _in_memory(kind: type) -> list[Any]:
    """Return every object of a class and its subclasses.

    Classes are compared once and not for each object: a large process has a million objects.
    """
    objects = gc.get_objects()
    kinds = {each for each in set(map(type, objects)) if issubclass(each, kind)}
    return list(compress(objects, map(kinds.__contains__, map(type, objects))))
