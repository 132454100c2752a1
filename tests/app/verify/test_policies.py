"""Intervals without deduplication: the changelog's, compared with the policy topic's."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as Topic

from kafka_ratchet.app.names import changelog_name, policy_topic
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.verify import ExitCode
from kafka_ratchet.app.verify.policies import PolicyTopic, check_intervals
from kafka_ratchet.app.worker.policy import policy_key, policy_value
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from tests.app.written_stream import NewTopic, Stage, record

OFF, ON = policy_value(False), policy_value(True)
Record = tuple[bytes | None, bytes | None]


def own(value: bytes | None) -> Record:
    return policy_key("events"), value


def everyone(value: bytes | None) -> Record:
    return policy_key(None), value


def other(value: bytes | None) -> Record:
    return policy_key("another"), value


def settings(deduplicate: bool | None = None, of_stream: bool | None = None, source: str = "in") -> Settings:
    stream = StreamSettings(input=source, output="out", dead_letters="dead", deduplicate=of_stream)
    return Settings(app="shop", streams={"events": stream}, deduplicate=deduplicate)


def checked(
    records: list[Record | None], interval: PolicyInterval, given: Settings | None = None, begin: int = 0
) -> str:
    """records: of the policy topic from offset 0 on; None: compacted away."""
    there = [(offset, *each) for offset, each in enumerate(records) if each is not None and offset >= begin]
    topic = PolicyTopic.of("shop-policy", begin, len(records), there)
    (check,) = check_intervals(topic, given or settings(), "events", 0, [interval], 0)
    return f"{check.verdict}: {check.reason}"


def off(policy: int) -> PolicyInterval:
    return PolicyInterval(0, False, 10, 20, policy, 10)


def judged(policy: int) -> PolicyInterval:
    return PolicyInterval(0, True, 10, 10, policy, 0)


@pytest.mark.parametrize(
    ("records", "interval", "given"),
    [
        ([own(OFF)], off(1), None),
        ([everyone(OFF)], off(1), None),
        ([everyone(ON), own(OFF)], off(2), None),
        ([own(OFF), other(ON), own(ON)], off(1), None),
        ([own(OFF), own(None)], judged(2), None),
        ([own(ON), everyone(OFF)], judged(2), None),
        ([own(ON), own(None)], off(2), settings(deduplicate=False)),
        ([own(ON), own(b"what?")], off(2), settings(of_stream=False)),
        ([], off(0), settings(deduplicate=False)),
        ([], off(0), settings(of_stream=False)),
        ([], off(0), settings(source="shop-repartition.events")),
        ([everyone(ON)], off(0), settings(source="shop-repartition.events")),
    ],
)
def test_what_the_policy_topic_confirms(
    records: list[Record | None], interval: PolicyInterval, given: Settings | None
) -> None:
    assert checked(records, interval, given).startswith("confirmed")


@pytest.mark.parametrize(
    ("records", "interval", "reason"),
    [
        ([own(ON)], off(1), "by the policy of stream 'events' in shop-policy, which is on"),
        ([own(OFF)], judged(1), "by the policy of stream 'events' in shop-policy, which is off"),
        ([own(OFF), own(ON), own(OFF)], off(2), "which is on"),
        ([own(ON), everyone(OFF)], off(2), "by the policy of stream 'events'"),
        ([other(OFF)], off(1), "offset 0, but the record there is about stream 'another'"),
        ([(b"hello", OFF)], off(1), "offset 0, but the record there is no policy"),
    ],
)
def test_what_the_policy_topic_contradicts(records: list[Record | None], interval: PolicyInterval, reason: str) -> None:
    said = checked(records, interval)
    assert said.startswith("contradicted")
    assert reason in said


@pytest.mark.parametrize(
    ("records", "interval", "given", "begin", "reason"),
    [
        ([None, own(ON)], off(1), None, 0, "offset 0, but compaction has removed"),
        ([own(OFF)], off(3), None, 0, "ends at 1: it was created again, or lost its end"),
        ([own(OFF), own(ON)], off(1), None, 1, "the records before 1 are deleted"),
        ([], off(0), None, 0, "neither shop-policy nor the settings, as they are now"),
        ([], judged(0), settings(deduplicate=False), 0, "by the global setting, as it is now, which is off"),
        # A setting of the stream may have gone before it at that time.
        ([everyone(ON)], off(1), None, 0, "by the global policy in shop-policy, which is on; it may have been"),
        # The stream's own policy of then is compacted away: a global one proves nothing against it.
        ([None, everyone(ON), own(ON)], off(2), None, 0, "by the global policy"),
        ([own(ON), own(None)], off(2), None, 0, "it may have been different at that time"),
    ],
)
def test_what_cannot_be_proven_any_more(
    records: list[Record | None], interval: PolicyInterval, given: Settings | None, begin: int, reason: str
) -> None:
    said = checked(records, interval, given, begin)
    assert said.startswith("unproven")
    assert reason in said


def test_intervals_before_the_first_offset_that_is_looked_at_are_left_out() -> None:
    intervals = [
        PolicyInterval(0, False, 10, 20, 1, 10),
        PolicyInterval(1, True, 20, 20, 2, 0),
        PolicyInterval(2, False, 30, 40, 3, 10),
    ]
    topic = PolicyTopic.of("shop-policy", 0, 3, [(2, *own(OFF))])
    found = check_intervals(topic, settings(), "events", 0, intervals, 25)
    assert [(check.start, check.end, check.verdict) for check in found] == [
        (20, 30, "unproven"),
        (30, 40, "confirmed"),
    ]


@pytest.mark.parametrize(("said", "code"), [(OFF, ExitCode.PROVEN), (ON, ExitCode.WRONG)])
def test_the_engines_word_is_not_believed(broker: str, new_topic: NewTopic, said: bytes, code: ExitCode) -> None:
    """The changelog says that deduplication was off, and the output has the repeat: the policy topic decides."""
    stage = Stage(broker, new_topic, 1)
    given = [record(1), record(1)]
    stage.write(0, 0, given)
    stage.write(1, 0, given)
    changelog, policies = changelog_name(stage.settings.app, "events"), policy_topic(stage.settings.app)
    admin = AdminClient({"bootstrap.servers": broker})
    for made in admin.create_topics([Topic(name, 1, 1) for name in (changelog, policies)]).values():
        made.result(30)
    stage.producer.produce(policies, said, policy_key("events"))
    value, key = reversed(PolicyInterval(0, False, 0, 2, 1, 2).pack())
    stage.producer.produce(changelog, value, key)
    stage.producer.flush()
    stage.commit(2)
    report = stage.verify()
    assert report.exit_code() is code, report.as_dict()
    assert report.unjudged == 2
    if code is ExitCode.WRONG:
        (finding,) = report.findings
        assert (finding.kind, finding.place, finding.offset, finding.input_offset) == ("contradicted", policies, 0, 0)
        assert "deduplication was off in partition 0 for offsets 0 to 1: contradicted, by the policy" in str(finding)
