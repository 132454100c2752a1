"""Refused values of each section, and conversions of the accepted ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_ratchet.app.settings import load
from tests.app.written_settings import STREAM, refusal, written

pytestmark = pytest.mark.usefixtures("no_settings_of_ones_own")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("header:ce_id", "header:ce_id"),
        ("header:a,b", "header:a,b"),
        ("key,header:a", '["key", "header:a"]'),
        ("header:a,key", '["header:a", "key"]'),
        ("header:a, field:b.c,function:m:n", '["header:a", "field:b.c", "function:m:n"]'),
        ('["header:a,header:b", "key"]', '["header:a,header:b", "key"]'),
        ('["header:a"]', "header:a"),
    ],
)
def test_identity_of_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, read: str) -> None:
    monkeypatch.setenv("RATCHET_STREAMS__EVENTS__IDENTITY", text)
    stream = load(written(tmp_path, STREAM)).streams["events"]
    assert (str(stream.identity), stream.rule["identity"]) == (read, read)
    monkeypatch.delenv("RATCHET_STREAMS__EVENTS__IDENTITY")
    parts = [str(part) for part in stream.identity.parts]
    assert load(written(tmp_path, STREAM + f"identity = {json.dumps(parts)}")).streams["events"] == stream


@pytest.mark.parametrize("word", ["producer", "key", "partition"])
def test_identity_of_one_word_is_told_as_before(tmp_path: Path, word: str) -> None:
    stream = load(written(tmp_path, STREAM + f'identity = "{word}"')).streams["events"]
    assert stream.rule == {"identity": word, "sequence": "header:ratchet-sequence", "sequence_form": "guess"}


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("identity = []", "an empty list is not an identity"),
        ("identity = 3", "streams.events.identity: write a text, or a list of texts"),
        ('identity = ["key", 3]', "streams.events.identity: write a text, or a list of texts"),
        ('identity = "[3]"', "has an element other than text"),
        ('identity = "[a"', "starts like a list but is not a valid one"),
        ('identity = "header:"', "'header:' names no part of a record"),
        ('identity = "field:a..b"', "'a..b' has an empty part"),
        ('identity = "function:os"', "'os' is not a function"),
        ('identity = ["header:a", ""]', "'' is not an identity"),
        ('identity = ["header:a", "header:a"]', "the identity names header:a twice"),
        (
            'identity = ["header:a", "producer"]',
            "producer cannot be one of several parts of an identity: write header:",
        ),
        ('identity = ["partition", "key"]', "partition cannot be one of several parts of an identity: state is kept"),
        (f"identity = {[f'header:{n}' for n in range(9)]}", "the identity has 9 parts, and at most 8 are possible"),
        ('sequence = "none"', 'sequence = "none" lets one record of each identity pass, and identity = "producer"'),
        ('sequence = "none"\nidentity = "partition"', 'and identity = "partition" gives many records the same one'),
        (
            'sequence = "none"\nidentity = "key"\nsequence_form = "text"',
            'sequence_form applies to sequences in a header, and this stream has sequence = "none"',
        ),
    ],
)
def test_identity_that_cannot_be(tmp_path: Path, toml: str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, STREAM + toml)


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a/b", "é", "x" * 250])
def test_bad_topic_name(tmp_path: Path, topic: str) -> None:
    sentence = refusal(tmp_path, STREAM.replace('"events"', f'"{topic}"'))
    assert sentence.startswith("streams.events.input: ")
    assert "is not a Kafka topic name: 1 to 249 letters, digits, '.', '_' or '-'" in sentence


@pytest.mark.parametrize("source", ["key", "key:", "key:sequence"])
def test_record_key_as_sequence_is_refused_with_the_reason_and_the_remedy(tmp_path: Path, source: str) -> None:
    sentence = refusal(tmp_path, STREAM + f'sequence = "{source}"')
    assert sentence.startswith("streams.events.sequence: the record key cannot be the sequence")
    assert "lose their order" in sentence
    assert "header (header:NAME)" in sentence
    assert "value (field:PATH)" in sentence


@pytest.mark.parametrize(
    ("old", "new"), [('"events-once"', '"events"'), ('"events-invalid"', '"events"'), ("-invalid", "-once")]
)
def test_topics_of_a_stream_must_differ(tmp_path: Path, old: str, new: str) -> None:
    sentence = refusal(tmp_path, STREAM.replace(old, new))
    assert sentence == "streams.events: input, output and dead_letters must be three different topics"


@pytest.mark.parametrize("topic", ["events", "events-once", "events-invalid"])
def test_duplicates_of_a_stream_have_a_topic_of_their_own(tmp_path: Path, topic: str) -> None:
    sentence = refusal(tmp_path, STREAM + f'duplicates = "{topic}"')
    assert sentence == (
        f"streams.events: duplicates is {topic!r}, which is already another topic of this stream. Name a new one"
    )


def test_what_is_kept_of_duplicates_needs_a_topic_for_them(tmp_path: Path) -> None:
    assert "Add duplicates = " in refusal(tmp_path, STREAM + 'duplicates_keep = "headers"')


def test_a_stream_that_forwards_nothing_has_another_rule(tmp_path: Path) -> None:
    assert "forward" not in load(written(tmp_path, STREAM)).streams["events"].rule
    assert load(written(tmp_path, STREAM + "forward = false")).streams["events"].rule["forward"] == "false"


@pytest.mark.parametrize("bound", ["max_identities = 9", "inactive_after_s = 9"])
def test_bounds_of_a_partitions_one_identity_are_refused(tmp_path: Path, bound: str) -> None:
    said = refusal(tmp_path, STREAM + f'identity = "partition"\n{bound}')
    assert said.startswith(
        'streams.events: max_identities and inactive_after_s cannot be combined with identity = "part'
    )
    assert said.endswith("Remove the limits")


@pytest.mark.parametrize("bound", ["max_identities = 0", "inactive_after_s = 0", "inactive_after_s = -1"])
def test_a_bound_that_keeps_nothing_is_refused(tmp_path: Path, bound: str) -> None:
    assert f"streams.events.{bound.split()[0]}: " in refusal(tmp_path, STREAM + bound)


def test_what_is_late_needs_a_window(tmp_path: Path) -> None:
    said = refusal(tmp_path, STREAM + 'late = "dead-letter"')
    assert "streams.events" in said
    assert "this stream has none. Set reorder_window, or remove late" in said


@pytest.mark.parametrize("size", [-1, 4097])
def test_a_window_has_bounds(tmp_path: Path, size: int) -> None:
    assert "reorder_window" in refusal(tmp_path, f"{STREAM}reorder_window = {size}")
