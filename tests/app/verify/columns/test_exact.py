"""Verify as columns against verify record by record, over random histories in which something was done wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_ratchet.app.survey import reading
from kafka_ratchet.app.verify import RecordView, verify
from kafka_ratchet.app.verify.columns import choice
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.reading import OffsetRanges, TopicReader
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.rule.identity import Identity, SequenceForm, SequenceSource
from tests.app.written_stream import NOW_MS, NewTopic, Stage, continued_twice, record, verified_twice

PARTITIONS = 40
RULES: list[dict[str, Any]] = [
    {"identity": Identity.PRODUCER},
    {"identity": Identity.KEY, "sequence_form": SequenceForm.INTEGER},
    {"identity": Identity.PARTITION},
    {"identity": Identity.parse("key,header:ratchet-producer"), "sequence_form": SequenceForm.TEXT},
    {"identity": Identity.KEY, "sequence": "none"},
]

Records = list[RecordView]


def history(choose: random.Random, count: int) -> Records:
    made = []
    for _ in range(count):
        number = choose.randrange(12)
        sequence = choose.choice([number, number, number, b"%d" % number, None, b"-1", b"x"])
        producer = choose.choice([b"a", b"b", b"a" * 200, b"", None])
        one = record(sequence, producer, choose.choice([b"v", b"", None, b"w" * 50]), choose.choice([b"k", b"", None]))
        made.append(replace(one, timestamp_ms=NOW_MS + choose.randrange(3)))
    return made


def dropped(choose: random.Random, there: Records) -> None:
    del there[choose.randrange(len(there))]


def doubled(choose: random.Random, there: Records) -> None:
    at = choose.randrange(len(there))
    there.insert(choose.randrange(at, len(there)) + 1, there[at])


def swapped(choose: random.Random, there: Records) -> None:
    at = choose.randrange(len(there))
    other = choose.randrange(len(there))
    there[at], there[other] = there[other], there[at]


def altered(choose: random.Random, there: Records) -> None:
    at = choose.randrange(len(there))
    one = there[at]
    value = bytearray(one.value or b"?")
    value[choose.randrange(len(value))] ^= 1 << choose.randrange(8)
    changes: dict[str, Any] = {
        "value": bytes(value),
        "key": b"K",
        "timestamp_ms": one.timestamp_ms + 1,
        "headers": one.headers[::-1],
    }
    name = choose.choice(sorted(changes))
    there[at] = replace(one, **{name: changes[name]})


def invented(choose: random.Random, there: Records) -> None:
    there.insert(choose.randrange(len(there) + 1), history(choose, 1)[0])


def cut(choose: random.Random, there: Records) -> None:
    del there[choose.randrange(len(there)) :]


FAULTS: list[Callable[[random.Random, Records], None]] = [dropped, doubled, swapped, altered, invented, cut]


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=[pytest.mark.matrix] * (number > 1)) for number in range(len(RULES))]
)
def test_both_say_the_same_of_random_histories(
    broker: str, new_topic: NewTopic, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of the partitions is as it must be: those, and no others, are found exact."""
    monkeypatch.setattr(reading, "FETCH_BYTES", 3_000)
    choose, stage = random.Random(number), Stage(broker, new_topic, PARTITIONS, **RULES[number])
    chosen = stage.settings.streams["events"]
    rule = Rule(chosen.identity, SequenceSource.parse(chosen.sequence), chosen.sequence_form)
    commits, right, letters = [], set(), []
    sender = Producer({"bootstrap.servers": broker, "linger.ms": 5, "batch.num.messages": 20})
    for partition in range(PARTITIONS):
        given = history(choose, choose.randrange(0, 120))
        committed = choose.choice([len(given), len(given), choose.randrange(len(given) + 1)])
        expected, report = ExpectedPartition(rule, partition), Report("events")
        verdicts = [expected.add_input(offset, one, report) for offset, one in enumerate(given[:committed])]
        there = [one for one, verdict in zip(given, verdicts, strict=False) if verdict == "fresh"]
        as_it_must_be = list(there)
        if partition % 3 and there:
            for fault in choose.sample(FAULTS, choose.choice((1, 1, 2))):
                if there:
                    fault(choose, there)
        if there == as_it_must_be:
            right.add(partition)
        letters += [
            stage.letter(one, partition, offset)
            for offset, (one, verdict) in enumerate(zip(given, verdicts, strict=False))
            if verdict == "invalid" and (partition % 5 or choose.random() > 0.1)
        ]
        stage.write(0, partition, given, sender)
        stage.write(1, partition, there, sender)
        commits.append(committed)
    stage.write(2, 0, letters, sender)
    stage.commit(*commits)
    report = verified_twice(stage.settings)
    assert set(report.columns) == right
    assert set(report.singly) == set(range(PARTITIONS)) - right
    assert len(right) >= PARTITIONS // 3
    assert not report.ok
    assert all("is not the expected record" in why or "lacks the record" in why for why in report.singly.values())


