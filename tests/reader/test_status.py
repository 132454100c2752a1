"""A reader's partition that stands still has a cause and a sentence."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from kafka_ratchet.reader import Reader, Sqlite
from kafka_ratchet.reader import status as status_module
from kafka_ratchet.reader.positions import StoredPosition
from kafka_ratchet.reader.status import ReaderProgress, standings
from kafka_ratchet.transport.batch.decompression import GZIP
from tests.clock import Clock
from tests.topic_log.test_second_client import PLAIN, compressed, gzip_members, produce


def standing(*, next: int = 5, owner: str = "ab" * 16, silent_s: int | None = None, **changed: Any) -> ReaderProgress:
    """A reader at offset 5 of 9, with an old record there. silent_s: since its last commit; None: it made none."""
    committed_ms = 0 if silent_s is None else int((time.time() - silent_s) * 1000)
    row = StoredPosition("billing", "orders", 0, next, 1, owner, "id", committed_ms)
    given = {"end": 9, "is_other_topic": False, "stable_end": 9, "beginning": 0, "waits_long": True, **changed}
    return ReaderProgress(row, **given)


@pytest.mark.parametrize(
    ("given", "cause", "words"),
    [
        ({"end": None, "has_leader": False}, "no-leader", "the partition has no leader"),
        ({"end": None}, "topic-missing", "does not exist. Restore it; or create the topic again"),
        ({"is_other_topic": True}, "halted", "created again. Choose where to go on with `ratchet reader resume`"),
        ({"beginning": 7}, "halted", "offset 5 is to be read next, but the topic holds 7 to 9"),
        ({"next": 12}, "halted", "offset 12 is to be read next, but the topic holds 0 to 9"),
        ({"stable_end": 5}, "open-transaction", "4 offsets wait for an open transaction"),
        ({"owner": ""}, "no-reader", "4 offsets wait, and no process reads under this name"),
        ({}, "reader-silent", "the process abababab has committed nothing yet"),
        ({"silent_s": 60}, "reader-silent", "has committed nothing for 6"),
    ],
)
def test_a_standstill_has_a_cause(given: dict[str, Any], cause: str, words: str) -> None:
    found = standing(**given)
    assert found.stalled is not None
    assert (found.stalled[0], words in found.stalled[1]) == (cause, True), found.stalled
    assert found.stalled[1].startswith("reader billing: orders, partition 0: ")
    assert found.as_dict()["stalled"] == {"cause": cause, "text": found.stalled[1]}


@pytest.mark.parametrize("given", [{"next": 9}, {"waits_long": False}, {"waits_long": False, "owner": ""}])
def test_what_moves_or_has_read_all_has_none(given: dict[str, Any]) -> None:
    found = standing(**given)
    assert found.stalled is None
    assert "stalled" not in found.as_dict()


def test_a_timestamp_in_the_future_hides_no_standstill(broker: str, new_topic: Callable[..., str], bill: Path) -> None:
    """Nanoseconds in a timestamp made a request by time answer with that record, whatever came after it."""
    topic, options = new_topic(1, message_timestamp_after_max_ms=2**63 - 1), {"bootstrap.servers": broker}
    producer = Producer(options)

    def write(at_ms: int) -> None:
        producer.produce(topic, b"v", timestamp=at_ms)
        producer.flush(60)

    def read() -> None:
        with Reader(topic, store=Sqlite(bill), name="billing", options=options) as reader:
            for transaction in reader.transactions(until_end=True):
                transaction.execute("SELECT 1")

    def cause() -> str | None:
        (found,) = standings(Sqlite(bill), options, 30)
        return None if found.stalled is None else found.stalled[0]

    def set_committed(at_ms: int) -> None:
        with sqlite3.connect(bill) as database:
            database.execute("UPDATE ratchet_reader_positions SET committed_ms = ?", (at_ms,))

    now_ms = int(time.time() * 1000)
    write(1_790_000_000_000_000_000)
    read()
    assert cause() is None
    write(now_ms - 60_000)
    assert cause() == "no-reader"
    read()
    write(1_790_000_000_000_000_000)
    set_committed(now_ms + 3_600_000)  # "a moment ago", however slow the machine is
    assert cause() is None
    set_committed(now_ms - 60_000)
    assert cause() == "no-reader"


def test_a_record_that_kafka_does_not_send_hides_no_standstill(
    broker: str, new_topic: Callable[..., str], bill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka gives neither records nor an error of the second half of a batch in two gzip members."""
    monkeypatch.setattr(status_module, "RECORDS_S", 0.1)
    monkeypatch.setattr(status_module, "LEAST_RECORDS_S", 0.1)
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    asyncio.run(produce(broker, topic, 0, [PLAIN]))
    with Reader(topic, store=Sqlite(bill), name="billing", options=options) as reader:
        for transaction in reader.transactions(until_end=True):
            transaction.execute("SELECT 1")
    asyncio.run(produce(broker, topic, 0, [compressed(GZIP, gzip_members)]))
    for ago_s, cause in ((60, "no-reader"), (-3_600, None)):  # "a moment ago", however slow the machine is
        with sqlite3.connect(bill) as database:
            committed_ms = int((time.time() - ago_s) * 1000)
            database.execute("UPDATE ratchet_reader_positions SET next_offset = 199, committed_ms = ?", (committed_ms,))
        (found,) = standings(Sqlite(bill), options, 30)
        assert (found.stalled[0] if found.stalled else None) == cause


def test_readers_of_one_topic_share_the_wait_for_records(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, limits = Clock(), []

    def first_times(starts: dict[int, int], ends: dict[int, int], limit_s: float) -> dict[int, int]:
        limits.append(limit_s)
        clock.now += limit_s - 2 if len(limits) == 1 else limit_s
        return {}

    monkeypatch.setattr(status_module, "time", SimpleNamespace(monotonic=clock, time=time.time))
    rows = [StoredPosition(name, "orders", 0, 5, 1, "", "id", 0) for name in ("a", "b", "c", "d")]
    status_module._long_waits(cast("Any", SimpleNamespace(first_times=first_times)), rows, {0: 0}, {0: 9})
    assert limits == [5, 2, 1, 1]
