"""Messages of the client, read into records and positions, without a broker."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, Message

from kafka_ratchet.errors import PositionLost, ReaderError
from kafka_ratchet.producers import END_OF_PARTITION
from kafka_ratchet.reader.positions import NO_EPOCH, Position
from kafka_ratchet.reader.source import FetchedRecords, Source


@pytest.fixture
def source() -> Source:
    """Return a source of partition 0, from offset 5 on."""
    found = Source("t", {"bootstrap.servers": "127.0.0.1:1"}, "r", "a-group", on_revoked=lambda: None)
    found.read_from({0: Position(5, NO_EPOCH)})
    return found


def message(offset: int, *, epoch: int = -1, error: int | None = None, partition: int = 0) -> Message:
    found = Message(
        topic="t", partition=partition, offset=offset, key=b"k", value=b"v", headers=[], timestamp=(1, 7), latency=0.0,
        leader_epoch=epoch,
    )  # fmt: skip
    if error is not None:
        found.set_error(KafkaError(error))
    return found


def taken(source: Source, messages: list[Message]) -> FetchedRecords:
    """Return the fetched records for messages of the client."""

    class Client:
        def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
            return 7, 9  # retention has deleted up to here

        def poll(self, wait_s: float) -> Message:
            return messages[0]

        def consume(self, most: int, wait_s: float) -> list[Message]:
            return messages[1:]

    source._consumer = Client()
    return source.fetch(100, 0.1)


def test_a_position_has_the_epoch_of_the_record_before_it(source: Source) -> None:
    fetched = taken(source, [message(5, epoch=3), message(8, epoch=4)])
    assert [event.offset for event in fetched.events] == [5, 8]
    assert fetched.positions == {0: Position(9, 4)}
    assert source.next_offsets == {0: 9}


def test_a_position_behind_a_marker_has_no_epoch(source: Source) -> None:
    """The marker may be of a later epoch: with the record's, Kafka would take the position for a truncated log."""
    fetched = taken(source, [message(5, epoch=3), message(7, error=END_OF_PARTITION)])
    assert fetched.positions == {0: Position(7, NO_EPOCH)}
    assert taken(source, [message(7, error=END_OF_PARTITION)]).positions == {}
    assert taken(source, [message(7, epoch=5)]).positions == {0: Position(8, 5)}


def test_what_was_read_before_is_left_out(source: Source) -> None:
    stale = [message(4), message(3, error=END_OF_PARTITION), message(9, partition=1)]
    fetched = taken(source, [*stale, message(0, partition=1, error=END_OF_PARTITION)])
    assert (fetched.events, fetched.positions, source.next_offsets) == ([], {}, {0: 5})


@pytest.mark.parametrize(
    ("code", "raised"),
    [(KafkaError._AUTO_OFFSET_RESET, PositionLost), (KafkaError.TOPIC_AUTHORIZATION_FAILED, ReaderError)],
)
def test_after_an_error_nothing_is_gone_on_with(source: Source, code: int, raised: type[Exception]) -> None:
    """The client has given what stands behind the error too, and would not give it again."""
    with pytest.raises(raised):
        taken(source, [message(5), message(6, error=code), message(7)])
    assert source.next_offsets == {}


@pytest.mark.parametrize("code", [KafkaError._MAX_POLL_EXCEEDED, KafkaError._TRANSPORT])
def test_what_passes_is_gone_on_after(source: Source, code: int) -> None:
    fetched = taken(source, [message(-1, error=code, partition=-1), message(5)])
    assert [event.offset for event in fetched.events] == [5]
