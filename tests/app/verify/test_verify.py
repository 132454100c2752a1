import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as Topic

from kafka_ratchet.app.cli.verify import verify as verify_command
from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.status.server import StatusServer
from kafka_ratchet.app.verify import (
    ExitCode,
    HaltedPartition,
    RecordView,
    Report,
    UnjudgedInput,
    halted_partitions,
    verify,
)
from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.errors import PartitionsDiffer, PositionLost, SettingsError, TopicError, TopicMissing
from kafka_ratchet.rule.identity import Identity, SequenceForm, SequenceSource
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from tests.app.worker.known_worker import KnownWorker, member, partition, settings_for, table
from tests.app.written_stream import NOW_MS, NewTopic, Stage, record
from tests.topic_config import set_topic_config

ROOT = Path(__file__).parents[3]


@pytest.fixture
def stage(broker: str, new_topic: NewTopic) -> Stage:
    return Stage(broker, new_topic)


def counts(report: Report) -> dict[str, int]:
    return {kind: count for kind, count in report.counts.items()}


FRESH = [record(5 * i, value=b"value %d" % i) for i in range(10)]


def written_with(stage: Stage, output: list[RecordView]) -> Report:
    """Partition 1 holds ten fresh records and their repeats; `output` is what came of them."""
    stage.write(0, 1, FRESH + FRESH[3:5])
    stage.write(1, 1, output)
    stage.commit(0, 12)
    return stage.verify()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([0, 1, 2, 3, 4, 5, 6], {}),
        ([0, 1, 2, 3, 4, 6], {"lost": 1}),
        ([0, 1, 2, 4, 4, 5, 6], {"doubled": 1, "lost": 1}),
        ([0, 1, 2, 3, 4, 5, 6, 7], {"doubled": 1}),
        ([0, 1, 4, 2, 3, 5, 6], {"reordered": 2}),
    ],
)
def test_what_went_by_while_deduplication_was_off_must_all_be_there(
    broker: str, new_topic: NewTopic, output: list[int], expected: dict[str, int]
) -> None:
    stage = Stage(broker, new_topic, 1)
    given = [
        *(record(1, value=b"first"), record(2)),
        # Off: a repeat, an older one with other content, one without a sequence, and one that is new.
        *(record(2), record(1, value=b"other"), record(None), record(9)),
        *(record(9, value=b"on again"), record(2)),
    ]
    stage.write(0, 0, given)
    stage.write(1, 0, [given[i] for i in output])
    changelog = changelog_name(stage.settings.app, "events")
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([Topic(changelog, 1, 1)])[changelog].result(30)
    entries = [PolicyInterval(0, False, 2, 6, 1, 4), PolicyInterval(1, True, 6, 6, 2, 0)]
    for key, value in [(b"p", b"?"), (b"ia", b"?"), *(entry.pack() for entry in entries)]:
        stage.producer.produce(changelog, value, key)
    stage.producer.flush()
    stage.commit(8)
    report = stage.verify()
    assert counts(report) == expected, report.findings
    assert (report.fresh, report.unjudged, report.duplicate, report.invalid) == (3, 4, 1, 0)
    assert report.as_dict()["unjudged_stretches"] == [[0, 2, 6]]


