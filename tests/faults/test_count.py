"""The count notices whatever may go wrong, or its zeros would mean nothing."""

from __future__ import annotations

import itertools

import pytest
from typer.testing import CliRunner

from faults.count import Difference, compare, compare_counts, expected, expected_counts
from faults.environment import Style
from faults.events import EVERY_KIND, IDENTITIES, PARTITIONS, WINDOW, Event, events
from faults.programs import agents
from faults.run import LONG, SHORT, RunResult
from kafka_ratchet.app.cli import cli

A, B = (0, "a"), (1, "b")


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ({A: [1, 2, 5], B: [3]}, Difference()),
        ({A: [1, 5], B: [3]}, Difference(lost=1)),
        ({A: [1, 2, 5]}, Difference(lost=1)),
        ({A: [1, 2, 2, 5], B: [3]}, Difference(doubled=1)),
        ({A: [1, 2, 5], B: [3], (2, "c"): [1]}, Difference(doubled=1)),
        ({A: [2, 1, 5], B: [3]}, Difference(reordered=1)),
        ({A: [1, 2, 5, 1, 2, 5], B: []}, Difference(lost=1, doubled=3, reordered=1)),
    ],
)
def test_every_difference_is_counted(found: dict[tuple[int, str], list[int]], difference: Difference) -> None:
    assert compare({A: [1, 2, 5], B: [3]}, found) == difference


def test_only_what_moves_a_sequence_forward_is_expected() -> None:
    sent = [Event(0, "k", "p", 5), Event(0, "j", "p", 4), Event(0, "k", "p", 5), Event(1, "k", "p", 1)]
    assert expected(sent, "key") == {(0, "k"): [5], (0, "j"): [4], (1, "k"): [1]}
    assert expected(sent, "producer") == expected(sent, "producer") == {(0, "p"): [5], (1, "p"): [1]}
    assert expected(sent, "partition") == {(0, ""): [5], (1, ""): [1]}


def test_events_are_the_same_for_a_seed_and_bring_repeats_for_every_kind_of_identity() -> None:
    sent = list(itertools.islice(events(7), 20_000))
    assert sent == list(itertools.islice(events(7), 20_000))
    assert sent != list(itertools.islice(events(8), 20_000))
    assert {event.partition for event in sent} == set(range(PARTITIONS))
    for kind in EVERY_KIND:
        kept = sum(map(len, expected(sent, kind).values()))
        assert 0.7 * len(sent) < kept < 0.9 * len(sent)


def test_an_event_counts_once_by_its_id_and_late_within_the_window() -> None:
    sent = [Event(0, "k", "p", number) for number in (90, 10, 26, 27, 10, 26, 91, 27)]
    assert expected(sent, "ids") == {(0, f"k {number}"): [number] for number in (90, 10, 26, 27, 91)}
    assert expected(sent, "window") == {(0, ""): [90, 26, 27, 91]}
    assert WINDOW == 64


def test_half_of_the_late_events_are_within_the_window() -> None:
    sent = list(itertools.islice(events(7), 20_000))
    kept = {kind: sum(map(len, expected(sent, kind).values())) for kind in ("ids", "window", "partition")}
    assert kept["partition"] + 100 < kept["window"] < kept["ids"] - 100


@pytest.mark.parametrize(
    ("yielded", "kept", "difference"),
    [
        ({A: [1, 2], B: [1]}, {A: 2, B: 1}, Difference()),
        ({A: [1, 2], B: [1]}, {A: 2}, Difference(table_lost=1)),
        ({A: [1, 2], B: [1]}, {A: 4, B: 1}, Difference(table_doubled=2)),
        ({A: [1, 2], B: [1]}, {A: 2, B: 1, (2, "c"): 1}, Difference(table_doubled=1)),
        ({A: [1, 1], B: [1]}, {A: 2, B: 1}, Difference(table_lost=1, table_doubled=1)),
        ({A: [2, 3], B: [1]}, {A: 2, B: 1}, Difference(table_lost=1, table_doubled=1)),
        ({A: [2, 1], B: [1]}, {A: 2, B: 1}, Difference(reordered=1)),
    ],
)
def test_every_difference_of_a_table_is_counted(
    yielded: dict[tuple[int, str], list[int]], kept: dict[tuple[int, str], int], difference: Difference
) -> None:
    assert compare_counts({A: 2, B: 1}, yielded, kept) == difference
    assert difference + difference == compare_counts({A: 2, B: 1}, yielded, kept) + difference


def test_a_table_counts_what_moves_a_sequence_forward() -> None:
    sent = [Event(0, "k", "p", 5), Event(0, "j", "p", 4), Event(0, "k", "p", 5), Event(0, "k", "p", 6)]
    assert expected_counts(sent, "key") == {(0, "k"): 2, (0, "j"): 1}
    assert expected_counts(sent, "producer") == {(0, "k"): 2}


def test_each_stream_has_an_agent_that_counts_into_the_table_that_is_read() -> None:
    for kind in IDENTITIES:
        assert agents.app.of(f"by-{kind}")[0].name == "count"
        assert [table.name for table in agents.app.tables_of(f"by-{kind}")] == [agents.table_of(kind)]


def test_an_event_that_a_table_has_twice_is_not_ok() -> None:
    result = RunResult(1)
    result.add(Difference(table_doubled=1))
    assert not result.ok
    assert (result.as_dict()["table_lost"], result.as_dict()["table_doubled"]) == (0, 1)


def test_agents_are_asked_for_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()

    def ran(form: object, seed: int, say: object, folder: object, *, style: Style, processes: int) -> RunResult:
        asked.append((form, seed, style, processes))
        return RunResult(seed, table_lost=seed)

    monkeypatch.setattr("faults.run.run", ran)
    for arguments in (["--short", "--agent"], ["--faust"], ["--short", "--processes", "2"]):
        assert (
            CliRunner().invoke(cli, ["faults", *arguments, "--seed", "7"]).exit_code == 1
        )  # a table has lost something
    assert asked == [(SHORT, 7, Style.AGENT, 1), (LONG, 7, Style.FAUST, 1), (SHORT, 7, Style.RECORDS, 2)]
    assert CliRunner().invoke(cli, ["faults", "--agent", "producer", "file"]).exit_code == 2
