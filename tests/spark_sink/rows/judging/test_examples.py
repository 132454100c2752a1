"""The table of examples of the rule, run against Spark's task and its SQL form."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_ratchet.spark_sink.rows.judging.judge import judged
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.rows.judging.windows import judged_at_once
from tests.rule.examples import EXAMPLES, FRESH, LATE, VERDICTS, Example
from tests.spark_sink.rows.judging.test_judge import KAFKA, WHEN, read_by_spark

DROPPED = "dropped"
PARTITIONS = 100
"""Kafka partitions of each example in the one frame of its rule."""


def rule_of(example: Example) -> JudgeRule | None:
    """The rule of a job; None where only workers judge so."""
    stream = example.stream
    kinds = {part.kind for part in stream.identity.parts} | {stream.sequence.partition(":")[0]}
    if kinds & {"field", "function"} or stream.conflicts != "ignore":
        return None
    identity = tuple(str(part) for part in stream.identity.parts)
    form, window, late = stream.sequence_form, stream.reorder_window, stream.late
    return JudgeRule("t", identity, stream.sequence, form.value, window, late)


def by_rule() -> dict[str, list[Example]]:
    """Examples of one rule together: a start of Spark's takes longer than all of their records."""
    found: dict[str, list[Example]] = defaultdict(list)
    for example in EXAMPLES:
        if (rule := rule_of(example)) is not None:
            found[json.dumps(rule.as_dict())].append(example)
    return found


GROUPS = by_rule()


def expected(verdict: str, rule: JudgeRule) -> str:
    if verdict not in VERDICTS or verdict == FRESH:
        return verdict
    return LATE if verdict == LATE and rule.late == "dead-letter" else DROPPED


@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(examples, marks=[pytest.mark.matrix] * (number % 2), id=examples[0].name)
        for number, examples in enumerate(GROUPS.values())
    ],
)
def test_spark_judges_as_the_table_says(examples: list[Example], spark: SparkSession) -> None:
    rule = rule_of(examples[0])
    assert rule is not None
    rows, wanted = [], {}
    for number, example in enumerate(examples):
        for offset, record in enumerate(example.records):
            partition = number * PARTITIONS + record.partition
            wanted[partition, offset] = expected(record.verdict, rule)
            headers = list(record.headers) or None
            rows.append((record.key, record.value, "t", partition, offset, WHEN, 0, headers))
    frame = spark.createDataFrame(rows, KAFKA)
    with judged(read_by_spark(frame), rule, None) as found:
        assert verdicts(found.fresh, found.rejected, wanted) == wanted
    with judged_at_once(frame, rule) as (fresh, rejected):
        assert verdicts(fresh, rejected, wanted) == wanted


def verdicts(fresh: DataFrame, rejected: DataFrame, wanted: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
    found = dict.fromkeys(wanted, DROPPED)
    found |= {(each.partition, each.offset): FRESH for each in fresh.collect()}
    return found | {(each.partition, each.offset): each[-1] for each in rejected.collect()}


def test_most_examples_are_asked_of_spark() -> None:
    assert sum(map(len, GROUPS.values())) >= 18
