"""Events that arrive more than once count exactly once: from the producer to the result table.

Each public name is imported at its first use, so that a program with only a producer does not load an engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kafka_ratchet.agents.event import Event
    from kafka_ratchet.agents.program import App
    from kafka_ratchet.app import create_app
    from kafka_ratchet.app.settings import Settings, load
    from kafka_ratchet.errors import RatchetError
    from kafka_ratchet.producers import (
        AsyncProducer,
        FileSource,
        Producer,
        Source,
        StreamSource,
        publish,
    )
    from kafka_ratchet.rule.extraction import Record
    from kafka_ratchet.transport.publishing.producer import BatchProducer

_WHERE: Final = {
    "App": "agents.program",
    "AsyncProducer": "producers",
    "BatchProducer": "transport.publishing.producer",
    "Event": "agents.event",
    "FileSource": "producers",
    "Producer": "producers",
    "RatchetError": "errors",
    "Record": "rule.extraction",
    "Settings": "app.settings",
    "Source": "producers",
    "StreamSource": "producers",
    "create_app": "app",
    "load": "app.settings",
    "publish": "producers",
}

__all__ = [
    "App",
    "AsyncProducer",
    "BatchProducer",
    "Event",
    "FileSource",
    "Producer",
    "RatchetError",
    "Record",
    "Settings",
    "Source",
    "StreamSource",
    "create_app",
    "load",
    "publish",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("kafka_ratchet.app.version").ratchet_version()
    if name not in _WHERE:
        raise AttributeError(f"module 'kafka_ratchet' has no attribute {name!r}")
    try:
        module = import_module(f"kafka_ratchet.{_WHERE[name]}")
    except ModuleNotFoundError as error:
        from kafka_ratchet.app.extras import missing_extra

        if sentence := missing_extra(error):
            error.add_note(f"kafka_ratchet.{name}: {sentence}")
        raise
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
