"""Worker's warning about an input that takes records of any future time."""

from __future__ import annotations

import pytest

from kafka_ratchet.app.worker.topics import unbounded

NAME = "message.timestamp.after.max.ms"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"message.timestamp.type": "CreateTime", NAME: "3600000"}, ""),
        ({"message.timestamp.type": "CreateTime", NAME: "9223372036854775807"}, f"Set {NAME}=3600000 on the topic"),
        ({"message.timestamp.type": "CreateTime"}, "this Kafka does not know it"),
        ({"message.timestamp.type": "LogAppendTime", NAME: "9223372036854775807"}, ""),
    ],
)
def test_an_input_without_a_bound_is_named(config: dict[str, str], says: str) -> None:
    said = unbounded(config)
    assert says in said
    assert bool(said) == bool(says)
