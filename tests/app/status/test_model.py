"""Sentences about a stream, in addition to its figures."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_ratchet.app.cli.tables import _stream_table
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.answers import TableStatus, WorkerStatus
from kafka_ratchet.app.status.model import Overview, PartitionView, StreamView, _totals, duration, merge, window
from kafka_ratchet.app.status.problems import findings


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (604_800, "7 d"),
        (5_400, "1 h 30 min"),
        (90_061, "1 d 1 h"),
        (86_399, "23 h 59 min"),
        (61, "1 min 1 s"),
        (59, "59 s"),
        (0, "0 s"),
        (86_400_000, "1,000 d"),
    ],
)
def test_a_duration_is_never_said_to_be_longer_than_it_is(seconds: int, said: str) -> None:
    assert duration(seconds) == said


def test_the_terminal_has_columns_for_what_the_stream_counts() -> None:
    def columns(**changed: Any) -> set[str]:
        rows = [row(**changed)]
        names = ("events", "in", "out", "dead", "log", "key", "header:x")
        table = _stream_table(StreamView(*names, rows, _totals(rows)), frozenset())
        return {str(column.header) for column in table.columns} & {"Evicted", "Too late", "Conflict", "Missing"}

    assert columns() == columns(late=0, conflict=0) == set()
    assert columns(late=2, conflict=1, evicted=1) == {"Too late", "Conflict", "Evicted"}
    assert columns(missing=0) == {"Missing"}


def row(**changed: Any) -> PartitionView:
    figures = {name: 0 for name in ("keys", "input_position", "input_end", "lag", "changelog_position", "invalid")}
    row = {**figures, "changelog_end": 0, "fresh": 0, "duplicate": 0, "evicted": 0, **changed}
    return PartitionView(partition=0, worker="w", state="running", **row)


@pytest.mark.parametrize(
    ("bounds", "recognised_for_s", "rows", "said"),
    [
        ({}, None, [row()], "Identities are never forgotten."),
        ({"inactive_after_s": 60}, 60, [row()], "An identity is recognised for at least 1 min after its last record."),
        ({"max_identities": 5}, None, [row()], "No identity was forgotten so far."),
        ({"max_identities": 5}, None, [row(evicted=1)], "unknown: some were displaced under an earlier worker."),
        ({"inactive_after_s": 60}, None, [row(evicted=1)], "unknown: some were displaced under an earlier worker."),
        ({"inactive_after_s": 60}, None, [row(fresh=None)], "unknown: a partition has no worker."),
        ({"max_identities": 5}, None, [row(), row(fresh=None)], "unknown: a partition has no worker."),
    ],
)
def test_the_window_in_words(
    bounds: dict[str, int], recognised_for_s: int | None, rows: list[PartitionView], said: str
) -> None:
    stream = StreamSettings.model_validate({"input": "a", "output": "b", "dead_letters": "c", **bounds})
    assert window(stream, recognised_for_s, rows).endswith(said)


@pytest.mark.parametrize(
    ("own", "everywhere", "origin", "is_said"),
    [
        (False, None, "stream setting", False),
        (None, False, "global setting", False),
        (False, None, "stream policy", False),
        (None, None, "stream policy", True),
        (True, False, "stream policy", True),
        (None, None, "global policy", True),
        (None, True, "global policy", True),
    ],
)
def test_a_stream_that_is_off_by_its_settings_is_no_problem(
    own: bool | None, everywhere: bool | None, origin: str, is_said: bool
) -> None:
    stream = StreamSettings(input="in", output="out", dead_letters="dead", deduplicate=own)
    settings = Settings(app="shop", deduplicate=everywhere, streams={"events": stream})
    table = TableStatus("events", "in", "out", "dead", "log", "key", [], deduplicate=False, origin=origin)
    worker = WorkerStatus("w", [table])
    (view,) = merge(settings, {"w": worker}, None, {}, {"events": "log"})
    assert view.is_switched_off is is_said
    found = findings(Overview("shop", "now", None, [], [view], []))
    assert [each.command for each in found] == ["ratchet policy set on --stream events"] * is_said
