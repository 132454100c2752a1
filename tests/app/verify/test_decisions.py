"""Owner and operators' decisions in the changelog, as the proof uses them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as Topic

from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.verify import ExitCode, SkippedInput, verify
from kafka_ratchet.app.verify.policies import skipped_by_decision
from kafka_ratchet.rule.identity import SequenceForm
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.transport.owner import Decision, Mark, Owner
from kafka_ratchet.transport.owner import Topic as OwnedTopic
from tests.app.verify.test_retention import delete_before
from tests.app.written_stream import NewTopic, Stage, record

FRESH = [record(5 * i, value=b"value %d" % i) for i in range(10)]


def decided(*moves: tuple[int | None, int | None]) -> Owner:
    decisions = tuple(
        Decision(f"2026-11-22T0{number}:00:00Z", "ann@desk", "resume", f"reason {number}", before, after)
        for number, (before, after) in enumerate(moves)
    )
    return Owner("shop", "events", {}, {}, decisions)


@pytest.mark.parametrize(
    ("moves", "skipped"),
    [
        ([], []),
        ([(3, 7)], [(3, 7)]),
        ([(7, 3)], []),
        ([(3, 3)], []),
        ([(3, 7), (9, 12)], [(3, 7), (9, 12)]),
        ([(3, 7), (9, 5)], [(3, 5)]),
        ([(3, 7), (9, 0)], []),
        ([(3, 7), (None, 4)], [(0, 4)]),
        ([(3, 7), (None, 0)], []),
        ([(3, 7), (None, None)], [(3, 7)]),
    ],
)
def test_what_decisions_have_left_out(
    moves: list[tuple[int | None, int | None]], skipped: list[tuple[int, int]]
) -> None:
    assert [(skip.start, skip.end) for skip in skipped_by_decision(decided(*moves))] == skipped


def owned(stage: Stage, owner: Owner) -> None:
    """The changelog has this owner entry."""
    changelog = changelog_name(stage.settings.app, "events")
    admin = AdminClient({"bootstrap.servers": stage.broker})
    admin.create_topics([Topic(changelog, 1, 1)])[changelog].result(30)
    key, value = owner.pack()
    stage.producer.produce(changelog, value, key)
    stage.producer.produce(changelog, Progress(10, 0, 0, 0).pack(), PROGRESS)
    stage.producer.flush()


def topics(stage: Stage) -> dict[str, OwnedTopic]:
    names = {"input": stage.topics[0], "output": stage.topics[1]}
    admin = AdminClient({"bootstrap.servers": stage.broker})
    found = admin.describe_topics(TopicCollection(list(names.values())))
    return {part: OwnedTopic(name, str(found[name].result().topic_id)) for part, name in names.items()}


def test_records_that_a_person_has_skipped_are_not_lost(broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    stage = Stage(broker, new_topic, 1)
    stage.write(0, 0, FRESH)
    stage.write(1, 0, [*FRESH[:3], *FRESH[7:]])
    stage.commit(10)
    assert stage.verify().lost == 4
    owned(stage, Owner(stage.settings.app, "events", {}, topics(stage), decided((3, 7)).decisions))
    report = verify(stage.settings, state=tmp_path / "state")
    assert (report.counts, report.fresh, report.exit_code()) == ({}, 6, ExitCode.PROVEN)
    assert report.skipped == [SkippedInput(0, 3, 7, 4, "ann@desk", "2026-11-22T00:00:00Z", "reason 0")]
    assert str(report.skipped[0]) == (
        "skipped by decision: 4 records, input partition 0 offsets 3 to 6, "
        "by ann@desk at 2026-11-22T00:00:00Z: reason 0"
    )
    assert verify(stage.settings, state=tmp_path / "state").skipped == []


def test_what_is_lost_beside_what_a_person_has_skipped_is_lost(broker: str, new_topic: NewTopic) -> None:
    stage = Stage(broker, new_topic, 1)
    stage.write(0, 0, FRESH)
    stage.write(1, 0, [*FRESH[:3], *FRESH[8:]])
    stage.commit(10)
    owned(stage, Owner(stage.settings.app, "events", {}, topics(stage), decided((3, 7)).decisions))
    assert dict(stage.verify().counts) == {"lost": 1}


def test_what_went_with_an_accepted_loss_is_listed(broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    stage = Stage(broker, new_topic, 1)
    stage.write(0, 0, FRESH)
    stage.write(1, 0, [*FRESH[3:4], *FRESH[7:]])  # the output of the first three was deleted with its topic
    stage.commit(10)
    marks = [Mark({}, output, 0, 0, 0, 0, 1, replaced) for output, replaced in ((0, ("output",)), (1, ()))]
    moves = [
        msgspec.structs.replace(each, mark=mark)
        for each, mark in zip(decided((3, 3), (4, 7)).decisions, marks, strict=True)
    ]
    owned(stage, Owner(stage.settings.app, "events", {}, topics(stage), tuple(moves)))
    report = stage.verify()
    assert (report.counts, report.output_replaced, report.exit_code()) == ({}, 3, ExitCode.PROVEN)
    # Retention has deleted what was skipped: the loss stays in the report.
    delete_before(stage, 0, 7)
    report = verify(stage.settings, state=tmp_path / "state")
    assert (report.counts, report.exit_code()) == ({}, ExitCode.PROVEN)
    assert report.skipped == [SkippedInput(0, 4, 7, 0, "ann@desk", "2026-11-22T01:00:00Z", "reason 1")]
    assert verify(stage.settings, state=tmp_path / "state").skipped == []


@pytest.mark.parametrize("part", ["input", "output"])
def test_a_topic_that_was_made_again_cannot_be_compared(broker: str, new_topic: NewTopic, part: str) -> None:
    stage = Stage(broker, new_topic, 1)
    stage.write(0, 0, FRESH)
    stage.write(1, 0, FRESH[:4])
    stage.commit(10)
    known = topics(stage)
    known[part] = OwnedTopic(known[part].name, "AAAAAAAAAAAAAAAAAAAAAA")
    owned(stage, Owner(stage.settings.app, "events", {}, known))
    report = stage.verify()
    assert (report.counts, report.pending, report.exit_code()) == ({}, 10, ExitCode.NOT_ALL_PROVEN)
    assert report.exit_code(pending_ok=True) is ExitCode.NOT_ALL_PROVEN
    (halted,) = report.halted
    assert f"its {part} was {known[part].name} (id AAAAAAAAAAAAAAAAAAAAAA), and is" in halted.error


@pytest.mark.parametrize(("after", "result"), [(0, ExitCode.PROVEN), (3, ExitCode.NOT_ALL_PROVEN)])
def test_a_doubtful_form_is_forgiven_where_a_stated_form_judged_it_again(
    broker: str, new_topic: NewTopic, after: int, result: ExitCode
) -> None:
    sent = [record(number.to_bytes(8, "little"), value=b"%d" % number) for number in range(1, 11)]
    stage = Stage(broker, new_topic, 1, sequence_form=SequenceForm.LITTLE_ENDIAN)
    guessed = [*sent[:3]]  # multiples of 2^56, which rise
    stage.write(0, 0, sent)
    stage.write(1, 0, [*guessed, *sent[after:]])
    stage.commit(10)
    rule = {"identity": "producer", "sequence": "header:ratchet-sequence", "sequence_form": "guess"}
    mark = Mark(rule, output=3, dead_letters=0, duplicates=0, intervals=0, edits=0, identities=1)
    what = "resume --forget --reason TEXT --execute"
    decision = Decision("2026-11-22T00:00:00Z", "ann@desk", what, "little-endian", 3, after, mark)
    owned(
        stage,
        Owner(stage.settings.app, "events", rule | {"sequence_form": "little-endian"}, topics(stage), (decision,)),
    )
    report = stage.verify()
    assert report.exit_code() is result
    assert {number: offset for number, (offset, _) in report.doubtful.items()} == ({} if after == 0 else {0: 1})
