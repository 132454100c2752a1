"""Metrics of a worker for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from kafka_ratchet.app.status.answers import PartitionStatus, StatusProvider
from kafka_ratchet.rule.verdicts import DUPLICATE, FRESH, INVALID, UNJUDGED
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.measures import Histogram, StreamMeasures

WHERE_KNOWN = (
    "missing",
    "keys",
    "input_position",
    "input_end",
    "stable_end",
    "changelog_position",
    "recognised_for_s",
    "lag_s",
    "fetched_at",
    "store_bytes",
)
"""Names of metrics to leave out while their value is unknown."""

HISTOGRAMS = {
    "commit": "Time from a transaction's changelog entries until its state is persisted.",
    "fetch": "Time from the request for present records to their arrival.",
    "restore": "Time from fencing the former owner to the first fetch of a partition.",
}


class StatusCollector(Collector):
    """Prometheus collector of the metrics of a worker as a whole, which it reads at each scrape."""

    def __init__(self, provider: StatusProvider, version: str) -> None:
        self._provider, self._version = provider, version

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the worker as a whole; `PartitionsText` has those of its partitions."""
        measures = self._provider.measures()
        build = GaugeMetricFamily("ratchet_build_info", "The worker's version; always 1.", labels=["version"])
        build.add_metric([self._version], 1)
        yield build
        is_ready = not self._provider.readiness().waits
        yield GaugeMetricFamily(
            "ratchet_ready", "1 if the worker is ready, as in /readyz, else 0.", value=int(is_ready)
        )
        yield CounterMetricFamily(
            "ratchet_rebalances", "Assignments that the group has given to this worker.", value=measures.rebalances
        )
        partitions = GaugeMetricFamily(
            "ratchet_stream_partitions",
            "Partition count of the stream's input, on all workers together.",
            labels=["stream"],
        )
        for stream, count in measures.partitions.items():
            partitions.add_metric([stream], count)
        yield partitions
        for name, about in HISTOGRAMS.items():
            family = HistogramMetricFamily(f"ratchet_{name}_seconds", about, labels=["stream"])
            for stream, measured in measures.streams.items():
                found: Histogram = getattr(measured, name)
                family.add_metric([stream], cumulated(found), found.seconds)
            yield family
        yield from _counts(measures.streams)


class PartitionsText:
    """Writer of the metrics of streams and partitions, in the same text format as Prometheus's `generate_latest`.

    A worker may have thousands of partitions with some 30 samples each. Prometheus's client makes an object for each
    sample, which takes a second for 1,000 partitions. This class instead caches the beginning of each line.
    """

    def __init__(self, provider: StatusProvider) -> None:
        self._provider = provider
        self._families = _families()
        self._heads = {name: _head(family) for name, family in self._families.items()}
        self._begun: dict[tuple[str, int], dict[tuple[str, str], str]] = {}
        """Beginnings of the lines (name and labels), by stream and partition, then by family and third label."""

    def text(self) -> str:
        """Return the present metrics as text, grouped by metric family."""
        lines = {name: [head] for name, head in self._heads.items()}
        begun: dict[tuple[str, int], dict[tuple[str, str], str]] = {}
        for table in self._provider.tables():
            line = _line(self._families["deduplicate"], [table.stream, table.origin])
            lines["deduplicate"] += [line, _number(int(table.deduplicate))]
            for partition in table.partitions:
                key = table.stream, partition.partition
                begins = begun[key] = self._begun.get(key, {})
                for name, label, value in _samples(partition):
                    line = begins.get((name, label), "")
                    if not line:
                        labels = [table.stream, str(partition.partition), *([] if label == NO_MORE else [label])]
                        line = begins[name, label] = _line(self._families[name], labels)
                    lines[name] += [line, _number(value)]
        self._begun = begun  # without partitions moved elsewhere
        return "".join(piece for family in lines.values() for piece in family)


def _head(family: CounterMetricFamily | GaugeMetricFamily) -> str:
    registry = CollectorRegistry()
    registry.register(_Alone(family))
    return generate_latest(registry).decode()


