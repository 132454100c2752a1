from __future__ import annotations

import pytest

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.transport.publishing.options import understood


def options(**more: str) -> dict[str, str | int | bool]:
    return {"bootstrap.servers": "nowhere:1", **{name.replace("_", "."): value for name, value in more.items()}}


def test_numbers_have_the_bounds_of_librdkafka() -> None:
    read = understood(options(linger_ms="1.5", request_timeout_ms="2147483647", message_max_bytes="1000"))
    assert (read.linger_s, read.request_timeout_ms, read.message_max_bytes) == (0.0015, 2**31 - 1, 1000)
    assert understood(options(queue_buffering_max_kbytes="1")).room_bytes == 1024


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("linger.ms", "-0.5", "0"),
        ("linger.ms", "soon", "0"),
        ("linger.ms", "nan", "0"),
        ("request.timeout.ms", "0", "1"),
        ("request.timeout.ms", "2147483648", "1"),
        ("queue.buffering.max.kbytes", "0.5", "1"),
        ("message.max.bytes", "999", "1000"),
        ("message.max.bytes", "inf", "1000"),
    ],
)
def test_a_number_out_of_its_bounds_is_refused_by_its_name(name: str, value: str, least: str) -> None:
    with pytest.raises(SettingsError, match=rf"kafka\.{name}: must be a number of at least {least}\b"):
        understood({**options(), name: value})
