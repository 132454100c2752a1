"""`ratchet dead-letters`: what it shows of letters, whose content is anybody's."""

from __future__ import annotations

import pytest

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.cli.dead_letters import lines_of
from kafka_ratchet.app.dead_letters.asked import sentences
from kafka_ratchet.app.dead_letters.letters import Letter, LetterOrigin
from kafka_ratchet.app.dead_letters.reading import LetterView
from kafka_ratchet.app.dead_letters.replay import Counts, ReplayResult
from kafka_ratchet.app.inspect.dead_letters import LetterRecord, clock
from kafka_ratchet.app.why.answer import moment
from kafka_ratchet.transport.batch.record_batch import Header

EVIL = b"\x1b]0;owned\x07\x9b31m\r\n\xff\x00[red]"
ODD = EVIL.decode("latin1")
HEADERS = [Header("ratchet-producer", b"shop"), Header("Authorization", b"Bearer secret"), Header(ODD, EVIL)]
ORIGIN = LetterOrigin(f"agent a: {ODD}", ODD, 1, 7)
FOUND = LetterView(Letter(0, 4, 1_700_000_000_000, ORIGIN, 2, HEADERS), b"key of somebody", EVIL, True)


def said(*, values: bool) -> str:
    return "\n".join(lines_of(LetterRecord(FOUND, values)))


@pytest.mark.parametrize("values", [False, True])
def test_hostile_bytes_never_reach_the_terminal(values: bool) -> None:
    text = said(values=values)
    assert all(each == "\n" or each.isprintable() for each in text)
    assert "partition 0, offset 4: 2023-11-14 22:13:20, replayed 2 times before, was replayed" in text


def test_content_is_masked_unless_asked_for() -> None:
    masked, whole = said(values=False), said(values=True)
    assert "header ratchet-producer: shop" in masked
    assert "header Authorization: 13 bytes" in masked
    assert "  key: 15 bytes" in masked
    assert "header Authorization: Bearer secret" in whole
    assert "  key: key of somebody" in whole
    assert LetterRecord(LetterView(FOUND.letter, None, None, False), True).as_dict()["key"] == {"bytes": None}


def test_a_time_of_no_year_is_a_number() -> None:
    assert clock(moment(2**62)) == f"{2**62} ms"


def test_an_offset_needs_its_partition(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = '{"input": "i", "output": "o", "dead_letters": "d"}'
    monkeypatch.setenv("RATCHET_STREAMS__events", stream)
    for arguments, sentence in (
        (["--offset", "3"], "--offset names a record of one partition, but --partition is missing. Add --partition"),
        (["--limit", "many"], "--limit must be a number from 0 on (given: 'many')"),
        (["--partition", "9" * 30], "--partition must be a number from 0 on"),
    ):
        assert run(["dead-letters", "replay", *arguments]) == 2
        assert sentence in capsys.readouterr().err


def test_every_letter_that_stays_is_accounted_for() -> None:
    counts = Counts(to_replay=5, done=1, held_back=2, too_often=3, others=4, too_old=5)
    text = " ".join(sentences(ReplayResult("orders", "dead", "orders.raw", True, 0, counts)))
    assert [n for n in "12345" if f"{n} " in text] == [*"12345"]
    assert "5 dead letters would be sent to orders.raw. Nothing was changed." in text
