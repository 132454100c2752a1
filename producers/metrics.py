"""Metrics of a producer, and their text for Prometheus; only the text needs prometheus-client."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.producers.headers import NOTHING_YET

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds of the histogram of acknowledgements: a Kafka nearby takes some milliseconds, and one that
elects a leader some seconds."""

STATISTICS_EVERY_MS: Final = 5_000
"""Milliseconds between two statistics of the client: often enough for Prometheus, and too rare to cost anything."""


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """Snapshot of a producer's metrics. Counters begin at its creation.

    None in a field: the value is unknown, unless the field says otherwise.
    """

    name: str
    topic: str
    sent: int
    """Number of records accepted by `send`."""
    acknowledged: int
    """Number of records that Kafka is known to have stored. On a busy partition it increases by 64 at a time."""
    refused: int
    """Lower bound of the number of records that Kafka or the client refused for good. Records discarded after a
    refusal do not count."""
    in_flight: int
    """Number of records that wait to be sent or acknowledged."""
    retries: int | None
    """Lower bound of the records sent to Kafka again, as of some seconds ago; exact when nothing is in flight.
    None: unknown yet."""
    sent_bytes: int | None
    """Bytes of keys and values sent to Kafka until some seconds ago, before compression and including retries."""
    published_sequence: int | None
    """Last sequence sent; None: no record yet, in this run or an earlier one."""
    persisted_sequence: int | None
    """Result of `resume_from()`: every record up to this sequence is persisted; None: no record is persisted."""
    fenced: bool
    """True if a newer producer has taken over the name."""
    acknowledge_counts: tuple[int, ...]
    """Number of acknowledgements by duration. Element i counts those of at most `BOUNDS_S[i]` seconds and above the
    bound before it; the last element counts all longer ones. On a busy partition one record in 64 is measured.
    """
    acknowledge_s: float
    """Sum of the measured seconds from `send` to Kafka's answer."""
    stalled: str = ""
    """Cause of missing acknowledgements, as docs/reference/stalls.md names it; empty: records are acknowledged."""


def known(sequence: int) -> int | None:
    """Return a sequence, or None in place of -1, which stands for no sequence yet."""
    return None if sequence == NOTHING_YET else sequence


class Measured(Protocol):
    """Object with metrics: a `Producer` or an `AsyncProducer`."""

    def metrics(self) -> ProducerMetrics:
        """Return the current metrics."""


class Measures:
    """Counters of a producer's acknowledgements, refusals and transmissions; they are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._seconds = 0.0
        self.refused = 0
        self._transmitted: int | None = None
        self._again = 0
        self.sent_bytes: int | None = None

    def acknowledged(self, seconds: float | None) -> None:
        """Add the seconds until an acknowledgement to the histogram; None: the client does not know them."""
        if seconds is not None:
            with self._lock:
                self._counts[bisect_left(BOUNDS_S, seconds)] += 1
                self._seconds += seconds

    def take_statistics(self, text: str) -> None:
        """Store the transmitted records and bytes from librdkafka's statistics."""
        found = msgspec.json.decode(text, type=_Statistics)
        with self._lock:
            self._transmitted, self.sent_bytes = found.txmsgs, found.txmsg_bytes

    def transmitted(self, sent_bytes: int, again: int) -> None:
        """Count transmitted bytes and retransmitted records, for a client without statistics."""
        with self._lock:
            self._transmitted = 0
            self._again += again
            self.sent_bytes = (self.sent_bytes or 0) + sent_bytes

    def retries(self, sent: int) -> int | None:
        """Return a lower bound of the repeated transmissions; None: no statistics yet.

        librdkafka counts transmissions, but does not mark repeated ones. So the bound is the number of transmissions
        less the number of `sent` records, which include those still in the queue.
        """
        with self._lock:
            if self._transmitted is None:
                return None
            self._again = max(self._again, self._transmitted - sent)
            return self._again

    def histogram(self) -> tuple[tuple[int, ...], float]:
        """Return the values of `acknowledge_counts` and `acknowledge_s`."""
        with self._lock:
            return tuple(self._counts), self._seconds


class _Statistics(msgspec.Struct):
    txmsgs: int
    txmsg_bytes: int


class ProducerCollector:
    """Collector of producers' metrics for a registry of prometheus-client.

    ::

        prometheus_client.REGISTRY.register(ProducerCollector(producer))
    """

    def __init__(self, *producers: Measured) -> None:
        self._producers = producers

    def collect(self) -> Iterator[Metric]:
        """Yield each metric of the producers, labelled by producer and topic; unknown values are left out."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        found, labels = [producer.metrics() for producer in self._producers], ["producer", "topic"]
        for kind, figures in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, (figure, about) in figures.items():
                family = kind(f"ratchet_producer_{name}", about, labels=labels)
                for each in found:
                    if (value := getattr(each, figure)) is not None:
                        family.add_metric([each.name, each.topic], float(value))
                yield family
        stalled = GaugeMetricFamily(
            "ratchet_producer_stalled",
            "1 while Kafka acknowledges nothing although records wait, with the cause.",
            labels=[*labels, "cause"],
        )
        for each in found:
            stalled.add_metric([each.name, each.topic, each.stalled], float(bool(each.stalled)))
        yield stalled
        seconds = HistogramMetricFamily(
            "ratchet_producer_acknowledge_seconds",
            "Time from sending a record to Kafka's acknowledgement; on a busy partition one record in 64.",
            labels=labels,
        )
        for each in found:
            buckets = zip([*map(str, BOUNDS_S), "+Inf"], map(float, accumulate(each.acknowledge_counts)), strict=True)
            seconds.add_metric([each.name, each.topic], [*buckets], each.acknowledge_s)
        yield seconds


_COUNTERS: Final = {
    "sent_records": ("sent", "Records that the producer has taken since it was made."),
    "acknowledged_records": ("acknowledged", "Records that Kafka is known to have."),
    "refused_records": ("refused", "Records that Kafka or the client has refused for good, at least."),
    "retries": ("retries", "Records sent to Kafka again, at least."),
    "sent_bytes": ("sent_bytes", "Keys and values sent to Kafka, before compression, retries included."),
}
_GAUGES: Final = {
    "in_flight_records": ("in_flight", "Records that wait to be sent or acknowledged."),
    "published_sequence": ("published_sequence", "The last sequence sent."),
    "persisted_sequence": ("persisted_sequence", "Highest sequence with everything up to it in Kafka."),
    "fenced": ("fenced", "1 where a newer producer has taken over the name."),
}


def prometheus_text(*producers: Measured) -> str:
    """Return the metrics of producers in Prometheus's text format.

    Raises:
        SettingsError: prometheus-client is missing.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:  # not a dependency of applications with a producer
        raise SettingsError(
            "metrics for Prometheus need the package prometheus-client: pip install prometheus-client"
        ) from None
    registry = CollectorRegistry()
    registry.register(ProducerCollector(*producers))
    return generate_latest(registry).decode()
