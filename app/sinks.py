"""Checks of several sinks in one settings file: their names, tables and metrics files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kafka_ratchet.app.settings_sections import SinkSettings
from kafka_ratchet.spark_sink.stores.registry import store_class

SINK_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
"""Pattern of a sink's name, which is its job's name unless the section names another."""

COMMANDS: Final = frozenset({"compact", "package", "replay", "resume", "run", "status", "vacuum"})
"""Commands of `ratchet sink`; no sink may have such a name."""


def with_job_names(sinks: Mapping[str, SinkSettings]) -> dict[str, SinkSettings]:
    """Return the sinks; one without a job name gets its section's name as job name.

    sinks: sections [sinks.NAME] by name

    Raises:
        ValueError: the name of a section is invalid.
    """
    for name in sinks:
        if not SINK_NAME.fullmatch(name):
            raise ValueError(f"sink name {name!r}: use a lower-case letter, then at most 62 of a-z, 0-9, '_' and '-'")
        if name in COMMANDS:
            raise ValueError(f"sink name {name!r}: `ratchet sink {name}` is a command. Choose another name")
    return {
        name: sink if "name" in sink.model_fields_set else sink.model_copy(update={"name": name})
        for name, sink in sinks.items()
    }


def require_apart(sinks: Mapping[str, SinkSettings], topic_of: Callable[[SinkSettings], str | None]) -> None:
    """Check that sinks have different names, and that no two fill one table from one topic.

    Args:
        sinks: all sinks by name; `[sink]` has its job's name.
        topic_of: function that returns the topic that a sink reads; None: the settings do not determine it.

    Raises:
        ValueError: two sinks have the same name or metrics file, or would write each record to the table twice.
    """
    tables: dict[tuple[object, ...], str] = {}
    files: dict[str, str] = {}
    known: dict[str, str] = {}
    for name, sink in sinks.items():
        for called in {name, sink.name}:
            if known.setdefault(called, name) != name:
                raise ValueError(
                    f"sinks {known[called]!r} and {name!r} both have the name {called!r}. The name of a section or of "
                    "its job must not be a name of another sink. Give one of them another name"
                )
        other = tables.setdefault((*table_of(sink), topic_of(sink)), name)
        if other != name:
            raise ValueError(
                f"sinks {other!r} and {name!r} write records of the same topic to the same table, so that each "
                "record would be there twice. Give one of them another table, path or stream"
            )
        if sink.metrics_file is not None and (other := files.setdefault(sink.metrics_file, name)) != name:
            raise ValueError(f"sinks {other!r} and {name!r} have the same metrics_file. Give each sink its own file")


def table_of(sink: SinkSettings) -> tuple[object, ...]:
    """Return a key, equal for two sinks that write the same table. It may contain passwords; never show it."""
    return (sink.store, *_place(sink))


def _place(sink: SinkSettings) -> Iterator[object]:
    kind = store_class(sink.store)
    if kind.needs_path:
        yield sink.path.rstrip("/") if "://" in sink.path else str(Path(sink.path).resolve())
        if not kind.has_tables:
            return
    else:
        yield _database("" if sink.url is None else sink.url.get_secret_value())
    yield sink.table
    yield tuple(sorted((name, value.get_secret_value()) for name, value in sink.catalog.items()))


def _database(url: str) -> object:
    try:
        parts = urlsplit(url)
        return (parts.hostname, parts.port or 5432, parts.path.strip("/")) if parts.hostname else url
    except ValueError:
        return url
