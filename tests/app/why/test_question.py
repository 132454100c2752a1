"""Stream of a question: named, the only one with the topic, or the only one."""

from __future__ import annotations

import pytest

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.why.question import question_of, stream_asked
from kafka_ratchet.errors import SettingsError

ORDERS = StreamSettings(input="orders", output="orders.once", dead_letters="orders.dead")
CLICKS = StreamSettings(input="clicks", output="clicks.once", dead_letters="clicks.dead")
AGAIN = StreamSettings(input="orders.once", output="orders.more", dead_letters="more.dead")
SETTINGS = Settings(streams={"orders": ORDERS, "clicks": CLICKS, "again": AGAIN})


@pytest.mark.parametrize(
    ("stream", "topic", "expected"),
    [
        (None, "orders", "orders"),
        (None, "clicks.once", "clicks"),
        (None, "orders.dead", "orders"),
        ("clicks", "orders", "clicks"),
        ("again", "orders.once", "again"),
    ],
)
def test_a_topic_of_one_stream_names_it(stream: str | None, topic: str, expected: str) -> None:
    assert stream_asked(SETTINGS, stream, topic)[0] == expected
    found = question_of(SETTINGS, {"stream": stream or "", "topic": topic, "partition": "1", "offset": "2"})
    assert found is not None
    assert (found.stream, found.topic, found.partition, found.offset) == (expected, topic, 1, 2)


@pytest.mark.parametrize("topic", ["orders.once", "elsewhere", None])
def test_a_topic_of_two_streams_or_of_none_does_not(topic: str | None) -> None:
    with pytest.raises(SettingsError, match="the stream is not named"):
        stream_asked(SETTINGS, None, topic)
