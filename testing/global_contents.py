"""What global tables have while a program runs without Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka_ratchet.agents.program import App
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.tables.values.global_table import Contents


@contextmanager
def global_contents(app: App, given: Mapping[str, Mapping[Any, Any]]) -> Iterator[None]:
    """Give the program's global tables their content; those that are not named are empty.

    Raises:
        SettingsError: one is not a global table of the program.
        TableError: a key or value is not of the table's type.
    """
    for name in given:
        if name not in app.global_tables:
            what = "one of agents, which begins empty" if name in app.tables else "none of the program's"
            raise SettingsError(
                f"tables: {name!r} is {what}; its global tables are {', '.join(app.global_tables) or 'none'}"
            )
    before = {name: table.contents for name, table in app.global_tables.items()}
    try:
        for name, table in app.global_tables.items():
            table.contents = Contents(1, table.most, name)
            for key, value in given.get(name, {}).items():
                table.contents.put(0, table.key_bytes(key), table.value_bytes(value))
        yield
    finally:
        for name, table in app.global_tables.items():
            table.contents = before[name]
