"""Agents' sends, compared with their topics: in any order, among the records of other writers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ratchet.app.verify import RecordView, Report
from kafka_ratchet.app.verify.replay.sent import SentRecord, SentRecords
from kafka_ratchet.app.verify.rows import content


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[SentRecords]:
    sent = SentRecords(tmp_path / "store", ["alerts", "audit"])
    yield sent
    sent.close()


def record(number: int) -> RecordView:
    return RecordView(b"key", b"%d" % number, [], number)


def given(sent: SentRecords, *numbers: int, is_due: bool = True) -> None:
    for number in numbers:
        sent.add(
            "alerts", content(record(number)), SentRecord(3, b"key", b"%d" % number, 0, 100 + number, is_due=is_due)
        )


def there(sent: SentRecords, *numbers: int, partition: int = 3) -> None:
    for offset, number in enumerate(numbers):
        sent.add("alerts", content(record(number)), SentRecord(partition, b"key", b"%d" % number, offset=offset))


def test_the_order_does_not_matter_and_what_others_write_is_counted(sent: SentRecords) -> None:
    given(sent, 1, 2, 3, 3)
    there(sent, 3, 9, 2, 3, 8, 1, 9)
    report = Report("orders")
    assert sent.compare("alerts", report, is_whole=True) == 3
    assert (report.findings, report.pending, sent.counts) == ([], 0, {"alerts": 4, "audit": 0})


def test_what_is_missing_and_what_is_there_too_often(sent: SentRecords) -> None:
    given(sent, 1, 2, 3)
    there(sent, 3, 1, 3, 3)
    report = Report("orders")
    assert sent.compare("alerts", report, is_whole=True) == 0
    assert dict(report.counts) == {"lost": 1, "doubled": 2}
    said = {finding.kind: str(finding) for finding in report.findings}
    assert said["lost"] == (
        "lost: topic alerts, input partition 0 offset 102, partition 3: key 'key', value '2' in the replay, but not in "
        "the topic"
    )
    assert said["doubled"] == (
        "doubled: topic alerts, partition 3 offset 3, input partition 0 offset 103, key 'key', value '3'"
    )


def test_in_another_partition_it_is_another_record(sent: SentRecords) -> None:
    given(sent, 1)
    there(sent, 1, partition=2)
    report = Report("orders")
    assert (sent.compare("alerts", report, is_whole=True), dict(report.counts)) == (1, {"lost": 1})


def test_what_is_not_committed_yet_may_be_there_or_not(sent: SentRecords) -> None:
    given(sent, 1)
    given(sent, 1, 2, 3, is_due=False)
    there(sent, 1, 3)
    report = Report("orders")
    assert (sent.compare("alerts", report, is_whole=True), dict(report.counts), report.pending) == (0, {}, 2)


def test_a_topic_that_has_lost_its_beginning_says_nothing_of_what_it_does_not_have(sent: SentRecords) -> None:
    given(sent, 1, 2)
    there(sent, 2)
    report = Report("orders")
    assert (sent.compare("alerts", report, is_whole=False), dict(report.counts), report.undecided) == (0, {}, 1)


def test_where_nobody_else_may_write_what_the_replay_does_not_give_is_unexpected(sent: SentRecords) -> None:
    given(sent, 1, 2)
    there(sent, 2, 9, 1)
    report = Report("orders")
    assert sent.compare("alerts", report, is_whole=True, is_own=True) == 1
    assert [str(finding) for finding in report.findings] == [
        "unexpected: topic alerts, partition 3 offset 1, key 'key', value '9'"
    ]
