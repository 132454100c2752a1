"""Many records at once: the same records, numbers and errors as by as many calls."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kafka_ratchet.errors import RecordTooLarge, SettingsError, SourceError, TransportError
from kafka_ratchet.producers import Producer
from kafka_ratchet.producers.many import RecordsPart, in_parts
from tests.producers.test_producer import read, sequence_of, sequences

NewTopic = Callable[..., str]


@pytest.fixture
def name() -> str:
    return f"producer-{uuid.uuid4().hex[:8]}"


def fails_after(values: list[bytes]) -> Iterator[bytes]:
    yield from values
    raise ValueError("the cursor is gone")


def test_columns_are_given_in_parts_of_one_length() -> None:
    values, keys = [b"%d" % n for n in range(7)], [None, b"k"] * 3 + [None]
    assert list(in_parts(values, iter(keys), range(7), 3)) == [
        RecordsPart(values[:3], keys[:3], [0, 1, 2]),
        RecordsPart(values[3:6], keys[3:6], [3, 4, 5]),
        RecordsPart(values[6:], keys[6:], [6]),
    ]
    assert list(in_parts(iter(values[:6]), None, None, 3)) == [
        RecordsPart(values[:3], None, None),
        RecordsPart(values[3:6], None, None),
    ]
    assert list(in_parts([], [], None)) == []


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(SourceError, match="values and keys have different lengths"):
        next(in_parts([b"a"], [b"k", b"k"], None))
    for values, keys in ((4, 3), (3, 4), (3, 5), (6, 3)):
        given = in_parts(iter([b"v"] * values), iter([b"k"] * keys), None, 3)
        assert next(given) == RecordsPart([b"v"] * 3, [b"k"] * 3, None)
        with pytest.raises(SourceError, match="have different lengths"):
            list(given)


def test_what_comes_before_an_error_is_given() -> None:
    given = in_parts(fails_after([b"a", b"b"]), iter([b"k"] * 9), None)
    assert next(given) == RecordsPart([b"a", b"b"], [b"k", b"k"], None)
    with pytest.raises(ValueError, match="cursor"):
        next(given)


def test_sent_as_by_as_many_calls(broker: str, new_topic: NewTopic, name: str) -> None:
    one, many = new_topic(3), new_topic(3)
    values = [b"%d" % n if n % 7 else None for n in range(3000)]
    keys = [b"k%d" % (n % 50) if n % 5 else None for n in range(3000)]
    options: dict[str, Any] = {"bootstrap.servers": broker, "queue.buffering.max.messages": 500}
    with Producer(one, name, options=options) as producer:
        for value, key in zip(values, keys, strict=True):
            producer.send(value, key)
    with Producer(many, name, options=options) as producer:
        assert producer.send_many([]) is None
        assert producer.send_many(values[:1000], keys[:1000]) == 999
        assert producer.send(values[1000], keys[1000]) == 1000
        assert producer.send_many(iter(values[1001:]), iter(keys[1001:])) == 2999
        producer.flush()
        assert (producer.resume_from(), producer.metrics().acknowledged) == (2999, 3000)
    for partition in range(3):
        found = [[(m.key(), m.value(), m.headers()) for m in read(broker, topic, partition)] for topic in (one, many)]
        assert found[0] == found[1]


def test_an_error_in_the_middle_is_where_as_many_calls_would_have_it(
    broker: str, new_topic: NewTopic, name: str
) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    with Producer(topic, name, options=options) as producer:
        with pytest.raises(SourceError, match=r"5 .* does not rise above 5"):
            producer.send_many([b"v"] * 4, sequences=[3, 5, 5, 9])
        with pytest.raises(SourceError, match=r"2 .* does not rise above 5"):
            producer.send_many([b"v"], sequences=[2])
        with pytest.raises(SourceError, match="with sequences of their own"):
            producer.send_many([b"v"])
        with pytest.raises(RecordTooLarge, match="message"):
            producer.send_many([b"v", b"x" * 2_000_000, b"v"], sequences=[6, 7, 8])
        with pytest.raises(ValueError, match="cursor"):
            producer.send_many(fails_after([b"v", b"v"]), sequences=iter([7, 8, 9]))
        with pytest.raises(SourceError, match=r"not within 0 and 2\^63-1"):
            producer.send_many([b"v", b"v"], sequences=[2**63 - 1, 2**63])
    assert sequences(broker, topic, 0) == [3, 5, 6, 7, 8, 2**63 - 1]
    with pytest.raises(TransportError, match="is closed"):
        producer.send_many([b"v"], sequences=[2**63 - 1])


def test_the_last_automatic_sequence(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    with Producer(topic, name, 2**63 - 3, options=options) as producer:
        with pytest.raises(SourceError, match="has used its last sequence"):
            producer.send_many([b"v"] * 9)
    assert [sequence_of(message) for message in read(broker, topic, 0)] == [2**63 - 3, 2**63 - 2, 2**63 - 1]


def test_sequences_are_whole_numbers_of_any_make(broker: str, new_topic: NewTopic, name: str) -> None:
    """A column of numpy's or pandas', as data frames have them; one with fractions would be cut to equal numbers."""
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    with Producer(topic, name, options=options) as producer:
        assert producer.send_many([b"v"] * 3, sequences=np.array([1, 5, 9])) == 9
        assert producer.send(b"v", sequence=np.int64(10)) == 10  # type: ignore[arg-type]
        for at, wrong in enumerate((12.7, "12"), 11):
            with pytest.raises(TypeError, match=f"a whole number, and not {type(wrong).__name__}"):
                producer.send_many([b"v"] * 3, sequences=[at, wrong, 13])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="a whole number, and not float"):
            producer.send(b"v", sequence=20.0)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a whole number, and not NoneType"):
            producer.send_many([b"v"] * 3, sequences=[None, 21, 22])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="are bytes or None, and not int"):
            producer.send_many([b"v", 5], sequences=[23, 24])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="are bytes or None, and not str"):
            producer.send(b"v", "key", sequence=24)  # type: ignore[arg-type]
    assert sequences(broker, topic, 0) == [1, 5, 9, 10, 11, 12, 23]
    with Producer(topic, name, options=options) as producer:
        assert producer.resume_from() == 23


def test_options_that_name_no_kafka_are_refused_at_once(name: str) -> None:
    with pytest.raises(SettingsError, match=r'name no Kafka: give "bootstrap\.servers"'):
        Producer("topic", name, options={})
