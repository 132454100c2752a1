"""A worker's figures for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafka_ratchet.app.status.answers import PartitionStatus, StatusProvider


class StatusCollector(Collector):
    """The provider's figures for Prometheus, read when they are asked for."""

    def __init__(self, provider: StatusProvider) -> None:
        self._provider = provider

    def collect(self) -> Iterator[Metric]:
        """One family per figure; labels stream and partition."""
        families = _families()
        for table in self._provider.tables():
            families["deduplicate"].add_metric([table.stream, table.origin], int(table.deduplicate))
            for partition in table.partitions:
                for name, labels, value in _samples(partition):
                    families[name].add_metric([table.stream, str(partition.partition), *labels], value)
        yield from families.values()


def _families() -> dict[str, CounterMetricFamily | GaugeMetricFamily]:
    where = ["stream", "partition"]
    return {
        "records": CounterMetricFamily(
            "ratchet_records",
            "Records committed, by what became of them, of all workers so far.",
            labels=[*where, "verdict"],
        ),
        "deduplicate": GaugeMetricFamily(
            "ratchet_deduplicate",
            "1 where the stream is deduplicated, 0 where it is forwarded unjudged.",
            labels=["stream", "origin"],
        ),
        "evicted": CounterMetricFamily(
            "ratchet_evicted", "Identities forgotten, of all workers so far.", labels=[*where, "reason"]
        ),
        "recognised_for_s": GaugeMetricFamily(
            "ratchet_recognised_seconds",
            "Seconds after its last record for which each identity is recognised, at least; not there where it is so "
            "for ever, or where nobody knows.",
            labels=where,
        ),
        "jumps": CounterMetricFamily(
            "ratchet_sequence_jumps",
            "Sequences more than 2^40 above their identity's last, since this worker has the partition.",
            labels=where,
        ),
        "missing": GaugeMetricFamily(
            "ratchet_missing_sequences",
            "Sequences below the last that its identities have not had, where a stream is dense.",
            labels=where,
        ),
        "late": CounterMetricFamily(
            "ratchet_late_writes",
            "Writes of late events that tables with windows have left out, of all workers so far.",
            labels=where,
        ),
        "invalid_share": GaugeMetricFamily(
            "ratchet_invalid_share",
            "Share of invalid records, 0 to 1: within the last minute, and before it since ever.",
            labels=[*where, "of"],
        ),
        "jumped": GaugeMetricFamily(
            "ratchet_invalid_share_jumped",
            "1 where 10 records or more were invalid within the last minute, and 5 % more of all than before.",
            labels=where,
        ),
        "keys": GaugeMetricFamily("ratchet_keys", "Identities with a last sequence.", labels=where),
        "input_position": GaugeMetricFamily("ratchet_input_position", "Next input offset, committed.", labels=where),
        "input_end": GaugeMetricFamily("ratchet_input_end", "End of the input partition.", labels=where),
        "changelog_position": GaugeMetricFamily(
            "ratchet_changelog_position", "Changelog offset that the table stands for.", labels=where
        ),
    }


def _samples(partition: PartitionStatus) -> Iterator[tuple[str, list[str], float]]:
    """Family, labels beside stream and partition, and value."""
    for verdict in ("fresh", "duplicate", "invalid", "unjudged"):
        yield "records", [verdict], getattr(partition, verdict)
    yield "records", ["late"], partition.too_late
    yield "records", ["conflict"], partition.conflict
    for reason in ("inactive", "displaced"):
        yield "evicted", [reason], getattr(partition, f"evicted_{reason}")
    yield "jumps", [], partition.jumps
    if partition.late is not msgspec.UNSET:
        yield "late", [], partition.late
    yield "invalid_share", ["minute"], partition.recent.now
    yield "invalid_share", ["before"], partition.recent.before
    yield "jumped", [], int(partition.recent.has_jumped)
    for name in ("missing", "keys", "input_position", "input_end", "changelog_position", "recognised_for_s"):
        if (value := getattr(partition, name)) is not None:
            yield name, [], value
