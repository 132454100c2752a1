"""Metrics of a run for Prometheus: over HTTP while it runs, or as a file for node_exporter's textfile collector.

Only these two outputs need prometheus-client. Names and labels follow the worker's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.job.run_state import BUCKETS_S, RunState

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

log = logging.getLogger("spark_sink")

COUNTERS = {
    "commits": "Commits of this run.",
    "rows": "Rows that this run has committed, without rejects.",
    "failures": "Failed attempts of this run; each was repeated, or has ended it.",
    "rejects": "Values that did not parse and went to the table of rejects, in this run.",
}
PER_PARTITION = {
    "position": ("offsets", "Next offset to read, as the table has it."),
    "end": ("end", "High watermark of the topic, when the job looked last."),
    "lag": ("lag", "Offsets left to read; markers, aborted records and those of open transactions count."),
    "open_transaction_records": ("blocked", "Offsets held back by an open transaction; part of the lag."),
    "lag_seconds": ("lag_s", "Age of the oldest record missing in the table; read twice a minute."),
}
MOMENTS = {
    "started_timestamp_seconds": ("started_at", "Time of this run's start, in seconds since 1970."),
    "last_commit_timestamp_seconds": ("committed_at", "Time of this run's last commit, in seconds since 1970."),
    "finished_timestamp_seconds": ("finished_at", "Time of this run's end without an error, in seconds since 1970."),
}


class RunCollector:
    """Prometheus collector that reads the state of a run at each scrape."""

    def __init__(self, run: RunState, sink: str, topic: str) -> None:
        self._run, self._where = run, [sink, topic]

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families.

        Labels: sink (the job's name), topic, and partition for metrics of one partition.
        """
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        found, labels = self._run.snapshot(), ["sink", "topic"]
        for name, about in COUNTERS.items():
            counter = CounterMetricFamily(f"ratchet_sink_{name}", about, labels=labels)
            counter.add_metric(self._where, found[name])
            yield counter
        commits = HistogramMetricFamily(
            "ratchet_sink_commit_seconds", "From reading a commit's records to the store's answer.", labels=labels
        )
        commits.add_metric(self._where, _cumulated(found["in_buckets"]), found["commit_s"])
        yield commits
        generation = GaugeMetricFamily("ratchet_sink_generation", "Take-overs by jobs of the name.", labels=labels)
        generation.add_metric(self._where, found["generation"])
        yield generation
        stalled = GaugeMetricFamily(
            "ratchet_sink_stalled_seconds",
            "Seconds since the last commit, or since a record to commit appeared if that is later; 0: none waits.",
            labels=labels,
        )
        stalled.add_metric(self._where, self._run.stalled_s())
        yield stalled
        cause = self._run.standstill()
        standstill = GaugeMetricFamily(
            "ratchet_sink_stalled",
            "1 while nothing is committed although records wait, with the cause.",
            labels=[*labels, "cause"],
        )
        standstill.add_metric([*self._where, cause], float(bool(cause)))
        yield standstill
        undeclared = GaugeMetricFamily(
            "ratchet_sink_undeclared_fields",
            "Fields of the first values of this run that the columns do not name, so that they are not kept.",
            labels=labels,
        )
        undeclared.add_metric(self._where, len(found["undeclared"]))
        yield undeclared
        for name, (figure, about) in PER_PARTITION.items():
            gauge = GaugeMetricFamily(f"ratchet_sink_{name}", about, labels=[*labels, "partition"])
            for partition, value in found[figure].items():
                gauge.add_metric([*self._where, str(partition)], value)
            yield gauge
        for name, (figure, about) in MOMENTS.items():
            if found[figure] is not None:
                moment = GaugeMetricFamily(f"ratchet_sink_{name}", about, labels=labels)
                moment.add_metric(self._where, found[figure])
                yield moment


@contextmanager
def served(run: RunState, sink: str, topic: str, host: str, port: int | None) -> Iterator[None]:
    """Serve the run's metrics at http://host:port/metrics until the block ends.

    `port` 0 stands for any free port. With `port` None, nothing is served.

    Raises:
        OptionRefused: the address cannot be bound, or prometheus-client is missing.
    """
    if port is None:
        yield
        return
    registry = _registry(run, sink, topic)
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise OptionRefused(
            f"metrics cannot be served on {host} port {port}: {error.strerror or error}. Choose another host or "
            "port, or port 0 for a free one"
        ) from None
    log.info("metrics at http://%s:%d/metrics", host, server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_file(run: RunState, sink: str, topic: str, path: str) -> None:
    """Write the run's metrics into a file, by replacing the whole file at once.

    A collector thus never reads a partial file.

    Raises:
        OptionRefused: the file cannot be written, or prometheus-client is missing.
    """
    registry = _registry(run, sink, topic)
    from prometheus_client import write_to_textfile

    try:
        write_to_textfile(path, registry)
    except OSError as error:
        raise OptionRefused(
            f"metrics cannot be written to {path}: {error.strerror or error}. Choose another file"
        ) from None


def _registry(run: RunState, sink: str, topic: str) -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:  # no dependency of a Spark cluster
        raise OptionRefused("metrics need prometheus-client in the driver: pip install prometheus-client") from None
    registry = CollectorRegistry()
    collector: Any = RunCollector(run, sink, topic)
    registry.register(collector)
    return registry


def _cumulated(in_buckets: list[int]) -> list[tuple[str, float]]:
    """Return each upper bound of the histogram as text, with the number of commits within the bound."""
    total, buckets = 0, []
    for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], in_buckets, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
