"""The programs in the guides are programs: each page's Python runs, from its first block to its last."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from kafka_ratchet import App
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.results import result_stream, spec_of, topic_of
from kafka_ratchet.testing import run

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DATA = re.compile(r"^```(yaml|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ORDERS = [{"user": "ann", "amount": 3}, {"user": "ann", "amount": 4}]


@pytest.mark.parametrize("page", ["README.md", "docs/guide/from-faust.md", "docs/guide/from-kafka-streams.md"])
def test_the_program_of_a_guide_runs_and_adds_up(page: str) -> None:
    names: dict[str, object] = {"__name__": "guide"}
    for block in BLOCK.findall((ROOT / page).read_text("utf-8")):
        exec(compile(block, page, "exec"), names)  # noqa: S102 - ours
    app = names["app"]
    assert isinstance(app, App)
    assert run(app, {"orders": ORDERS}).values == [{"user": "ann", "total": 3}, {"user": "ann", "total": 7}]


def test_the_settings_of_each_kind_of_duplicates_are_settings() -> None:
    page = (ROOT / "docs/guide/kinds.md").read_text("utf-8")
    streams: dict[str, StreamSettings] = {}
    for block in TOML.findall(page):
        for name, section in tomllib.loads(block)["streams"].items():
            streams |= Settings(streams={name: section}).streams
    assert len(streams) >= 8
    told = {line.split("|")[2].strip() for line in page.splitlines() if line.startswith("| ")}
    own = {"header:id", "function:keys:trip"}  # the table says these in other words
    assert {f"`{stream.identity}`" for stream in streams.values() if str(stream.identity) not in own} <= told


def test_the_sinks_of_the_pages_are_accepted() -> None:
    topics = {"input": "orders.raw", "output": "orders.once", "dead_letters": "orders.dead-letters"}
    sinks = 0
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for text in TOML.findall(page.read_text("utf-8")):
            found = tomllib.loads(text)
            if not found.keys() & {"sink", "sinks"}:
                continue
            settings = Settings(**{"streams": {"orders": topics}} | found)
            for name in settings.every_sink():
                chosen = settings.of_sink(name)
                _, stream = result_stream(chosen)
                spec_of(chosen, topic_of(chosen, stream), "127.0.0.1:9092").pipeline().known_schema()
                sinks += 1
    assert sinks >= 15


def test_settings_and_manifests_of_the_pages_can_be_parsed() -> None:
    found = 0
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for kind, text in DATA.findall(page.read_text("utf-8")):
            parsed = tomllib.loads(text) if kind == "toml" else list(yaml.safe_load_all(text))
            assert parsed, (page, text)
            found += 1
    assert found >= 40


def test_no_file_of_the_repository_has_the_marks_of_a_conflict() -> None:
    marks = ["git", "grep", "-lIE", "^(<{7}|>{7})( |$)"]
    found = subprocess.run(marks, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.stdout.split(), found.stderr) == ([], "")
