"""A standby that was silent: its process suspended, or Kafka away, for longer than tombstones are kept."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from confluent_kafka import Producer
from structlog.testing import capture_logs

from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.transport.batch.encoding import pack_entries
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.standby import Standby
from tests.transport.kafka_side import create_topic, until

HOUR_MS = 3_600_000
BEGAN_MS = 1_700_000_000_000


def write(broker: str, topic: str, identity: bytes, hours: int) -> None:
    """A changelog entry, some hours after the first."""
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(topic, struct.pack(">q", 1), b"i" + identity, 0, timestamp=BEGAN_MS + hours * HOUR_MS)
    assert producer.flush(30) == 0


@pytest.mark.parametrize(("hours", "known"), [(2, {b"evicted", b"new"}), (25, {b"other", b"new"})])
async def test_a_silent_standby_rebuilds_where_tombstones_may_be_gone(
    broker: str, tmp_path: Path, hours: int, known: set[bytes]
) -> None:
    topic = create_topic(broker, f"silent-{hours}.changelog", cleanup_policy="compact")
    write(broker, topic, b"other", 0)
    cluster = Cluster(client_options(broker, {}))
    await cluster.start(60)
    state = SequencePartition(tmp_path / "store", topic, 0, Identity.KEY, 1 << 20, bounds=EvictionLimits(1_000))
    state.open()
    # What it knew at that offset was evicted meanwhile, and Kafka has compacted entry and tombstone away.
    entry = pack_entries(topic, 0, [(b"ievicted", struct.pack(">q", 1))])
    entry.next, entry.timestamps[:] = 1, BEGAN_MS
    state.apply(entry)
    seconds = 0.0
    standby = Standby(cluster, state, 0, passed=lambda: (seconds, seconds))
    try:
        with capture_logs() as said:
            standby.start()
            await until(lambda: any("standby follows" in line["event"] for line in said))
            write(broker, topic, b"new", hours)  # it is suspended: this does not give way to its task
            seconds = hours * 3_600.0
            await until(lambda: state.last(b"new").persisted == 1)
        assert {name for name in (b"evicted", b"other", b"new") if state.last(name).persisted == 1} == known
        assert any("checking the whole changelog" in line["event"] for line in said)
    finally:
        await standby.stop()
        await cluster.close()
