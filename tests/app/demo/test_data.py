"""The excerpt the demo runs on: its totals are what its README and totals.json say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[3] / "app" / "demo" / "data"
FILES = sorted(path.name for path in DATA.glob("*.ndjson.gz"))


def events(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress((DATA / name).read_bytes()).splitlines()]


def totals() -> dict[str, dict[str, Any]]:
    read: dict[str, dict[str, Any]] = json.loads((DATA / "totals.json").read_text("utf-8"))
    return read


def test_every_file_has_its_totals_and_every_total_its_file() -> None:
    assert sorted(totals()) == FILES
    assert len(FILES) == 4


@pytest.mark.parametrize("name", FILES)
def test_totals_are_those_of_the_events(name: str) -> None:
    changes = events(name)
    assert {change["repository"] for change in changes} == {totals()[name]["repository"]}
    assert totals()[name] == {
        "repository": changes[0]["repository"],
        "events": len(changes),
        "added": sum(change["added"] for change in changes),
        "deleted": sum(change["deleted"] for change in changes),
        "paths": len({change["path"] for change in changes}),
    }


@pytest.mark.parametrize("name", FILES)
def test_sequence_rises_by_one_from_one(name: str) -> None:
    assert [change["sequence"] for change in events(name)] == list(range(1, totals()[name]["events"] + 1))


@pytest.mark.parametrize("name", FILES)
def test_readme_mirrors_the_totals(name: str) -> None:
    row = totals()[name]
    figures = " | ".join(f"{row[column]:,}" for column in ("events", "added", "deleted", "paths"))
    assert f"| {name} | {figures} |" in (DATA / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", FILES)
def test_compressed_without_time_and_file_name(name: str) -> None:
    header = (DATA / name).read_bytes()[:10]
    assert header[3] == 0, "flags: no name, no comment"
    assert header[4:8] == bytes(4), "modification time"


def test_small_enough_to_clone() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 300_000
