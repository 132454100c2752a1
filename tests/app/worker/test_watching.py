"""Metrics and probes of a real worker; alerts and dashboard name no others."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from kafka_ratchet.app.compare.watch import Gauges
from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.producers import ProducerCollector
from kafka_ratchet.spark_sink.job.metrics import RunCollector
from kafka_ratchet.spark_sink.job.run_state import RunState
from tests.app.worker.test_worker import publish, site
from tests.app.worker_process import ROOT, WorkerProcess

NAME = re.compile(r"\b(?:ratchet|process)_\w+")
OF_PROCESSES = {"ratchet_process_replaced", "ratchet_process_up"}
"""Metrics of a worker with several processes; tests/deploy/test_alerts_fire.py has one such."""
SUFFIX = re.compile(r"_(?:bucket|count|sum|total)$")


def named(text: str) -> set[str]:
    """Metrics that expressions name."""
    expressions = re.findall(r'^ *(?:expr:|"expr":) (.*)$', text, re.MULTILINE)
    return {SUFFIX.sub("", name) for each in expressions for name in NAME.findall(each)}


def exported(text: str) -> set[str]:
    return {SUFFIX.sub("", name) for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}


def read(port: int, path: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": "worker-0.ratchet.svc:9102"})
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        text: str = response.read().decode()
        return text


def nothing_waits(text: str) -> bool:
    """Return True if both lags of all four partitions are 0."""
    return len(re.findall(r"^ratchet_lag_(?:records|seconds){.*} 0\.0$", text, re.MULTILINE)) == 8


def of_producers() -> set[str]:
    return {family.name for family in ProducerCollector().collect()}


def of_comparisons() -> set[str]:
    return {family.name for family in Gauges("kafka:a", "kafka:b", 60).registry.collect()}


def of_sinks() -> set[str]:
    run = RunState()
    run.note_end(1, {})
    return {family.name for family in RunCollector(run, "results", "events").collect()}


def test_a_worker_exports_what_alerts_and_dashboard_name(broker: str, tmp_path: Path) -> None:
    port = free_port()
    place = site(tmp_path, broker, f"session_timeout_ms = 6000\nweb = {{status_port = {port}}}\n")
    worker = WorkerProcess(place)
    worker.start()
    try:
        worker.wait_for(lambda: "worker runs" in worker.text(), "the worker's start")
        publish(broker, f"{place.app}.in", [("till-1", number) for number in (1, 2, 2, 3)])
        worker.wait_for(lambda: place.position(f"{place.app}.in") >= 4, "the commit")
        assert read(port, "/healthz") == "alive\n"
        worker.wait_for(lambda: "ratchet_ready 1.0" in read(port, "/metrics"), "readiness")
        assert read(port, "/readyz") == "ready\n"
        worker.wait_for(lambda: nothing_waits(read(port, "/metrics")), "the last fetch of each partition")
        text = read(port, "/metrics")
    finally:
        worker.end()
    lines = text.splitlines()
    assert sum(line.startswith("ratchet_store_bytes{") for line in lines) == 4
    assert 'ratchet_restore_seconds_count{stream="events"} 4.0' in lines
    (committed,) = (line for line in lines if re.match(r"ratchet_transactions_total{.*committed", line))
    assert float(committed.split()[-1]) >= 1
    wanted = named((ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8"))
    assert {"ratchet_partition_halted", "ratchet_commit_seconds"} <= wanted
    shown = named((ROOT / "deploy/grafana/ratchet.json").read_text("utf-8"))
    assert {"ratchet_records", "ratchet_store_bytes"} <= shown
    assert {"ratchet_open_transaction_records", "ratchet_partition_stalled"} <= shown
    wanted |= shown
    assert not wanted - exported(text) - of_sinks() - of_producers() - of_comparisons() - OF_PROCESSES
