"""Settings files for the tests of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_ratchet.app.settings import load
from kafka_ratchet.errors import SettingsError

STREAM = """
[streams.events]
input = "events"
output = "events-once"
dead_letters = "events-invalid"
"""


def written(tmp_path: Path, toml: str, name: str = "settings.toml") -> Path:
    path = tmp_path / name
    path.write_text(toml, "utf-8")
    return path


def refusal(tmp_path: Path, toml: str = "", **overrides: Any) -> str:
    with pytest.raises(SettingsError) as raised:
        load(written(tmp_path, toml), **overrides)
    return str(raised.value)


def other_stream(**topics: str) -> str:
    given = {"input": "more", "output": "more-once", "dead_letters": "more-invalid"} | topics
    return STREAM + "[streams.more]\n" + "\n".join(f'{name} = "{topic}"' for name, topic in given.items())
