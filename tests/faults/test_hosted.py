"""The count of a hosted Faust program notices whatever may go wrong, or its zeros would mean nothing."""

from __future__ import annotations

import itertools

import pytest
from typer.testing import CliRunner

from faults.count import Difference, fresh
from faults.events import Event, events
from faults.hosted import KINDS, TABLES, Entries, HostedResults, Row, compare_hosted, entry_of
from faults.programs.hosted import APP, app
from kafka_ratchet.app.cli import cli
from kafka_ratchet.testing import run

EVENTS = 3_000


@pytest.fixture(scope="module")
def sent() -> list[Event]:
    """Events of one partition, as the program has in memory."""
    return [event._replace(partition=0) for event in itertools.islice(events(7), EVENTS)]


@pytest.fixture(scope="module")
def read(sent: list[Event]) -> HostedResults:
    """Outputs and tables of the program in memory, over the records that each stream gives it."""

    def rows(kind: str) -> list[tuple[str, dict[str, object]]]:
        return [(event.key, {"key": event.key, "sequence": event.sequence}) for event in fresh(sent, kind)]

    ran = run(app, {f"{APP}.{kind}.in": rows(kind) for kind in KINDS})

    def sent_to(name: str) -> list[Row]:
        found = [each for each in ran.outputs if each.topic == f"{APP}.{name}"]
        return [(0, (each.key or b"").decode().strip('"'), each.value) for each in found]

    entries = Entries(entry_of(name, key, value) for name in TABLES for key, value in ran.tables[name].items())
    return HostedResults(sent_to("counted"), sent_to("closed"), sent_to("balance-log"), entries)


def test_a_right_run_has_no_difference(sent: list[Event], read: HostedResults) -> None:
    assert len(read.closed) > 100
    assert {name for name, _, _ in read.entries} == {*TABLES}
    assert compare_hosted(sent, read) == Difference()


@pytest.mark.parametrize("output", ["counted", "closed", "log"])
def test_a_record_that_is_missing_or_there_twice_is_noticed(
    sent: list[Event], read: HostedResults, output: str
) -> None:
    rows, others = getattr(read, output), read._asdict()
    fewer = compare_hosted(sent, HostedResults(**{**others, output: rows[1:]}))
    assert (fewer.lost, fewer.doubled) == (1, 0)
    more = compare_hosted(sent, HostedResults(**{**others, output: [rows[0], *rows]}))
    assert (more.lost, more.doubled) == (0, 1)


def test_a_window_with_another_total_is_noticed(sent: list[Event], read: HostedResults) -> None:
    (partition, key, (start, total)), *others = read.closed
    for wrong, difference in ((total - 1, Difference(lost=1)), (total + 2, Difference(doubled=2))):
        assert compare_hosted(sent, read._replace(closed=[(partition, key, [start, wrong]), *others])) == difference


@pytest.mark.parametrize("table", TABLES)
def test_an_entry_that_is_missing_or_there_twice_is_noticed(sent: list[Event], read: HostedResults, table: str) -> None:
    entry = next(each for each in read.entries if each[0] == table)
    for entries in (read.entries - Entries([entry]), read.entries + Entries([entry])):
        assert compare_hosted(sent, read._replace(entries=entries)) == Difference(table_wrong=1)


def test_one_program_is_named() -> None:
    refused = CliRunner().invoke(cli, ["faults", "--agent", "--faust"])
    assert refused.exit_code == 2
    assert "one program" in refused.output