def test_output_of_input_that_compaction_may_have_removed_is_not_called_wrong(
    broker: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(broker, new_topic, 1)
    stage.write(0, 0, FRESH[4:])  # the first four were compacted away
    stage.write(1, 0, FRESH)
    stage.commit(6)
    report = stage.verify()
    assert (dict(report.counts), report.input_compacted, report.exit_code()) == ({"unexpected": 4}, False, 1)
    set_topic_config(AdminClient({"bootstrap.servers": broker}), stage.topics[0], "cleanup.policy", "compact,delete")
    report = stage.verify()
    assert (dict(report.counts), report.input_compacted, report.exit_code()) == ({"unexpected": 4}, True, 3)
    assert report.verdict().startswith(
        "verdict: not all is proven (4 records that compaction of the input may explain): lost 0"
    )
    # A user without the right to read the setting sees the findings.
    with monkeypatch.context() as without_right:
        without_right.setattr(TopicReader, "is_compacted", Mock(side_effect=TopicError("no right")))
        assert stage.verify().exit_code() == ExitCode.WRONG
    # Compaction explains no loss.
    stage.write(0, 0, [record(99)])
    stage.commit(7)
    report = stage.verify()
    assert (report.lost, report.input_compacted, report.exit_code()) == (1, False, 1)


def test_times_that_kafka_has_replaced_are_counted_and_not_compared(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic, 1)
    sent = [record(1), record(2), replace(record(3), timestamp_ms=NOW_MS - 5_000)]
    stage.write(0, 0, sent)
    stage.write(1, 0, sent[:2])
    set_topic_config(
        AdminClient({"bootstrap.servers": broker}), stage.topics[1], "message.timestamp.type", "LogAppendTime"
    )
    stage.write(1, 0, [sent[2]])
    stage.commit(3)
    report = stage.verify()
    assert (report.counts, report.restamped, report.delivered, report.exit_code()) == ({}, 1, 3, ExitCode.PROVEN)
    stage.write(0, 0, [record(4)])
    stage.write(1, 0, [replace(record(4), value=b"another")])
    stage.commit(4)
    assert dict(stage.verify().counts) == {"altered": 1}


def test_everything_as_it_must_be(stage: Stage) -> None:
    first = [
        record(1),
        record(9),
        record(4),
        record(1, b"b"),
        record(9),
        record(10),
        record(None),
        record(11, key=None),
    ]
    second = [record(7, value=None), record(b"-8"), record(7), record(b"007000")]
    stage.write(0, 0, first)
    stage.write(0, 1, second)
    stage.write(1, 0, [first[0], first[1], first[3], first[5], first[7]])
    stage.write(1, 1, [second[0], second[3]])
    stage.write(2, 0, [stage.letter(second[1], 1, 1), stage.letter(first[6], 0, 6)])
    stage.commit(8, 4)
    report = stage.verify()
    assert report.ok, report.findings
    assert (report.fresh, report.duplicate, report.invalid) == (7, 3, 2)
    assert (report.delivered, report.dead_letters, report.pending) == (7, 2, 0)


def test_what_is_not_committed_is_pending(stage: Stage) -> None:
    stage.write(0, 0, FRESH)
    stage.write(1, 0, FRESH[:4])
    stage.commit(4)
    report = stage.verify()
    assert (report.ok, report.fresh, report.pending, report.never_judged) == (True, 4, 6, [])
    assert (report.is_proven, report.exit_code(), report.exit_code(pending_ok=True)) == (False, 3, 0)


def test_nothing_was_ever_committed(stage: Stage) -> None:
    stage.write(0, 0, FRESH)
    report = stage.verify()
    assert (report.ok, report.fresh, report.pending) == (True, 0, 10)
    assert report.never_judged == [UnjudgedInput(0, 0, 10, deleted=False)]
    assert (report.is_proven, report.exit_code(), report.exit_code(pending_ok=True)) == (False, 3, 0)


def test_a_dropped_record_is_lost(stage: Stage) -> None:
    report = written_with(stage, FRESH[:6] + FRESH[7:])
    assert counts(report) == {"lost": 1}
    (finding,) = report.findings
    assert (finding.input_partition, finding.input_offset) == (1, 6)
    assert (finding.offset, finding.identity, finding.sequence) == (None, "a", 30)


def test_a_record_that_is_there_twice_is_doubled(stage: Stage) -> None:
    report = written_with(stage, [*FRESH[:8], FRESH[3], *FRESH[8:]])
    assert counts(report) == {"doubled": 1}
    (finding,) = report.findings
    assert (finding.partition, finding.offset, finding.input_offset, finding.sequence) == (1, 8, 3, 15)


def test_two_swapped_records_are_reordered(stage: Stage) -> None:
    report = written_with(stage, [*FRESH[:4], FRESH[5], FRESH[4], *FRESH[6:]])
    assert counts(report) == {"reordered": 1}
    (finding,) = report.findings
    assert (finding.offset, finding.input_offset, finding.sequence) == (5, 4, 20)


@pytest.mark.parametrize(
    "change",
    [
        {"value": b"valuE 2"},
        {"value": None},
        {"key": None},
        {"key": b""},
        {"timestamp_ms": FRESH[2].timestamp_ms + 1},
        {"headers": FRESH[2].headers[1:]},
        {"headers": [FRESH[2].headers[1], FRESH[2].headers[0], *FRESH[2].headers[2:]]},
        {"headers": [("trace", b"1"), ("trace", b""), *FRESH[2].headers[2:]]},
        {"headers": [*FRESH[2].headers, ("extra", b"")]},
        {"headers": FRESH[2].headers[:-1]},  # even without its sequence it is known by its place
        {"headers": [header for header in FRESH[2].headers if header[0] != "ratchet-producer"]},
    ],
)
def test_a_changed_record_is_altered(stage: Stage, change: dict[str, Any]) -> None:
    report = written_with(stage, [*FRESH[:2], replace(FRESH[2], **change), *FRESH[3:]])
    assert counts(report) == {"altered": 1}
    (finding,) = report.findings
    assert (finding.offset, finding.input_offset, finding.identity, finding.sequence) == (2, 2, "a", 10)


def test_a_record_from_nowhere_is_unexpected(stage: Stage) -> None:
    report = written_with(stage, [*FRESH[:2], record(11), *FRESH[2:], record(None)])
    assert counts(report) == {"unexpected": 2}
    assert [finding.offset for finding in report.findings] == [2, 11]


def test_a_record_on_another_partition(stage: Stage) -> None:
    stage.write(1, 0, [FRESH[0]])
    report = written_with(stage, FRESH[1:])
    assert counts(report) == {"lost": 1, "unexpected": 1}


def test_everything_at_once_is_told_apart(stage: Stage) -> None:
    output = [FRESH[0], FRESH[2], FRESH[1], FRESH[1], replace(FRESH[4], value=b"?"), *FRESH[5:]]
    assert counts(written_with(stage, output)) == {"lost": 1, "reordered": 1, "doubled": 1, "altered": 1}


def test_only_the_first_few_findings_are_kept(stage: Stage) -> None:
    stage.write(0, 0, [record(i) for i in range(40)])
    stage.commit(40)
    report = stage.verify()
    assert report.lost == 40
    assert [finding.input_offset for finding in report.findings] == list(range(10))


def test_dead_letters(stage: Stage) -> None:
    bad = [record(None, value=b"bad %d" % i) for i in range(6)]
    stage.write(0, 0, bad)
    good = [stage.letter(item, 0, offset) for offset, item in enumerate(bad)]
    no_reason = replace(good[5], headers=[(n, b"" if n == "ratchet-reason" else v) for n, v in good[5].headers])
    stage.write(
        2, 0, [good[0], good[1], good[1], replace(good[2], value=b"BAD 2"), no_reason, stage.letter(bad[0], 1, 0)]
    )
    stage.commit(6)
    report = stage.verify()
    # 3 and 4 have none; 5 has one that does not count, as the one that names partition 1.
    assert counts(report) == {"lost": 3, "doubled": 1, "altered": 1, "unexpected": 2}
    assert {finding.place for finding in report.findings} == {stage.topics[2]}
    assert [f.input_offset for f in report.findings if f.kind == "lost"] == [3, 4, 5]


def test_the_dead_letters_of_another_stream_in_a_shared_topic_are_no_finding(stage: Stage) -> None:
    bad = record(None)
    stage.write(0, 0, [bad])
    other = stage.letter(bad, 0, 0)
    other = replace(other, headers=[(n, b"other" if n == "ratchet-topic" else v) for n, v in other.headers])
    stage.write(2, 0, [stage.letter(bad, 0, 0), other])
    stage.commit(1)
    report = stage.verify()
    assert (report.counts, report.exit_code()) == ({}, ExitCode.PROVEN)
    assert (report.dead_letters, report.other_letters) == (2, 1)


def test_a_dead_letter_published_again_keeps_its_own_headers(stage: Stage) -> None:
    once = stage.letter(record(None), 7, 7)
    stage.write(0, 0, [once])
    stage.write(2, 0, [stage.letter(once, 0, 0)])
    stage.commit(1)
    assert stage.verify().ok


def test_what_an_aborted_transaction_wrote_does_not_count(stage: Stage) -> None:
    options: dict[str, Any] = {"bootstrap.servers": stage.broker, "transactional.id": stage.settings.app}
    sender = Producer(options)
    sender.init_transactions(30)
    sender.begin_transaction()
    stage.write(0, 0, [record(100)], sender)
    stage.write(1, 0, [record(100)], sender)
    sender.abort_transaction(30)
    sender.begin_transaction()
    stage.write(0, 0, [record(3)], sender)
    stage.write(1, 0, [record(3)], sender)
    sender.commit_transaction(30)
    stage.commit(3)
    report = stage.verify()
    assert (report.ok, report.fresh, report.duplicate, report.delivered) == (True, 1, 0, 1)


def test_an_open_transaction_is_waited_for(stage: Stage) -> None:
    """Its records are written and its offsets sent, but not committed: all of it counts, or nothing."""
    stage.write(0, 0, FRESH)
    stage.write(1, 0, FRESH[:5])
    stage.commit(5)
    # The broker aborts it after a second, and looks for such every ten.
    sender = Producer(
        {
            "bootstrap.servers": stage.broker,
            "transactional.id": stage.settings.app,
            "transaction.timeout.ms": 1000,
            "message.timeout.ms": 1000,
        }
    )
    sender.init_transactions(30)
    sender.begin_transaction()
    stage.write(1, 0, FRESH[5:], sender)
    report = stage.verify()
    assert (report.ok, report.delivered, report.pending) == (True, 5, 5)


@pytest.mark.parametrize("identity", [Identity.PARTITION, Identity.KEY, Identity.PRODUCER])
def test_identities(broker: str, new_topic: NewTopic, identity: Identity) -> None:
    stage = Stage(broker, new_topic, 1, identity=identity)
    items = [
        record(1, b"a", key=b"x"),
        record(1, b"b", key=b"x"),
        record(1, b"a", key=b"y"),
        record(1, b"b", key=b"y"),
    ]
    fresh = {Identity.PARTITION: [0], Identity.KEY: [0, 2], Identity.PRODUCER: [0, 1]}[identity]
    stage.write(0, 0, items)
    stage.write(1, 0, [items[i] for i in fresh])
    stage.commit(4)
    report = stage.verify()
    assert report.ok, report.findings
    assert report.fresh == len(fresh)


def sequence_from_value(item: RecordView) -> object:
    text = (item.value or b"").decode()
    return {"none": None, "text": "5", "true": True}.get(text) if not text.isdigit() else int(text)


HEADER, FIELD = "header:ratchet-sequence", "field:meta.n"
FUNCTION = f"function:{__name__}:sequence_from_value"


@pytest.mark.parametrize(
    ("source", "item", "sequence"),
    [
        (HEADER, record(12), 12),
        (HEADER, record(2**63 - 1), 2**63 - 1),
        (HEADER, record(b"\xff" * 8), None),
        (HEADER, record(b"0"), 0),
        (HEADER, record(b"12345678"), 12345678),
        (HEADER, record(b"1234567x"), int.from_bytes(b"1234567x", "big")),
        (HEADER, record(b"-1234567"), None),
        (HEADER, record(b"9223372036854775807"), 2**63 - 1),
        (HEADER, record(b"9223372036854775808"), None),
        (HEADER, record(b"9" * 10_000), None),
        (HEADER, record(b"0" * 10_000 + b"7"), 7),
        (HEADER, record(b""), None),
        (HEADER, record(b"-"), None),
        (HEADER, record(b"+5"), None),
        (HEADER, record(b" 5"), None),
        (HEADER, record("٣".encode()), None),
        (HEADER, record(b"\x00\x00\x05"), None),
        (HEADER, record(None), None),
        (HEADER, RecordView(b"", b"", [("ratchet-producer", b"a"), ("ratchet-sequence", None)], 0), None),
        (HEADER, RecordView(b"", b"", [*record(1).headers, ("ratchet-sequence", b"2")], 0), None),
        (HEADER, RecordView(b"", b"", [*record(1).headers, ("ratchet-producer", b"a")], 0), None),
        (HEADER, record(1, producer=b""), None),
        (HEADER, record(1, producer=None), None),
        (HEADER, record(1, producer=b"x" * 1024), 1),
        (HEADER, record(1, producer=b"x" * 1025), None),
        ("header:other", record(1), None),
        (FIELD, record(None, value=b'{"meta":{"n":5}}'), 5),
        (FIELD, record(None, value=b'{"meta":{"n":"0123"}}'), 123),
        (FIELD, record(None, value=b'{"meta":{"n":1,"n":2}}'), 2),
        (FIELD, record(None, value=b'{"meta":{"n":5.0}}'), None),
        (FIELD, record(None, value=b'{"meta":{"n":true}}'), None),
        (FIELD, record(None, value=b'{"meta":{"n":-1}}'), None),
        (FIELD, record(None, value=b'{"meta":{"n":9223372036854775808}}'), None),
        (FIELD, record(None, value=b'{"meta":[5]}'), None),
        (FIELD, record(None, value=b'{"meta":{"n":5},"x":NaN}'), None),
        (FIELD, record(None, value=b'{"x":' + b"[" * 100_000), None),
        (FIELD, record(None, value=b"5"), None),
        (FIELD, record(None, value=None), None),
        (FUNCTION, record(None, value=b"77"), 77),
        (FUNCTION, record(None, value=b"none"), None),
        (FUNCTION, record(None, value=b"text"), None),
        (FUNCTION, record(None, value=b"true"), None),
        (FUNCTION, record(None, value=b"\xff"), None),
    ],
)
def test_the_rule(source: str, item: RecordView, sequence: int | None) -> None:
    found = Rule(Identity.PRODUCER, SequenceSource.parse(source)).identify(item)
    assert (found[1] if found else None) == sequence


def test_a_null_key_is_no_identity_but_an_empty_one_is() -> None:
    rule = Rule(Identity.KEY, SequenceSource.parse(HEADER))
    assert rule.identify(record(1, key=None)) is None
    assert rule.identify(record(1, key=b"")) == (b"", 1)


def test_an_extractor_that_cannot_be_imported() -> None:
    with pytest.raises(SettingsError, match=r"function:no_such_module:f cannot be imported"):
        Rule(Identity.KEY, SequenceSource.parse("function:no_such_module:f"))


def test_topics_that_cannot_be_compared(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic)
    chosen = stage.settings.streams["events"]

    def verify_with(**change: str) -> Report:
        return verify(stage.settings.model_copy(update={"streams": {"events": chosen.model_copy(update=change)}}))

    with pytest.raises(TopicMissing, match="topic 'no-such-output' does not exist"):
        verify_with(output="no-such-output")
    with pytest.raises(PartitionsDiffer, match=r"has 2 partitions and output .* has 3"):
        verify_with(output=new_topic(3))


def test_an_input_that_ends_before_what_was_committed_cannot_be_compared(stage: Stage) -> None:
    stage.write(0, 1, FRESH[:5])
    stage.write(1, 1, FRESH)
    stage.commit(0, 10)
    with pytest.raises(PositionLost, match=r"partition 1 ends at offset 5, and group .* has committed 10"):
        stage.verify()


def run(stage: Stage, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    given, output, letters = stage.topics
    settings = tmp_path / "ratchet.toml"
    settings.write_text(
        f'app = "{stage.settings.app}"\n'
        f'[streams.events]\ninput = "{given}"\noutput = "{output}"\ndead_letters = "{letters}"\n'
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")}
    return subprocess.run(
        [sys.executable, "-m", "kafka_ratchet", "verify", "--config", str(settings), *arguments],
        cwd=tmp_path,
        env=environment | {"RATCHET_BOOTSTRAP": stage.broker, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_says_zero_and_exits_zero(stage: Stage, tmp_path: Path) -> None:
    written_with(stage, FRESH)
    done = run(stage, tmp_path)
    assert done.returncode == 0, done.stderr
    # A Kafka that is silent for a second is waited for, and that is said.
    assert [line for line in done.stderr.splitlines() if "does not answer yet" not in line] == []
    assert "10 fresh, 2 duplicate, 0 invalid" in done.stdout
    assert "lost 0, doubled 0, reordered 0, altered 0, unexpected 0" in done.stdout


def test_the_command_names_what_is_wrong_and_exits_one(stage: Stage, tmp_path: Path) -> None:
    written_with(stage, [*FRESH[:6], *FRESH[7:], FRESH[0]])
    done = run(stage, tmp_path, "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["ok"], told["lost"], told["doubled"], told["fresh"], told["pending"]) == (False, 1, 1, 10, 0)
    assert sorted(told["findings"]) == [
        f"doubled: topic {stage.topics[1]}, partition 1 offset 9, input partition 1 offset 0, identity 'a' sequence 0",
        f"lost: topic {stage.topics[1]}, input partition 1 offset 6, identity 'a' sequence 30",
    ]


def test_the_command_exits_three_while_input_waits_and_zero_for_a_look_in_between(stage: Stage, tmp_path: Path) -> None:
    stage.write(0, 1, [*FRESH, record(99)])
    stage.write(1, 1, FRESH)
    stage.commit(0, 10)
    done = run(stage, tmp_path)
    assert done.returncode == 3, done.stderr
    assert "not all proven: 1 pending\n" in done.stdout
    assert "lost 0, doubled 0" in done.stdout
    told = run(stage, tmp_path, "--pending-ok", "--json")
    assert told.returncode == 0, told.stderr
    answer = json.loads(told.stdout)
    assert (answer["ok"], answer["proven"], answer["pending"], answer["halted"]) == (True, False, 1, [])


def test_sequences_of_a_doubtful_form_are_not_called_right(broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    stage = Stage(broker, new_topic)
    sent = [record(n.to_bytes(8, "little"), value=b"%d" % n) for n in range(1, 1_001)]
    read = [int.from_bytes(n.to_bytes(8, "little"), "big", signed=True) for n in range(1, 1_001)]
    rises = [i for i, number in enumerate(read) if number > max(read[:i], default=-1)]
    letters = [stage.letter(sent[i], 0, i) for i, number in enumerate(read) if number < 0]
    stage.write(0, 0, sent)
    stage.write(1, 0, [sent[i] for i in rises])
    stage.write(2, 0, letters)
    stage.commit(len(sent), 0)
    report = stage.verify()
    assert report.exit_code() is ExitCode.NOT_ALL_PROVEN
    assert report.exit_code(pending_ok=True) is ExitCode.NOT_ALL_PROVEN
    [(partition, (offset, reason))] = report.doubtful.items()
    assert (partition, offset) == (0, 1)
    assert 'Set sequence_form = "little-endian"' in reason
    done = run(stage, tmp_path)
    assert done.returncode == 3, done.stderr
    assert "doubtful: input partition 0, offset 1: the header ratchet-sequence has the bytes 02 00 00" in done.stdout
    assert "1 partitions with sequences of a doubtful form" in done.stdout
    for _ in range(2):  # the state does not move on past it
        again = verify(stage.settings, state=tmp_path / "state")
        assert (again.exit_code(), again.state_written) == (ExitCode.NOT_ALL_PROVEN, False)


def test_little_endian_sequences_are_proven_by_their_form(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic, sequence_form=SequenceForm.LITTLE_ENDIAN)
    sent = [record(n.to_bytes(8, "little"), value=b"%d" % n) for n in range(1, 1_001)]
    stage.write(0, 0, [*sent, *sent[500:600]])
    stage.write(1, 0, sent)
    stage.commit(len(sent) + 100, 0)
    report = stage.verify()
    assert (report.exit_code(), report.fresh, report.duplicate) == (ExitCode.PROVEN, 1_000, 100)


def test_what_is_wrong_is_wrong_in_between_too(stage: Stage, tmp_path: Path) -> None:
    stage.write(0, 1, [*FRESH, record(99)])
    stage.write(1, 1, FRESH[1:])
    stage.commit(0, 10)
    assert run(stage, tmp_path, "--pending-ok").returncode == 1


async def test_a_halted_partition_is_named_by_its_worker(broker: str, new_topic: NewTopic) -> None:
    settings = settings_for(broker, topic := new_topic(2))
    known = KnownWorker([table(partition(0), partition(1, state="halted", error="offset 7: corrupt"), topic=topic)])
    server = StatusServer(known)
    address = await server.start()
    async with member(settings, topic, address):
        found = await asyncio.to_thread(halted_partitions, settings, "events")
    await server.stop()
    assert found == [HaltedPartition(1, "offset 7: corrupt")]
    report = Report("events", halted=found)
    assert (report.ok, report.exit_code(), report.exit_code(pending_ok=True)) == (True, 3, 0)
    assert report.as_dict()["halted"] == [{"partition": 1, "error": "offset 7: corrupt"}]


def test_the_page_of_verify_has_every_exit_code_and_so_has_its_help() -> None:
    page = (ROOT / "docs" / "guide" / "verify.md").read_text("utf-8")
    assert re.findall(r"^\| ([0-9]+) \|", page, re.MULTILINE) == [str(code.value) for code in ExitCode]
    assert re.findall(r"^ +([0-9])  ", verify_command.__doc__ or "", re.MULTILINE) == [
        str(each.value) for each in ExitCode
    ]


def test_an_unknown_stream_is_said_before_kafka_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="no stream 'other'"):
        verify_command(stream="other")
