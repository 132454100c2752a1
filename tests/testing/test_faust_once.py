"""assert_once over Faust programs."""

from __future__ import annotations

import pytest

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.testing import assert_once, run
from tests.testing import faust_words

WORDS = "tests.testing.faust_words"
POSTS = [(str(number), "" if number == 7 else f"w{number % 3} w{number % 5} x") for number in range(60)]
NUMBERS = [(f"u{number % 7}", number) for number in range(60)]


def topic(name: str) -> str:
    return f"{faust_words.NAME}.{name}"


def test_agents_tables_sets_and_dead_letters_of_a_faust_program(ratchet_broker: str) -> None:
    points = ("committed", "agent:2", "offered:3", "produced:2")
    assert_once(f"{WORDS}:app", {topic("words.posts"): POSTS}, bootstrap=ratchet_broker, points=points)


@pytest.mark.matrix
def test_a_topic_with_a_rule_over_partitions(ratchet_broker: str) -> None:
    numbers = topic("alone.numbers")
    rule = {"input": numbers, "identity": "producer", "sequence": "header:ratchet-sequence"}
    settings = {"streams": {"numbers": rule}}
    events = {numbers: NUMBERS}
    assert_once(
        f"{WORDS}:alone", events, bootstrap=ratchet_broker, points=("committed:2",), partitions=2, settings=settings
    )
    with pytest.raises(SettingsError, match=f"topic {numbers} has records already"):
        assert_once(f"{WORDS}:alone", events, bootstrap=ratchet_broker, points=("committed:2",), partitions=2)


def test_what_is_kept_in_a_variable_is_noticed(ratchet_broker: str) -> None:
    with pytest.raises(AssertionError, match=r"forgetful, sent, outputs of .*: 60 instead of 60"):
        assert_once(
            f"{WORDS}:forgetful", {topic("forgetful.events"): NUMBERS}, bootstrap=ratchet_broker, points=("committed",)
        )


def test_events_that_meet_need_one_partition() -> None:
    with pytest.raises(SettingsError, match=r"stream .* gets events from all partitions, .* Give partitions=1"):
        assert_once(f"{WORDS}:app", {topic("words.posts"): POSTS}, points=("committed",), partitions=2)


def test_a_program_runs_more_than_once_in_memory() -> None:
    for _ in range(2):
        ran = run(faust_words.app, {topic("words.posts"): POSTS[:6]})
        assert ran.tables["counts"]["x"] == 6
        assert len(ran.outputs) == 18
