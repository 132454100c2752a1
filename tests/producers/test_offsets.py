"""Offsets are asked for until they are ones: librdkafka answers -1001, without an error, for a leader that is away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import KafkaError

from kafka_ratchet.producers import ask_offsets, no_offset
from kafka_ratchet.producers import offsets as module
from kafka_ratchet.producers.offsets import Answer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0)


def test_a_negative_answer_is_asked_for_again() -> None:
    moving = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
    answers: Iterator[Mapping[int, Answer]] = iter([{0: 7, 1: -1001, 2: moving}, {1: -1, 2: 5}, {1: 0}])
    asked: list[list[int]] = []

    def ask(missing: list[int]) -> Mapping[int, Answer]:
        asked.append(missing)
        return next(answers)

    assert ask_offsets(ask, [0, 1, 2], lambda _: 60) == ({0: 7, 1: 0, 2: 5}, {})
    assert asked == [[0, 1, 2], [1, 2], [1]]


def test_what_has_no_patience_left_is_returned_with_its_error() -> None:
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    found, failures = ask_offsets(lambda _: {0: 3, 1: refused}, [0, 1, 2], lambda error: 60 if error is None else 0)
    assert (found, failures) == ({0: 3}, {1: refused, 2: None})
    assert no_offset(None, KafkaError.str) == "no leader has answered"
    assert ask_offsets(lambda _: pytest.fail("nothing is missing"), [], lambda _: 0) == ({}, {})
