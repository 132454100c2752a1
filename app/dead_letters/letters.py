"""Dead letters as records of their topic, with their origin, reason and number of replays."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Final, NamedTuple

from kafka_ratchet.tables.replays import REPLAYS
from kafka_ratchet.transport.batch.record_batch import Header, RecordBatch
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster
from kafka_ratchet.transport.client.partition_reader import FetchOptions, PartitionAddress, PartitionReader, answered
from kafka_ratchet.transport.delivery import LETTER_AGENTS, LETTER_APP, LETTER_EVENT

APPENDED: Final = ("ratchet-reason", "ratchet-topic", "ratchet-partition", "ratchet-offset")
"""Names of the headers at the end of every dead letter, in this order."""
MOST_DIGITS: Final = 19
"""Maximum number of digits of an offset, which has 64 bits."""
REPLAYS_DIGITS: Final = 4
"""Maximum number of digits of the header with the number of replays. A longer or malformed number counts as 9,999."""
CONNECTION: Final = "dead-letters"
FETCH_BYTES: Final = 8 << 20
FETCH_WAIT_MS: Final = 500

OF_AGENTS: Final = ("agent ", "value does not decode: ")
"""Prefixes of the reasons that agents give. The worker had judged the rejected record new, so the record's sequence
counts as seen.
"""


class LetterOrigin(NamedTuple):
    """Topic, partition and offset of an input record that became a dead letter, and the reason."""

    reason: str
    topic: str
    partition: int
    offset: int

    @property
    def is_of_agent(self) -> bool:
        """Return True if an agent rejected the record; then the worker had judged the record new."""
        return self.reason.startswith(OF_AGENTS)


class Letter(NamedTuple):
    """Record of the dead-letter topic, with the contents of its headers.

    partition, offset: partition and offset in the dead-letter topic.
    origin: input record, and reason; None: the record has no headers of a dead letter.
    replays: number of times that the record was replayed before.
    headers: headers of the input record.
    agents: names of the agents that rejected the record, as a JSON list; None: as for `app`.
    app: application of the agents; None: no agent rejected the record, or an earlier version wrote the letter.
    event: id of the event that agents rejected, else None.
    """

    partition: int
    offset: int
    timestamp_ms: int
    origin: LetterOrigin | None
    replays: int
    headers: list[Header]
    agents: bytes | None = None
    app: str | None = None
    event: bytes | None = None

    @property
    def appended(self) -> int:
        """Return the number of headers that the worker appended to those of the input record."""
        if self.origin is None:
            return 0
        return len(APPENDED) + sum(each is not None for each in (self.agents, self.app, self.event))


def letter_at(batch: RecordBatch, index: int) -> Letter:
    """Return a record of a batch of the dead-letter topic as a dead letter. index: position of the record."""
    headers = batch.headers(index)
    origin = _origin(headers)
    own = headers if origin is None else headers[: -len(APPENDED)]
    agents = app = event = None
    if origin is not None and origin.is_of_agent and own and own[-1].name == LETTER_AGENTS:
        agents = own.pop().value
        if own and own[-1].name == LETTER_APP:
            app = _text(own.pop().value or b"")
            event = own.pop().value if own and own[-1].name == LETTER_EVENT else None
    where = batch.partition, int(batch.offsets[index]), int(batch.timestamps[index])
    return Letter(*where, origin, _replays(own), own, agents, app, event)


def _origin(headers: list[Header]) -> LetterOrigin | None:
    appended = headers[-len(APPENDED) :]
    if tuple(name for name, _ in appended) != APPENDED:
        return None
    reason, topic, partition, offset = (value or b"" for _, value in appended)
    if not all(number.isdigit() and len(number) <= MOST_DIGITS for number in (partition, offset)):
        return None
    return LetterOrigin(_text(reason), _text(topic), int(partition), int(offset))


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _replays(headers: list[Header]) -> int:
    """Return the number of replays in the record's headers; 0 without such a header, 9,999 for a malformed one."""
    values = [value or b"" for name, value in headers if name == REPLAYS]
    most: int = 10**REPLAYS_DIGITS - 1
    return max((int(each) if each.isdigit() and len(each) <= REPLAYS_DIGITS else most for each in values), default=0)


async def read_committed(
    cluster: Cluster, topic: str, topic_id: bytes, partition: int, most: int, timeout_s: float, start: int = 0
) -> AsyncGenerator[RecordBatch, None]:
    """Yield the committed batches of a partition, up to its end at the time of the call.

    Args:
        cluster: connected client of the Kafka cluster.
        topic: name of the topic
        topic_id: id of the topic, 16 bytes.
        partition: number of the partition.
        most: maximum number of bytes of one batch after decompression.
        timeout_s: how long to wait for each answer from Kafka.
        start: first offset to read; reading begins later if retention has deleted it

    Raises:
        BrokerUnavailable: Kafka does not answer in time.
        RatchetError: see `PartitionReader.batches`.
    """
    end, first = [
        await answered(cluster.offset(topic, partition, which, CONNECTION), f"{topic} partition {partition}", timeout_s)
        for which in (LATEST, EARLIEST)
    ]
    fetching = FetchOptions(CONNECTION, FETCH_BYTES, FETCH_WAIT_MS, most, timeout_s=timeout_s)
    async for batch in PartitionReader(
        cluster, PartitionAddress(topic, partition, topic_id), max(start, first), fetching
    ).batches(end):
        yield batch


def before(batch: RecordBatch, end: int) -> Iterator[int]:
    """Yield the position in the batch of each record with an offset below `end`."""
    for index, offset in enumerate(batch.offsets.tolist()):
        if offset < end:
            yield index
