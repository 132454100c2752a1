"""The agents that a lane of the model runs, where it has some, and a plain reading of what they give.

What an agent does about a record goes by the length of its value. `counts` has plain numbers under raw keys, `lasts`
values that can be changed in place, `seen` is written by a second agent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from kafka_ratchet import App
from kafka_ratchet.errors import TableError
from tests.transport.memory_log import Record

COUNTED, FORWARDED, SILENT, WAITED, DELETED, FAILED, NULL = range(7)
"""Lengths of values, and what becomes of such a record."""
WAIT_S = 0.03
"""About a commit interval."""
LATE_S = 0.5
"""Seconds for which a run tidies up."""
AWAKE: ContextVar[asyncio.Event] = ContextVar("awake")
"""Clear: the agents of this worker stand still."""

app = App()
records = app.stream("records", value_type=bytes)
counts = app.Table("counts", default=int, key_type=bytes)
lasts = app.Table("lasts", default=list)
seen = app.Table("seen", default=int, key_type=int)
TABLES = (counts, lasts, seen)


def name_of(value: bytes) -> bytes:
    """Return the name under which a value is counted."""
    return b"%d" % (value[0] % 3) if value else b""


@app.agent(records, on_error="dead-letter")
async def count(stream: Any) -> AsyncIterator[Any]:
    try:
        async for event in stream.events():
            name, what = name_of(event.value), len(event.value)
            counts[name] += 1
            mutable = lasts[name.decode()]
            mutable.append(event.offset)
            lasts[name.decode()] = mutable[-3:]
            if what == WAITED:
                await asyncio.sleep(WAIT_S)
            await AWAKE.get().wait()
            if what == FORWARDED:
                yield event
            elif what == DELETED:
                yield b"%d" % counts.pop(name)
            elif what == NULL:
                yield None
                yield b"after a null"
            elif what != SILENT:
                yield b"%d" % counts[name]
            if what == FAILED:
                raise ValueError(name)
    except asyncio.CancelledError:
        # Its transaction was rolled back, and it goes on all the same.
        with suppress(TableError):
            counts[b"0"] += 100
        yield b"late"
        await asyncio.sleep(LATE_S)
        yield b"later"
        async for _ in stream:
            counts[b"0"] += 100


@app.agent(records)
async def witness(stream: Any) -> None:
    async for value in stream:
        seen[len(value)] += 1


class Plain:
    """The same, one record after the other."""

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self.lasts: dict[str, list[int]] = {}
        self.seen: dict[int, int] = {}
        self.failed: list[Record] = []
        """Records that leave nothing but a dead letter."""

    def take(self, offset: int, record: Record) -> list[Record]:
        """Returns the outputs of a record."""
        value = record.value or b""
        name, what = name_of(value), len(value)
        self.seen[what] = self.seen.get(what, 0) + 1
        if what == FAILED:
            self.failed.append(record)
            return []
        self.counts[name] = self.counts.get(name, 0) + 1
        self.lasts[name.decode()] = [*self.lasts.get(name.decode(), []), offset][-3:]
        number = b"%d" % self.counts[name]
        if what == DELETED:
            del self.counts[name]
        outputs: dict[int, list[bytes | None]] = {NULL: [None, b"after a null"], SILENT: []}
        if what == FORWARDED:
            return [record]
        return [Record(record.key, each, ()) for each in outputs.get(what, [number])]

    @property
    def tables(self) -> dict[str, dict[Any, Any]]:
        """Return the contents of each table."""
        return {"counts": self.counts, "lasts": self.lasts, "seen": self.seen}

    @property
    def entries(self) -> dict[bytes, bytes]:
        """Return the tables' entries in the changelog."""
        keys: dict[str, Callable[[Any], bytes]] = {"counts": bytes, "lasts": _json, "seen": _json}
        return {
            b"t" + bytes([len(name)]) + name.encode() + keys[name](key): _json(value)
            for name, table in self.tables.items()
            for key, value in table.items()
        }


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
