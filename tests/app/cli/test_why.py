"""`ratchet why`: questions that cannot be asked are sentences; no Kafka is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.cli.why import sentences
from kafka_ratchet.app.why.answer import Answer, InputRecord, RecordPosition, Result

TOML = """
bootstrap = "127.0.0.1:1"
[streams.events]
input = "in"
output = "out"
dead_letters = "dead"
identity = {identity}
"""


@pytest.mark.parametrize(
    ("identity", "arguments", "sentence"),
    [
        ('"producer"', "", "Give --producer N --sequence S, or --identity X"),
        ('"producer"', "--producer a --identity b", "the record is not named"),
        ('"key"', "--producer a --sequence 1", "is key, not the producer. Give --identity"),
        ('"partition"', "--identity a", "and no other identity. Give only --partition and --sequence"),
        ('["key", "header:x"]', "--identity a", "has 2 parts"),
        ('"producer"', "--topic in --offset 3", "--topic, --partition and --offset must be given together"),
        ('"producer"', "--topic in --partition 0 --offset 3 --producer a", "Remove --producer, --identity"),
        ('"producer"', "--topic in --partition 0 --offset -3", "--offset is '-3': it must be a whole number"),
        ('"producer"', "--producer a --sequence x", "the sequence must be a whole number"),
        ('"producer"', "--producer a --timeout nan", "must be a number of seconds above 0"),
        ('"producer"', "--identity-hex 0g", "the identity in hex must be pairs"),
    ],
)
def test_a_question_that_cannot_be_asked(
    identity: str, arguments: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "ratchet.toml"
    config.write_text(TOML.format(identity=identity))
    assert run(["why", "--config", str(config), *arguments.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_an_answer_is_safe_in_a_terminal_and_tells_where_the_table_stands() -> None:
    place, there = RecordPosition("in", 0, 4), RecordPosition("out", 0, 2)
    arrival = InputRecord(place, "2026-01-01T00:00:00.000Z", 7, "fresh", 6, forwarded=there)
    answer = Answer("events", "producer '\x1b[31mred'", b"\x1b[31mred", 7, [arrival])
    for result, said in (
        (Result("delta t", "results", 2, 0, None), "not yet in delta t: job results has read up to offset 2"),
        (Result("delta t", "results", 3, 1, None, "version 5"), "row of delta t, job results, version 5"),
        (Result("delta t", "results", 3, 2, None), "row of delta t (2 rows), job results"),
        (Result("delta t", "results", 3, 0, 1), "rejected: its value did not parse; in the rejects of delta t"),
        (Result("delta t", "results", 3), "counted in delta t, job results"),
        (
            Result("delta t", "results", 3, 0),
            "no row of delta t comes from it now, job results: a later record",
        ),
        (
            Result("delta t", "results", 3, 0, kind="append"),
            "no row of delta t comes from it now, job results, although no job replaces rows there",
        ),
        (Result("delta t", "results", 3, kind="query"), "read by job results for delta t: the table does not show"),
        (
            Result("delta t", "results", 2, 1),
            "not yet in delta t: job results has read up to offset 2; the row with its partition and offset is of an",
        ),
    ):
        arrival.results = [result, Result("postgres t", "second", 3, 1, None)]
        lines = sentences(answer)
        assert any(line.strip().startswith(said) for line in lines), lines
        assert "row of postgres t, job second" in [line.strip() for line in lines]
        assert not any("\x1b" in line for line in lines)
