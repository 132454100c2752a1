"""GET /settings: name, value and origin of every setting. Secrets are never shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, SecretStr

from kafka_ratchet.app.repartition import RepartitionSettings
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.web.readings import answer
from kafka_ratchet.app.web.render import SETTINGS, plain
from kafka_ratchet.spark_sink.secrets import HIDDEN, WORDS, hidden

ORIGINS = web.AppKey("origins", Mapping[str, str])

IN_URL: Final = re.compile(r"(://)[^/@\s]*@")
"""Pattern of user and password in a URL."""


async def settings_page(request: web.Request) -> web.StreamResponse:
    """Return the page with the effective settings."""

    async def ask(asked: dict[str, str]) -> dict[str, Any]:
        return {"settings": rows(request.app[SETTINGS], request.app[ORIGINS])}

    return await answer(request, "settings.html", ask)


def rows(settings: Settings, origins: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return name, value and origin of each setting. Values are texts, masked if secret; None: not set."""
    return [
        {"name": name, "value": value, "origin": origins.get(name, "default")} for name, value in _leaves(settings, "")
    ]


def _leaves(found: Any, name: str) -> Iterator[tuple[str, str | None]]:
    prefix = f"{name}." if name else ""
    if isinstance(found, BaseModel):
        for each in type(found).model_fields:
            yield from _leaves(getattr(found, each), f"{prefix}{each}")
    elif isinstance(found, Mapping) and found:
        for each, value in found.items():
            if isinstance(value, RepartitionSettings):
                continue  # made of another stream, not a setting
            if name == "kafka":
                yield f"{prefix}{each}", _masked(value) if each in WORDS else HIDDEN
            else:
                yield from _leaves(value, f"{prefix}{each}")
    else:
        yield name, _text(found)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple, Mapping)):
        return ", ".join(_masked(each) for each in value)
    return _masked(value)


def _masked(value: Any) -> str:
    return HIDDEN if isinstance(value, SecretStr) else plain(hidden(IN_URL.sub(rf"\1{HIDDEN}@", str(value))))
