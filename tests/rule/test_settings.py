"""The settings of the rule: declared once, and derived by group rules, owner entry and Spark's job."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.worker.group_rules import rules_of
from kafka_ratchet.rule.settings import DEFAULTS, SETTINGS, SPARK, WINDOW_MOST, RuleSettings
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.job.spec import JobSpec
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from tests.rule.examples import EXAMPLES, Example

TOPICS = {"input": "in", "output": "out", "dead_letters": "dead"}


def test_a_stream_and_a_job_have_each_setting_with_its_default() -> None:
    stream = StreamSettings.model_validate(TOPICS)
    assert stream.judged_by == RuleSettings()
    for name in SETTINGS:
        assert str(getattr(stream, name)) == str(DEFAULTS[name])
    job = {each.name: each.default for each in fields(JobSpec)}
    assert {name: str(job[name]) for name in SPARK} == {name: str(DEFAULTS[name]) for name in SPARK}
    assert JudgeRule("t").settings == RuleSettings()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_owner_entry_and_group_rules_are_read_back(example: Example) -> None:
    stream = example.stream
    rule = stream.judged_by
    assert RuleSettings.parse(rule.entry | rule.judging) == rule
    assert RuleSettings.parse(rule.agreed) == rule
    texts = {f"streams.s.{name}": text for name, text in (TOPICS | rule.agreed).items()}
    assert rules_of(Settings(streams={"s": stream})) == texts


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"reorder_window": -1}, f"reorder_window -1 is not between 0 and {WINDOW_MOST}"),
        ({"reorder_window": WINDOW_MOST + 1}, f"reorder_window 4097 is not between 0 and {WINDOW_MOST}"),
        ({"late": "dead-letter"}, "this stream has none. Set reorder_window, or remove late"),
        ({"identity": "key", "sequence": "none", "reorder_window": 5}, "need numbered records"),
        ({"sequence": "none"}, "lets one record of each identity pass"),
        ({"identity": "key", "sequence": "none", "sequence_form": "text"}, "sequence_form applies to sequences"),
    ],
)
def test_stream_and_job_refuse_in_the_same_words(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as of_stream:
        StreamSettings.model_validate(TOPICS | wrong)
    identity = (wrong.get("identity", "producer"),)
    with pytest.raises(OptionRefused, match=words) as of_job:
        JudgeRule("t", **(wrong | {"identity": identity}))
    assert str(of_job.value).removeprefix("from_input: ") in str(of_stream.value)
