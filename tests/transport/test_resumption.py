"""Start position of a lane: group, changelog and topics have to agree."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog

from kafka_ratchet.errors import ChangelogLost, ForeignOffset, OwnerDiffers, TopicReplaced
from kafka_ratchet.transport.client.cluster import CommittedPosition
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.owner import (
    AGENTS,
    RECORDS,
    UNDECIDED,
    Decision,
    DuplicatesFrom,
    JudgingFrom,
    Owner,
    Topic,
    states_its_form,
)
from kafka_ratchet.transport.resumption import (
    agreed_owner,
    agreed_position,
    may_be_unread,
    with_duplicates,
    with_judging,
)
from kafka_ratchet.transport.transactions.requests import UNKNOWN_EPOCH, offset_metadata

HERE, ELSEWHERE = "A" * 22, "B" * 22
SPEC = LaneSpec("in", 0, "out", "dead", "group", "id", app="app", stream="events", claimed={"in": HERE})
OURS = offset_metadata(HERE, 1)


def changelog(position: int | None, owner: Owner | None = None, *, has_processed: bool = True) -> Any:
    return SimpleNamespace(changelog="changelog", input_position=position, owner=owner, has_processed=has_processed)


@pytest.mark.parametrize(
    ("committed", "known", "position"),
    [
        (None, None, None),  # nobody was ever here
        (None, 7, 7),  # Kafka has forgotten the group's offset
        (CommittedPosition(7, OURS), 7, 7),
        (CommittedPosition(5, OURS), 7, 7),  # the group's coordinator has not read all of its log
    ],
)
def test_where_they_agree(committed: CommittedPosition | None, known: int | None, position: int | None) -> None:
    assert agreed_position(SPEC, changelog(known), committed, HERE) == position


@pytest.mark.parametrize(("offset", "warnings"), [(7, 0), (6, 1)])
def test_only_an_older_committed_offset_is_logged(offset: int, warnings: int) -> None:
    with structlog.testing.capture_logs() as logs:
        agreed_position(SPEC, changelog(7), CommittedPosition(offset, OURS), HERE)
    assert [each["event"] for each in logs] == ["committed offset is older than the changelog"] * warnings


@pytest.mark.parametrize("known", [None, 6])
def test_a_changelog_that_knows_less_than_was_committed_is_refused(known: int | None) -> None:
    with pytest.raises(
        ChangelogLost, match=rf"covers in below offset {known or 0}, but the group group has committed offset 7"
    ):
        agreed_position(SPEC, changelog(known), CommittedPosition(7, OURS), HERE)


@pytest.mark.parametrize(
    ("offset", "known", "sentence"),
    [
        (100, 50, "Offsets 50 to 99, 50 of them, were never judged"),
        (3, 7, "From there 4 offsets would be read again"),
        (7, 7, "the changelog's own position is 7"),
        (7, None, "the changelog has no position"),
    ],
)
@pytest.mark.parametrize("metadata", ["", "mirror", "ratchet", "ratchet 1", "ratchet 1 x"])
def test_an_offset_of_another_client_is_refused(offset: int, known: int | None, sentence: str, metadata: str) -> None:
    if metadata == "ratchet 1 x":
        metadata = OURS[:-1]  # cut off
    with pytest.raises(ForeignOffset, match=sentence):
        agreed_position(SPEC, changelog(known), CommittedPosition(offset, metadata), HERE)


def test_an_offset_in_another_topic_of_the_name_is_refused() -> None:
    with pytest.raises(
        TopicReplaced, match=f"in: the name belonged to topic id {HERE}, and belongs to topic id {ELSEWHERE}"
    ):
        agreed_position(SPEC, changelog(7), CommittedPosition(7, OURS), ELSEWHERE)


def test_a_first_owner_is_what_is_there_now_unless_the_stream_has_claimed_another_topic() -> None:
    topics = {"input": Topic("in", HERE), "output": Topic("out", ELSEWHERE)}
    assert agreed_owner(SPEC, changelog(None), topics, "") == Owner("app", "events", {}, topics)
    with pytest.raises(TopicReplaced, match="in: the name belonged to topic id"):
        agreed_owner(SPEC, changelog(None), {"input": Topic("in", ELSEWHERE)}, "")


def test_a_later_owner_has_to_be_the_same_and_what_was_lost_stays_written_down() -> None:
    topics = {"input": Topic("in", HERE)}
    before = Owner("app", "events", {}, topics)
    assert agreed_owner(SPEC, changelog(7, before), topics, "") == before
    said = msgspec.structs.replace(before, judging=(JudgingFrom(0, {"reorder_window": "64"}),))
    assert agreed_owner(SPEC, changelog(7, said), topics, "") == said
    lost = agreed_owner(SPEC, changelog(7, before), topics, "lost its end")
    assert lost.broken == "lost its end"
    assert agreed_owner(SPEC, changelog(7, lost), topics, "").broken == "lost its end"
    with pytest.raises(OwnerDiffers, match="ratchet resume --stream events --partition 0"):
        agreed_owner(SPEC, changelog(7, before), {"input": Topic("in", ELSEWHERE)}, "")


def test_a_setting_that_is_said_only_where_it_is_not_the_default_is_compared_as_well() -> None:
    plain = Owner("app", "events", {"identity": "key", "sequence": "header:n"}, {})
    shadow = Owner("app", "events", {"identity": "key", "forward": "false"}, {})
    assert shadow.differences(plain) == [
        "its records were judged with forward = 'false', but the settings say nothing of it"
    ]
    assert plain.differences(shadow) == [
        "its records were judged with the default of forward, but the settings say 'false'"
    ]
    assert not plain.differences(Owner("app", "events", {"identity": "key", "sequence_form": "text"}, {}))
    assert shadow.rule_differences(plain) == shadow.differences(plain)


def test_a_setting_of_every_owner_is_compared_where_both_have_it() -> None:
    key, name = (Owner("app", "events", {"identity": identity}, {}) for identity in ("key", "header:id"))
    assert key.rule_differences(name) == [
        "its records were judged with identity = 'key', but the settings say 'header:id'"
    ]


def test_a_topic_under_the_same_name_is_another_by_its_id() -> None:
    before = Owner("app", "events", {}, {"input": Topic("in", HERE), "output": Topic("out", HERE)})
    now = Owner("app", "events", {}, {"input": Topic("in", ELSEWHERE), "output": Topic("out", HERE)})
    assert before.has_other_topic("input", now)
    assert not before.has_other_topic("output", now)
    assert not before.has_other_topic("policy", now)
    assert before.rule_differences(now) == []
    assert len(before.differences(now)) == 1


def test_it_is_written_down_from_where_on_dropped_records_are_kept() -> None:
    owner = Owner("app", "events", {}, {})
    here, there = Topic("dropped", HERE), Topic("dropped", ELSEWHERE)
    assert with_duplicates(owner, None, 5) == owner
    kept = with_duplicates(owner, here, 5)
    assert kept.duplicates == (DuplicatesFrom(5, here),)
    assert with_duplicates(kept, here, 9) == kept
    assert Owner.unpack(kept.pack()[1]) == kept
    again = with_duplicates(with_duplicates(kept, None, 9), there, 12)
    assert again.duplicates == (DuplicatesFrom(5, here), DuplicatesFrom(9), DuplicatesFrom(12, there))
    assert with_duplicates(kept, here, 2).duplicates == (DuplicatesFrom(2, here),)
    # A person has moved the partition back: what is read again goes where it goes now.
    assert with_duplicates(again, here, 9).duplicates == (DuplicatesFrom(5, here), DuplicatesFrom(9, here))


def test_how_records_are_judged_is_said_with_the_offset_it_holds_from() -> None:
    owner = Owner("app", "events", {}, {})
    assert with_judging(owner, {}, 7) == owner  # nothing was ever said
    on = with_judging(owner, {"reorder_window": "64"}, 7)
    assert on.judging == (JudgingFrom(7, {"reorder_window": "64"}),)
    assert with_judging(on, {"reorder_window": "64"}, 9) == on
    off = with_judging(on, {}, 9)
    assert off.judging == (*on.judging, JudgingFrom(9, {}))
    back = with_judging(off, {}, 8)  # somebody has put the position back
    assert back.judging == (*on.judging, JudgingFrom(8, {}))
    assert Owner.unpack(back.pack()[1]) == back
    assert back.differences(owner) == []


def test_an_output_that_is_not_known_yet_is_no_difference() -> None:
    """`ratchet resume` does not know the program: it listed a difference that was none."""
    records, agents = (Owner("app", "events", {"output": output}, {}) for output in (RECORDS, AGENTS))
    unknown = Owner("app", "events", {"output": UNDECIDED}, {})
    assert records.differences(unknown) == unknown.differences(records) == []
    assert len(records.differences(agents)) == 1


def test_a_take_over_keeps_what_was_said_before() -> None:
    topics = {"input": Topic("in", HERE)}
    first = with_judging(agreed_owner(SPEC, changelog(None), topics, ""), {"reorder_window": "64"}, 0)
    first = with_duplicates(first, Topic("dropped", HERE), 0)

    def next_one(said: dict[str, str], position: int) -> Owner:
        agreed = agreed_owner(SPEC, changelog(position, first), topics, "")
        return with_judging(with_duplicates(agreed, Topic("dropped", HERE), position), said, position)

    assert next_one({"reorder_window": "64"}, 100) == first
    off = next_one({}, 100)
    assert off.judging == (*first.judging, JudgingFrom(100, {}))


@pytest.mark.parametrize(
    ("change", "keeps"),
    [
        ({"sequence_form": "integer"}, True),
        ({"sequence_form": "integer", "output": "undecided"}, True),
        ({"sequence_form": "little-endian"}, False),
        ({"sequence_form": "text"}, False),
        ({"sequence_form": "integer", "identity": "key"}, False),
        ({}, False),
    ],
)
def test_only_a_guess_that_is_stated_as_big_endian_keeps_its_numbers(change: dict[str, str], keeps: bool) -> None:
    before = {"identity": "producer", "sequence": "header:n", "sequence_form": "guess"}
    assert states_its_form(before, before | change) is keeps


def test_a_rule_may_be_corrected_before_the_first_record_and_not_after() -> None:
    topics = {"input": Topic("in", HERE)}
    other = replace(SPEC, rule={**SPEC.rule, "sequence_form": "little-endian"})
    first = agreed_owner(SPEC, changelog(None), topics, "")
    first = msgspec.structs.replace(first, rule={**first.rule, "sequence_form": "guess"})
    assert agreed_owner(other, changelog(0, first, has_processed=False), topics, "").rule == dict(other.rule)
    with pytest.raises(OwnerDiffers, match="sequence_form = 'guess'"):
        agreed_owner(other, changelog(0, first), topics, "")
    with pytest.raises(OwnerDiffers, match="input was in"):  # its unread records are lost
        agreed_owner(SPEC, changelog(0, first, has_processed=False), {"input": Topic("in", ELSEWHERE)}, "")


def test_a_topic_may_be_renamed_before_the_first_record_and_not_after() -> None:
    first = Owner("app", "events", {}, {"input": Topic("misspelt", ELSEWHERE), "output": Topic("out", HERE)})
    first = msgspec.structs.replace(first, broken="lost its end", duplicates=(DuplicatesFrom(7),))
    topics = {"input": Topic("in", HERE), "output": Topic("renamed", ELSEWHERE)}
    now = agreed_owner(SPEC, changelog(7, first, has_processed=False), topics, "")
    assert (now.topics, now.broken, now.duplicates) == (topics, "", ())
    decided = msgspec.structs.replace(first, decisions=(Decision("", "", "resume", ""),))
    for state in (changelog(7, first), changelog(7, decided, has_processed=False)):
        with pytest.raises(OwnerDiffers, match=r"its input was misspelt .*its output was out"):
            agreed_owner(SPEC, state, topics, "")


def test_the_offset_of_a_misspelt_input_is_not_taken_for_one_of_the_right_input() -> None:
    owner = Owner("app", "events", {}, {"input": Topic("misspelt", ELSEWHERE)})
    state = changelog(7, owner, has_processed=False)
    assert agreed_position(SPEC, state, None, HERE) is None
    with pytest.raises(ForeignOffset, match="the changelog has no position"):
        agreed_position(SPEC, state, CommittedPosition(7, ""), HERE)
    with pytest.raises(ChangelogLost, match="covers in below offset 0"):
        agreed_position(SPEC, state, CommittedPosition(7, OURS), HERE)
    back = CommittedPosition(5, offset_metadata(HERE, NO_EPOCH))  # the input was the right one before
    assert agreed_position(SPEC, state, back, HERE, 5) == 5
    assert agreed_position(SPEC, changelog(7, owner), back, HERE) == 7


@pytest.mark.parametrize("owner", [None, Owner("app", "events", {}, {"input": Topic("misspelt", ELSEWHERE)})])
def test_the_offset_of_another_streams_first_start_is_accepted_where_it_skips_nothing(owner: Owner | None) -> None:
    state = changelog(7 if owner else None, owner, has_processed=False)
    started = CommittedPosition(5, offset_metadata(HERE, NO_EPOCH))
    assert may_be_unread(state, "in", started)
    assert not may_be_unread(state, "in", None)
    assert agreed_position(SPEC, state, started, HERE, 5) == 5
    assert agreed_position(SPEC, state, started, HERE, 6) == 5  # the lane halts there: offset 5 was deleted unread
    for offset, metadata in ((500, NO_EPOCH), (5, 0), (5, UNKNOWN_EPOCH)):
        committed = CommittedPosition(offset, offset_metadata(HERE, metadata))
        with pytest.raises(ChangelogLost, match=r"another stream of this application.*--stream events --partition 0"):
            agreed_position(SPEC, state, committed, HERE, 5)


def test_the_offset_of_a_partition_with_records_is_not_asked_whether_it_is_unread() -> None:
    owner = Owner("app", "events", {}, {"input": Topic("in", HERE)})
    assert not may_be_unread(changelog(7, owner), "in", CommittedPosition(7, OURS))


def test_only_an_output_without_agents_becomes_one_with_agents_before_the_first_record() -> None:
    records, agents = (replace(SPEC, rule={"output": output}) for output in (RECORDS, AGENTS))
    topics = {"input": Topic("in", HERE)}
    first = agreed_owner(records, changelog(None), topics, "")
    assert agreed_owner(agents, changelog(0, first, has_processed=False), topics, "").rule == agents.rule
    first = agreed_owner(agents, changelog(None), topics, "")
    with pytest.raises(OwnerDiffers, match="its output topic contains what agents yield"):
        agreed_owner(records, changelog(0, first, has_processed=False), topics, "")
