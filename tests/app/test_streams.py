"""Several streams in one file: their names, and topics that they cannot share."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ratchet.app.settings import load
from tests.app.written_settings import STREAM, other_stream, refusal, written

pytestmark = pytest.mark.usefixtures("no_settings_of_ones_own")


def test_two_streams_cannot_read_one_input(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, other_stream(input="events"))
    assert sentence == (
        "streams: streams 'events' and 'more' read the same input 'events'. Remove one of the two streams"
    )


def test_two_streams_cannot_write_one_output(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, other_stream(output="events-once"))
    assert (
        sentence
        == "streams: streams 'events' and 'more' write the same output 'events-once'. Give one of them another output"
    )


@pytest.mark.parametrize(
    "topics", [{"dead_letters": "events-once"}, {"output": "events-invalid"}], ids=["theirs", "ours"]
)
def test_dead_letters_cannot_be_an_output(tmp_path: Path, topics: dict[str, str]) -> None:
    sentence = refusal(tmp_path, other_stream(**topics))
    assert sentence.startswith("streams: dead_letters of stream ")
    assert "Name another topic for dead letters" in sentence


def test_streams_may_share_dead_letters_and_follow_one_another(tmp_path: Path) -> None:
    settings = load(written(tmp_path, other_stream(input="events-once", dead_letters="events-invalid")))
    assert list(settings.streams) == ["events", "more"]


@pytest.mark.parametrize(
    "topics",
    [{"duplicates": "events-once"}, {"output": "dropped"}, {"dead_letters": "dropped"}, {"duplicates": "dropped"}],
)
def test_no_other_stream_writes_to_the_topic_of_duplicates(tmp_path: Path, topics: dict[str, str]) -> None:
    streams = other_stream(**topics).replace("[streams.more]", 'duplicates = "dropped"\n[streams.more]')
    sentence = refusal(tmp_path, streams)
    assert sentence.startswith("streams: duplicates of stream ")
    assert "Name another topic for duplicates" in sentence


def test_duplicates_are_not_the_input_of_another_stream(tmp_path: Path) -> None:
    streams = other_stream(input="payments").replace("[streams.more]", 'duplicates = "payments"\n[streams.more]')
    assert "duplicates of stream 'events' is 'payments', the input of stream 'more'" in refusal(tmp_path, streams)


def test_duplicates_are_no_topic_of_ratchets_own(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, STREAM + 'duplicates = "ratchet-owners"')
    assert "duplicates of stream 'events' is 'ratchet-owners', a topic that Ratchet or Kafka writes for its" in sentence