def _line(family: CounterMetricFamily | GaugeMetricFamily, labels: list[str]) -> str:
    """Return the beginning of a sample's line in Prometheus's text format: name and labels, up to the value.

    `tests/app/status/test_metrics.py` compares the lines with those of `generate_latest`.
    """
    name = f"{family.name}_total" if family.type == "counter" else family.name
    pairs = sorted(zip(family._labelnames, labels, strict=True))  # noqa: SLF001
    told = ",".join(f'{label}="{value.translate(_ESCAPED)}"' for label, value in pairs)
    return f"{name}{{{told}}} "


_ESCAPED: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class _Alone(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


@lru_cache(maxsize=1 << 16)
def _number(value: float) -> str:
    """Return a sample's value in Prometheus's text format, and the end of the line."""
    return f"{floatToGoString(value)}\n"  # type: ignore[no-untyped-call]


def cumulated(found: Histogram) -> list[tuple[str, float]]:
    """Return a histogram in Prometheus's form: for each bound, as text, the number of values up to that bound."""
    total, buckets = 0, []
    for bound, count in zip([*map(str, found.bounds), "+Inf"], found.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def _counts(streams: Mapping[str, StreamMeasures]) -> Iterator[Metric]:
    transactions = CounterMetricFamily(
        "ratchet_transactions",
        "Transactions of this worker. Aborted ones include those without an answer from Kafka.",
        labels=["stream", "outcome"],
    )
    restored = CounterMetricFamily("ratchet_restored_entries", "Changelog entries replayed.", labels=["stream"])
    halts = CounterMetricFamily("ratchet_halts", "Halts, by class of the error.", labels=["stream", "reason"])
    for stream, measured in streams.items():
        transactions.add_metric([stream, "committed"], measured.committed)
        transactions.add_metric([stream, "aborted"], measured.aborted)
        restored.add_metric([stream], measured.restored)
        for reason, count in sorted(measured.halts.items()):
            halts.add_metric([stream, reason], count)
    yield from (transactions, restored, halts)


def _families() -> dict[str, CounterMetricFamily | GaugeMetricFamily]:
    where = ["stream", "partition"]
    return {
        "records": CounterMetricFamily(
            "ratchet_records",
            "Committed input records by verdict, of all workers so far.",
            labels=[*where, "verdict"],
        ),
        "deduplicate": GaugeMetricFamily(
            "ratchet_deduplicate",
            "1 if the stream is deduplicated, 0 if records are forwarded unjudged.",
            labels=["stream", "origin"],
        ),
        "evicted": CounterMetricFamily(
            "ratchet_evicted", "Identities forgotten, of all workers so far.", labels=[*where, "reason"]
        ),
        "recognised_for_s": GaugeMetricFamily(
            "ratchet_recognised_seconds",
            "Least seconds from an identity's last record until the identity is forgotten; absent if identities are "
            "never forgotten, or if the time is unknown.",
            labels=where,
        ),
        "jumps": CounterMetricFamily(
            "ratchet_sequence_jumps",
            "Sequences more than 2^40 above their identity's last, since this worker has the partition.",
            labels=where,
        ),
        "missing": GaugeMetricFamily(
            "ratchet_missing_sequences",
            "Missing sequences below the last one of their identity, for a stream with dense = true.",
            labels=where,
        ),
        "late": CounterMetricFamily(
            "ratchet_late_writes",
            "Writes of late events that windowed tables have dropped, of all workers so far.",
            labels=where,
        ),
        "invalid_share": GaugeMetricFamily(
            "ratchet_invalid_share",
            "Share of invalid records, 0 to 1: within the last minute, and in all the time before.",
            labels=[*where, "of"],
        ),
        "jumped": GaugeMetricFamily(
            "ratchet_invalid_share_jumped",
            "1 if 10 records or more were invalid within the last minute, and their share has risen by 0.05; else 0.",
            labels=where,
        ),
        "state": GaugeMetricFamily(
            "ratchet_partition_state", "1 for the state that the partition is in, else 0.", labels=[*where, "state"]
        ),
        "halted": GaugeMetricFamily(
            "ratchet_partition_halted",
            "1 from the halt of the partition until it continues, with the class of the error; else 0.",
            labels=[*where, "reason"],
        ),
        "lag": GaugeMetricFamily(
            "ratchet_lag_records",
            "Uncommitted input offsets, as of the last fetch; markers, aborted records and those of open "
            "transactions count.",
            labels=where,
        ),
        "blocked": GaugeMetricFamily(
            "ratchet_open_transaction_records",
            "Input offsets held back by an open transaction, as of the last fetch; part of the lag.",
            labels=where,
        ),
        "stalled": GaugeMetricFamily(
            "ratchet_partition_stalled",
            "1 while the partition stands still although its input has records to read, with the cause; else 0.",
            labels=[*where, "cause"],
        ),
        "stalled_s": GaugeMetricFamily(
            "ratchet_partition_stalled_seconds",
            "Seconds since the partition stands still; 0 while it moves.",
            labels=where,
        ),
        "lag_s": GaugeMetricFamily(
            "ratchet_lag_seconds",
            "Age of the oldest uncommitted input record, by its own timestamp; 0 if there is none. Absent "
            "if the worker has not read that record yet.",
            labels=where,
        ),
        "fetched_at": GaugeMetricFamily(
            "ratchet_last_fetch_timestamp_seconds",
            "Time of Kafka's last answer to a fetch of the input, in seconds since 1970.",
            labels=where,
        ),
        "restarts": CounterMetricFamily(
            "ratchet_restarts", "Retries after errors, since this worker has the partition.", labels=where
        ),
        "store_bytes": GaugeMetricFamily(
            "ratchet_store_bytes", "Bytes of the local store, in files and not yet written to files.", labels=where
        ),
        "keys": GaugeMetricFamily("ratchet_keys", "Identities with a last sequence.", labels=where),
        "input_position": GaugeMetricFamily("ratchet_input_position", "Next input offset, committed.", labels=where),
        "input_end": GaugeMetricFamily("ratchet_input_end", "High watermark of the input.", labels=where),
        "stable_end": GaugeMetricFamily(
            "ratchet_input_stable_end",
            "Last stable offset of the input: no open transaction lies before it.",
            labels=where,
        ),
        "changelog_position": GaugeMetricFamily(
            "ratchet_changelog_position", "Changelog offset up to which the state is committed.", labels=where
        ),
    }


NO_MORE: Final = "-"
"""Text in place of a third label, for a family with two labels."""
STATES: Final = tuple(str(state) for state in LaneState)


def _samples(partition: PartitionStatus) -> Iterator[tuple[str, str, float]]:
    """Yield (family, third label, value) for each sample of a partition; the first two labels are stream, partition."""
    for verdict in (FRESH, DUPLICATE, INVALID, UNJUDGED):
        yield "records", verdict, getattr(partition, verdict)
    yield "records", "late", partition.too_late
    yield "records", "conflict", partition.conflict
    yield "evicted", "inactive", partition.evicted_inactive
    yield "evicted", "displaced", partition.evicted_displaced
    yield "jumps", NO_MORE, partition.jumps
    if partition.late is not msgspec.UNSET:
        yield "late", NO_MORE, partition.late
    yield "invalid_share", "minute", partition.recent.now
    yield "invalid_share", "before", partition.recent.before
    yield "jumped", NO_MORE, int(partition.recent.has_jumped)
    for state in STATES:
        yield "state", state, int(partition.state == state)
    yield "halted", partition.halted, int(bool(partition.halted))
    yield "restarts", NO_MORE, partition.restarts
    if partition.input_position is not None and partition.input_end is not None:
        yield "lag", NO_MORE, max(0, partition.input_end - partition.input_position)
    if partition.stable_end is not None and partition.input_end is not None:
        yield "blocked", NO_MORE, max(0, partition.input_end - partition.stable_end)
    stall = partition.stalled
    yield "stalled", stall.cause if stall else "", int(stall is not None)
    yield "stalled_s", NO_MORE, round(max(0.0, time.time() - stall.since), 1) if stall else 0
    for name in WHERE_KNOWN:
        if (value := getattr(partition, name)) is not None:
            yield name, NO_MORE, value
