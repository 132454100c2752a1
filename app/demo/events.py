"""Event files of the demo, and their true sums, computed by a plain loop without Ratchet."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka_ratchet.errors import SourceError

COLUMNS = "repository string, sequence long, commit string, committed_at long, path string, added long, deleted long"
"""Spark DDL of the events."""


@dataclass
class EventFile:
    """File to publish in the demo, with the true sums of its events."""

    path: Path
    producer: str
    events: int = 0
    added: Counter[str] = field(default_factory=Counter)
    deleted: Counter[str] = field(default_factory=Counter)


def excerpt() -> list[Path]:
    """Return the data files that come with Ratchet."""
    return sorted((Path(__file__).parent / "data").glob("*.ndjson.gz"))


def count(path: Path) -> EventFile:
    """Read a file once and add up its events' lines by repository.

    Raises:
        SourceError: the file cannot be read, or an event lacks repository, path, added or deleted.
    """
    found = EventFile(path, producer_name(path))
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                event = json.loads(line)
                try:
                    repository, added, deleted = str(event["repository"]), int(event["added"]), int(event["deleted"])
                    str(event["path"])
                except (KeyError, TypeError, ValueError):
                    raise SourceError(
                        f"{path}, line {number}: the demo needs events with repository, path, added and deleted, "
                        "and this line is not such an event. 'ratchet publish' takes any file"
                    ) from None
                found.events += 1
                found.added[repository] += added
                found.deleted[repository] += deleted
    except FileNotFoundError:
        raise SourceError(f"{path}: the file does not exist. Correct the path") from None
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SourceError(f"{path}: cannot be read as NDJSON: {error}") from None
    if not found.events:
        raise SourceError(f"{path}: has no events. Give a file with events")
    return found


def producer_name(path: Path) -> str:
    """Return a producer's name for a file: the file's name without its endings."""
    return re.sub(r"(\.(ndjson|jsonl|json|gz))+$", "", path.name)