def test_both_go_on_alike_from_run_to_run(
    broker: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Beside busy workers: what was committed while verify asked may be in the output, or not yet."""
    partitions, choose = 24, random.Random(7)
    stage = Stage(broker, new_topic, partitions)
    rule = Rule(Identity.PRODUCER, SequenceSource.parse("header:ratchet-sequence"))
    monkeypatch.setattr(reading, "FETCH_BYTES", 3_000)
    judged, asked = [0] * partitions, TopicReader.offset_ranges

    def while_it_asked(reader: TopicReader) -> OffsetRanges:
        return replace(asked(reader), judged=dict(enumerate(judged)))

    monkeypatch.setattr(TopicReader, "offset_ranges", while_it_asked)
    given: list[Records] = [[] for _ in range(partitions)]
    reached, columns, reasons = [0] * partitions, [], set()
    for turn in range(4):
        letters: Records = []
        for partition, records in enumerate(given):
            more = [one for one in history(choose, choose.randrange(40)) if partition % 2 or rule.identify(one)]
            stage.write(0, partition, more)
            begin, end = len(records), len(records) + len(more)
            records += more
            judged[partition] = choose.randint(begin, end)
            there = choose.randint(judged[partition], end) if turn < 3 else end
            expected = ExpectedPartition(rule, partition)
            verdicts = [expected.add_input(offset, one, Report("events")) for offset, one in enumerate(records)]
            new = [*zip(range(end), records, verdicts, strict=True)][reached[partition] : there]
            reached[partition] = there
            letters += [stage.letter(one, partition, offset) for offset, one, verdict in new if verdict == "invalid"]
            stage.write(1, partition, [one for _, one, verdict in new if verdict == "fresh"])
        stage.write(2, 0, letters)
        stage.commit(*map(len, given))
        report = continued_twice(stage.settings, tmp_path / "state")
        assert report.ok, report.findings
        assert report.state_written
        columns.append(len(report.columns))
        reasons |= {*report.singly.values()}
    assert min(columns) >= partitions // 2
    assert all(reason.startswith("dead letters are pending") for reason in reasons)
    assert reasons
    stage.write(1, 5, [record(99)])
    report = continued_twice(stage.settings, tmp_path / "state")
    assert (report.unexpected, report.state_written) == (1, False)


def test_a_worker_that_was_not_asked_is_pending(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic, 2)
    stage.write(0, 0, [record(number) for number in range(10)])
    stage.write(1, 0, [record(number) for number in range(4)])
    stage.commit(4, 0)
    report = stage.verify()
    assert (report.columns, report.fresh, report.pending) == ([0, 1], 4, 6)

    async def in_a_loop() -> Report:
        return stage.verify()

    assert asyncio.run(in_a_loop()).columns == [0, 1]


def test_what_only_the_other_way_knows_is_left_to_it(
    broker: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(broker, new_topic, 4)
    sender = Producer({"bootstrap.servers": broker, "transactional.id": stage.settings.app})
    sender.init_transactions(30)
    given = [record(1), replace(record(2), headers=[*record(2).headers, ("ratchet-replays", b"1")])]
    stage.write(0, 0, given)
    stage.write(1, 0, given)
    sender.begin_transaction()
    stage.write(0, 1, given[:1], sender)
    stage.write(1, 2, given[:1], sender)
    sender.commit_transaction(30)
    stage.write(1, 1, given[:1])
    stage.write(0, 2, given[:1])
    stage.commit(2, 2, 1, 0)
    report = stage.verify()
    assert report.ok, report.findings
    # Where the output is written in transactions, and the input is not, nothing is hidden from the rule.
    assert report.columns == [2, 3]
    assert "replayed from dead letters" in report.singly[0]
    assert "without a committed record" in report.singly[1]
    assert set(verify(stage.settings).singly.values()) == {choice.REASON_FEW}
    monkeypatch.setattr(choice, "FEW", 3)
    assert verify(stage.settings).columns == [2, 3]
    assert set(verify(stage.settings, independent=True).singly.values()) == {"--independent"}


def test_what_transactions_hide_is_neither_there_nor_missed(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic, 5)
    sender = Producer({"bootstrap.servers": broker, "transactional.id": stage.settings.app})
    sender.init_transactions(30)

    def transaction(topic: int, partition: int, *records: RecordView, aborts: bool = False) -> None:
        sender.begin_transaction()
        stage.write(topic, partition, list(records), sender)
        (sender.abort_transaction if aborts else sender.commit_transaction)(30)

    first, second, third = given = [record(number) for number in (1, 2, 3)]
    for partition in range(4):
        stage.write(0, partition, given)
        transaction(1, partition, first)
    transaction(1, 0, second, first, aborts=True)
    transaction(1, 0, second, third)
    transaction(1, 1, first)  # once more
    transaction(1, 1, second, third)
    transaction(1, 2, second)
    transaction(1, 2, third, aborts=True)
    transaction(1, 3, second, third)
    transaction(1, 3, aborts=True)
    transaction(0, 4, first, aborts=True)
    stage.write(0, 4, given)
    stage.write(1, 4, given)
    stage.commit(3, 3, 3, 3, 5)
    report = stage.verify()
    assert (report.columns, report.lost, report.doubled) == ([0, 3], 1, 1)
    assert "is not the expected record" in report.singly[1]
    assert "lacks the record of input offset 2" in report.singly[2]
    assert "without a committed record" in report.singly[4]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"identity": Identity.parse("field:a")}, "the identity stands in the value"),
        ({"identity": Identity.parse("key,function:os:getcwd")}, "the identity is computed by a function"),
        ({"sequence": "field:a"}, "the sequence stands in the value"),
        ({"sequence": "function:os:getcwd"}, "the sequence is computed by a function"),
    ],
)
def test_rules_that_are_not_known_over_columns(
    broker: str, new_topic: NewTopic, change: dict[str, Any], reason: str
) -> None:
    stage = Stage(broker, new_topic, 1, **change)
    stage.commit(0)
    report = stage.verify()
    assert (report.columns, report.singly) == ([], {0: reason})


@pytest.mark.parametrize("seen", ["corrupt", "away"])
def test_what_cannot_be_read_as_columns_is_read_by_the_other_client(
    broker: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    stage = Stage(broker, new_topic, 1)
    stage.write(0, 0, [record(1, value=b"v" * 900_000)] * 3)
    stage.write(1, 0, [record(1, value=b"v" * 900_000)])
    stage.commit(3)
    if seen == "corrupt":
        stage.settings = stage.settings.model_copy(update={"max_batch_mb": 0})
    else:
        monkeypatch.setattr(reading, "FETCH_WAIT_MS", 1)
        monkeypatch.setattr("kafka_ratchet.app.verify.columns.exact.client_options", lambda *_: nowhere())
        stage.settings = stage.settings.model_copy(update={"kafka_timeout_s": 3})
    report = stage.verify()
    assert report.ok, report.findings
    assert (report.columns, report.delivered) == ([], 1)
    assert ("max_batch_mb" if seen == "corrupt" else "no Kafka broker answered") in report.singly[0]


def nowhere() -> dict[str, Any]:
    return {"bootstrap_servers": ["127.0.0.1:1"]}
