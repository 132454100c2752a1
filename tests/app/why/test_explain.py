"""Trace of a record, in topics written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as Topic

from kafka_ratchet.app.cli.why import sentences
from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.why.answer import Answer, ExitCode, RecordPosition
from kafka_ratchet.app.why.changelog import Log, ProgressEntry
from kafka_ratchet.app.why.explain import Explanation
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.producers import admin_client, describe_topic
from kafka_ratchet.tables.edits import FORGET, Edit
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.topic_log.clients import consumer, offset_ranges
from kafka_ratchet.transport.owner import AGENTS, INPUT, OUTPUT, Decision, DuplicatesFrom, JudgingFrom, Mark, Owner
from kafka_ratchet.transport.owner import Topic as OwnedTopic
from tests.app.verify.test_decisions import owned, topics
from tests.app.written_stream import NOW_MS, NewTopic, Stage, record


def asked(stage: Stage, limit_s: float = 60.0) -> Explanation:
    return Explanation(stage.settings, "events", stage.broker, limit_s=limit_s, watch=lambda done, total: None)


def verdicts(answer: Answer) -> list[tuple[int, str, int | None]]:
    return [(each.at.offset, each.verdict, each.against) for each in answer.arrivals]


def test_a_transaction_is_told_where_the_changelog_still_has_it() -> None:
    first, second = ProgressEntry(5, 10, 0), ProgressEntry(9, 12, 0)
    log = Log("changelog", 0, [first, second])
    assert [log.step(offset) for offset in (4, 5, 8, 9)] == [(first, False), (second, True), (second, True), None]
    log.is_whole = True
    assert log.step(4) == (first, True)


def test_each_arrival_is_judged_and_followed(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic, 1)
    given, output, letters = stage.topics
    sent = [
        *(record(3), record(None), record(3, b"b"), record(3), record(4)),
        *(record(4), record(9)),  # off
        *(record(9), record(10), record(10)),  # the last two wait
    ]
    stage.write(0, 0, sent)
    stage.write(1, 0, [sent[i] for i in (0, 2, 4, 5, 6, 7)])
    stage.write(2, 0, [stage.letter(sent[1], 0, 1)])
    changelog = changelog_name(stage.settings.app, "events")
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([Topic(changelog, 1, 1)])[changelog].result(30)
    steps = [(PROGRESS, Progress(offset, 0, 0, 0).pack()) for offset in (3, 5, 8)]
    off = PolicyInterval(0, False, 5, 7, 1, 2).pack()
    who = "0", FORGET, "2026-01-01T00:00:00+00:00", "me@here", "began anew"
    edit = Edit(*who, 3, b"b".hex(), None, 3, -1).pack(0)
    for key, value in [*steps, off, edit, (b"ia", None)]:
        stage.producer.produce(changelog, value, key)
    stage.producer.flush()
    stage.commit(8)

    answer = asked(stage).of_identity(b"a", None)
    assert verdicts(answer) == [
        *((0, "fresh", None), (3, "duplicate", 3), (4, "fresh", 3), (5, "unjudged", None), (6, "unjudged", None)),
        *((7, "fresh", 4), (8, "waiting", None), (9, "waiting", None)),
    ]
    assert [each.lag for each in answer.arrivals[-2:]] == [0, 1]
    where = [each.forwarded and each.forwarded.offset for each in answer.arrivals]
    assert where == [0, None, 2, 3, 4, 5, None, None]
    own = [each.transaction and each.transaction.changelog for each in answer.arrivals]
    first, second, third = (RecordPosition(changelog, 0, offset) for offset in range(3))
    assert own == [first, second, second, third, third, third, None, None]
    assert any(limit.startswith("the identity was forgotten at ") for limit in answer.limits)
    said = "\n".join(sentences(answer))
    assert f"sequence 10 arrived at {given} partition 0 offset 9" in said
    assert "not judged yet: 1 offsets before it wait" in said

    of_b = asked(stage).of_identity(b"b", 3)
    (only,) = of_b.arrivals
    assert any(
        limit.endswith("last sequence 3, now nothing, by me@here at 2026-01-01T00:00:00+00:00: began anew")
        for limit in of_b.limits
    )
    assert (only.at.offset, only.verdict, only.forwarded) == (2, "fresh", RecordPosition(output, 0, 1))
    (bad,) = asked(stage).of_record(given, 0, 1).arrivals
    assert (bad.verdict, bad.dead_letter, bad.reason) == ("invalid", RecordPosition(letters, 0, 0), "sequence-missing")
    assert asked(stage).of_record(letters, 0, 0).arrivals == [bad]
    assert verdicts(asked(stage).of_record(output, 0, 0)) == [(0, "fresh", None), (3, "duplicate", 3)]

    # A worker that knows nothing of it had judged all before offset 8; two of its records wait behind that.
    assert verdicts(asked(stage).of_identity(b"a", None, None, {0: 10})) == verdicts(answer)
    left_out = asked(stage).of_identity(b"b", None, None, {0: 8})
    assert (left_out.arrivals, left_out.exit_code) == ([], ExitCode.NOT_ALL_READ)
    assert left_out.limits == [
        "searched only unread records in 1 of 1 partitions, because their workers have never seen the identity"
    ]

    nothing = asked(stage).of_identity(b"a", 5)
    assert (nothing.exit_code, nothing.arrivals, nothing.limits[-1:]) == (ExitCode.NOT_FOUND, [], nothing.limits[-1:])
    assert asked(stage).of_record(given, 0, 99).exit_code is ExitCode.NOT_FOUND
    assert asked(stage, limit_s=-1.0).of_identity(b"a", 5).exit_code is ExitCode.NOT_ALL_READ
    with pytest.raises(SettingsError, match="has 1 partitions, 0 to 0: there is no partition 7"):
        asked(stage).of_record(given, 7, 0)
    with pytest.raises(SettingsError, match="stream events has no topic 'elsewhere'"):
        asked(stage).of_record("elsewhere", 0, 0)


def test_what_the_output_lacks_or_has_too_often_is_said(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic, 1)
    sent = [record(1), record(2), replace(record(2), value=b"again")]
    stage.write(0, 0, sent)
    stage.write(1, 0, [sent[1], sent[2]])
    stage.commit(3)
    (lost,) = asked(stage).of_identity(b"a", 1).arrivals
    assert "although by the rule it should be: run `ratchet verify`" in lost.notes[-1]
    twice = asked(stage).of_identity(b"a", 2)
    assert [each.forwarded and each.forwarded.offset for each in twice.arrivals] == [0, None]
    assert not twice.limits  # without bounds the output is read up to the first only


def test_a_surplus_record_of_the_output_does_not_hide_a_later_one(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic, 1)
    stage.write(0, 0, [record(1), record(2)])
    stage.write(1, 0, [record(1), record(1), record(2)])
    stage.commit(2)
    whole = asked(stage).of_identity(b"a", None)
    assert [each.forwarded and each.forwarded.offset for each in whole.arrivals] == [0, 2]
    surplus = asked(stage).of_record(stage.topics[1], 0, 1)
    assert [each.forwarded and each.forwarded.offset for each in surplus.arrivals] == [0]
    for answer in (whole, surplus):
        assert "has 2 records of sequence 1 (also offsets 1), and by the rule 1 had" in answer.limits[-1]


def test_records_on_both_sides_of_a_decision_are_followed(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic, 1)
    stage.write(0, 0, [record(1), record(2), record(2), record(3)])
    stage.write(1, 0, [record(3)])  # the output of the first two was deleted
    stage.commit(4)
    mark = Mark({}, output=0, dead_letters=0, duplicates=0, intervals=0, edits=0, identities=1, replaced=(OUTPUT,))
    decision = Decision("2026-11-22T00:00:00Z", "ann@desk", "resume", "output again", 2, 2, mark)
    owned(stage, Owner(stage.settings.app, "events", {}, topics(stage), (decision,)))
    assert verdicts(asked(stage).of_identity(b"a", None)) == [
        *((0, "fresh", None), (1, "fresh", 1), (2, "duplicate", 2), (3, "fresh", 2))
    ]
    first = asked(stage).of_identity(b"a", 1).arrivals[0]
    assert first.notes[-1] == (
        f"it is not in {stage.topics[1]}, which was created again: accepted by ann@desk at 2026-11-22T00:00:00Z: "
        "output again"
    )


def test_a_window_goes_on_after_a_decision(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic, 1, reorder_window=64)
    sent = [record(each) for each in (1, 2, 3, 5, 10, 4, 6)]
    stage.write(0, 0, sent)
    stage.write(1, 0, [*sent[:4], *sent[5:]])  # an operator has skipped 10
    stage.commit(7)
    mark = Mark({}, output=4, dead_letters=0, duplicates=0, intervals=0, edits=0, identities=1)
    decision = Decision("2026-11-22T00:00:00Z", "ann@desk", "resume --skip", "too large", 4, 5, mark)
    judging = (JudgingFrom(0, {"reorder_window": "64"}),)
    owned(stage, Owner(stage.settings.app, "events", {}, topics(stage), (decision,), judging=judging))
    (late,) = asked(stage).of_identity(b"a", 4).arrivals
    assert (late.verdict, late.forwarded) == ("fresh", RecordPosition(stage.topics[1], 0, 4))


def test_results_of_a_former_input_are_not_those_of_the_present_one(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic, 1)
    given, output, letters = stage.topics
    sent = [record(None), record(1)]
    stage.write(0, 0, sent)
    stage.write(1, 0, [record(1), record(1)])
    stage.write(2, 0, [stage.letter(record(None, b"former"), 0, 0), stage.letter(sent[0], 0, 0)])
    stage.commit(2)
    mark = Mark({}, output=1, dead_letters=1, duplicates=0, intervals=0, edits=1, identities=0, replaced=(INPUT,))
    decision = Decision("2026-11-22T00:00:00Z", "ann@desk", "resume", "input again", 5, 0, mark)
    owner = Owner(stage.settings.app, "events", {}, topics(stage), (decision,))
    owned(stage, owner)
    changelog = changelog_name(stage.settings.app, "events")
    edits = [
        Edit(f"{number}", FORGET, "2026-01-01T00:00:00+00:00", "me@here", why, at, b"a".hex(), None, 3, -1).pack(number)
        for number, (why, at) in enumerate((("of the former", 3), ("of the present", 2)))
    ]
    for key, value in edits:
        stage.producer.produce(changelog, value, key)
    stage.producer.flush()
    (bad,) = asked(stage).of_record(given, 0, 0).arrivals
    assert bad.dead_letter == RecordPosition(letters, 0, 1)
    assert asked(stage).of_record(letters, 0, 1).arrivals == [bad]
    answer = asked(stage).of_identity(b"a", 1)
    (fresh,) = answer.arrivals
    assert (fresh.verdict, fresh.forwarded) == ("fresh", RecordPosition(output, 0, 1))
    (said,) = (limit for limit in answer.limits if "me@here" in limit)
    assert said.startswith(f"before {given} partition 0 offset 2: ")
    assert said.endswith("of the present")
    former = asked(stage).of_record(letters, 0, 0)
    assert former.exit_code is ExitCode.NOT_FOUND
    assert f"its record was at offset 0 of a former {given}, and is deleted" in former.limits[-1]
    assert former.limits[-1].endswith("accepted by ann@desk at 2026-11-22T00:00:00Z: input again")

    key, value = msgspec.structs.replace(owner, rule={"output": AGENTS}).pack()
    stage.producer.produce(changelog, value, key)
    stage.producer.flush()
    (sent_on,) = asked(stage).of_identity(b"a", 1).arrivals
    assert [each.at for each in sent_on.sent] == [RecordPosition(output, 0, 1)]


def test_dropped_records_in_another_topic_than_at_a_decision_are_found(broker: str, new_topic: NewTopic) -> None:
    dropped = new_topic(1)
    stage = Stage(broker, new_topic, 1, duplicates=dropped)
    given = stage.topics[0]
    stage.write(0, 0, [record(1), record(1)])
    stage.write(1, 0, [record(1)])
    headers = [
        *record(1).headers,
        *(("ratchet-verdict", b"duplicate"), ("ratchet-last-sequence", b"1")),
        *(("ratchet-topic", given.encode()), ("ratchet-partition", b"0"), ("ratchet-offset", b"1")),
    ]
    stage.producer.produce(dropped, b"v", b"k", 0, timestamp=NOW_MS, headers=headers)
    stage.commit(2)
    mark = Mark({}, output=0, dead_letters=0, duplicates=1000, intervals=0, edits=0, identities=0, replaced=(INPUT,))
    decision = Decision("2026-11-22T00:00:00Z", "ann@desk", "resume", "input again", None, 0, mark)
    found = describe_topic(admin_client({"bootstrap.servers": broker}), dropped, timeout_s=30, say=lambda _: None)
    assert found is not None
    kept_in = DuplicatesFrom(0, OwnedTopic("former", "A" * 22)), DuplicatesFrom(1, OwnedTopic(dropped, found.id))
    owned(stage, Owner(stage.settings.app, "events", {}, topics(stage), (decision,), duplicates=kept_in))
    report = stage.verify()
    assert (report.counts, report.duplicates_kept) == ({}, 1)
    kept = RecordPosition(dropped, 0, 0)
    assert [each.kept for each in asked(stage).of_identity(b"a", 1).arrivals] == [None, kept]
    assert [each.kept for each in asked(stage).of_record(given, 0, 1).arrivals] == [kept]
    (of_copy,) = asked(stage).of_record(dropped, 0, 0).arrivals
    assert (of_copy.at, of_copy.kept) == (RecordPosition(given, 0, 1), kept)


def test_a_question_about_one_record_asks_about_its_partition_only(
    broker: str, new_topic: NewTopic, questions: list[tuple[str, int]]
) -> None:
    dropped = new_topic(32)
    stage = Stage(broker, new_topic, 32, duplicates=dropped)
    given, output, _ = stage.topics
    stage.write(0, 7, [record(1), record(1)])
    stage.write(1, 7, [record(1)])
    stage.write(0, 9, [record(1, b"b")])
    stage.commit(*[0] * 7, 2)
    changelog = changelog_name(stage.settings.app, "events")
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([Topic(changelog, 32, 1)])[changelog].result(30)
    with consumer({"bootstrap.servers": broker}, "reads") as client:
        offset_ranges(client, changelog, 32, settle_s=60)  # until it is there

    def question(ask: Callable[[Explanation], Answer]) -> tuple[Answer, list[int]]:
        """The answer, and of how many partitions each question to Kafka about offsets was, the largest first."""
        questions.clear()
        explanation = asked(stage)
        found = ask(explanation)
        explanation.close()
        names = [what for what, _ in questions]
        assert names.count("topic") <= 7  # each topic once, by each client that reads it; open transactions have one
        assert "all topics" not in names
        return found, sorted((of for what, of in questions if what in ("offsets", "committed")), reverse=True)

    answer, sizes = question(lambda explanation: explanation.of_record(given, 7, 1))
    assert verdicts(answer) == [(0, "fresh", None), (1, "duplicate", 1)]
    assert answer.arrivals[0].forwarded == RecordPosition(output, 7, 0)
    assert set(sizes) == {1}
    # A worker knows the identity in one partition, and nothing of it in the others: of those only what waits is read.
    known_nowhere = dict.fromkeys(set(range(32)) - {7}, 0)
    answer, sizes = question(lambda explanation: explanation.of_identity(b"a", 1, range(32), known_nowhere))
    assert verdicts(answer) == [(0, "fresh", None), (1, "duplicate", 1)]
    assert "searched only unread records in 31 of 32 partitions" in answer.limits[0]
    assert sizes[:4] == [31, 31, 31, 1]
    answer, sizes = question(lambda explanation: explanation.of_identity(b"b", 1, range(32), known_nowhere))
    assert [(each.at.partition, each.verdict) for each in answer.arrivals] == [(9, "waiting")]
    answer, sizes = question(lambda explanation: explanation.of_identity(b"nobody", 1, range(32), known_nowhere))
    assert (answer.arrivals, answer.read_all) == ([], False)
