"""Dead letters of a period, with times that do not follow the order of offsets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.why.dropped import NewestRecords, RecordFilter, sample

NOON_MS = 1_790_000_000_000
MINUTE_MS = 60_000
HALF_PAST = NOON_MS + 30 * MINUTE_MS


@pytest.fixture
def find(broker: str, new_topic: Callable[..., str]) -> Callable[[RecordFilter], NewestRecords]:
    """Function that reads dead letters of 12:00, 13:00 and 12:05, in this order."""
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": broker})
    for minute in (0, 60, 5):
        producer.produce(topic, b"%d" % minute, timestamp=NOON_MS + minute * MINUTE_MS)
        producer.flush(60)
    stream = StreamSettings(input="in", output="out", dead_letters=topic)
    settings = Settings(bootstrap=broker, streams={"s": stream})
    return lambda wanted: sample(settings, broker, "s", topic, wanted)


@pytest.mark.parametrize(
    ("wanted", "values"),
    [
        (RecordFilter(until=HALF_PAST), [b"5", b"0"]),
        (RecordFilter(since=HALF_PAST), [b"60"]),
        (RecordFilter(since=NOON_MS + MINUTE_MS, until=NOON_MS + 60 * MINUTE_MS), [b"5"]),
        (RecordFilter(until=NOON_MS), []),
    ],
)
def test_a_period_has_the_letters_of_its_times(
    find: Callable[[RecordFilter], NewestRecords], wanted: RecordFilter, values: list[bytes]
) -> None:
    found = find(wanted)
    assert (found.matching, [each.value for each in found.records], found.problems) == (len(values), values, [])


def test_a_limited_read_ends_where_the_period_ends(find: Callable[[RecordFilter], NewestRecords]) -> None:
    found = find(RecordFilter(until=HALF_PAST, most=0))
    assert [each.value for each in found.records] == [b"0"]
    assert found.problems == [f"{found.topic}: of partition 0 only 1 offsets were read, up to the end of the period"]
    found = find(RecordFilter(most=0))
    assert [each.value for each in found.records] == [b"5"]
    assert found.problems == [f"{found.topic}: of partition 0 only the newest 1 offsets were read"]
