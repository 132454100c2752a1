"""The alerts: Prometheus's own tool reads them, and each that matters most fires on what it is about."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy/prometheus"
ALERTS = [
    rule["alert"]
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is in Debian's package prometheus")


def run(*arguments: object) -> str:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_guide_explains_each_alert() -> None:
    told = re.findall(r"^\| `(Ratchet\w+)` \|", (ROOT / "docs/guide/watching.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(told) == sorted(ALERTS)


@promtool
def test_promtool_takes_rules_and_configuration(tmp_path: Path) -> None:
    run("check", "rules", FOLDER / "alerts.yml")
    # The dashboard's expressions as recording rules, with an interval in the place of Grafana's variable.
    dashboard = json.loads((ROOT / "deploy/grafana/ratchet.json").read_text("utf-8"))
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(shown)
    ]
    assert rules
    (tmp_path / "dashboard.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run("check", "rules", tmp_path / "dashboard.yml")
    run("check", "config", FOLDER / "prometheus.yml")


CASES = """
rule_files: [{rules}]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - {{series: 'up{{job="ratchet-worker",instance="a"}}', values: '1x6 0x60'}}
      - {{series: 'up{{job="ratchet-worker",instance="b"}}', values: '1x60'}}
      - {{series: 'ratchet_stream_partitions{{job="j",instance="b",stream="s"}}', values: '2x60'}}
      - {{series: 'ratchet_stream_partitions{{job="j",instance="b",stream="nowhere"}}', values: '3x60'}}
      - {{series: 'ratchet_keys{{job="j",instance="b",stream="s",partition="0"}}', values: '7x60'}}
      - {{series: 'ratchet_partition_halted{{job="j",instance="b",stream="s",partition="0",reason=""}}', values: '0x6 stale'}}
      - {{series: 'ratchet_partition_halted{{job="j",instance="b",stream="s",partition="0",reason="PositionLost"}}', values: '_x6 1x60'}}
      - {{series: 'ratchet_partition_stalled{{job="j",instance="b",stream="s",partition="0",cause="open-transaction"}}', values: '_x6 1x60'}}
      - {{series: 'ratchet_partition_stalled{{job="j",instance="b",stream="s",partition="0",cause=""}}', values: '0x6 stale'}}
      - {{series: 'ratchet_partition_stalled{{job="j",instance="b",stream="s",partition="1",cause="no-leader"}}', values: '_x6 1x60'}}
      - {{series: 'ratchet_process_replaced_total{{job="j",instance="b",process="1"}}', values: '0x6 1 2 3 4 4x50'}}
      - {{series: 'ratchet_producer_in_flight_records{{job="p",instance="d",producer="till",topic="t"}}', values: '5x60'}}
      - {{series: 'ratchet_producer_acknowledged_records_total{{job="p",instance="d",producer="till",topic="t"}}', values: '0+9x10 90x50'}}
      - {{series: 'ratchet_sink_stalled_seconds{{job="k",instance="c",sink="r",topic="t"}}', values: '0+30x60'}}
      - {{series: 'ratchet_verify_complete{{job="v",from="kafka:t",to="csv:f"}}', values: '1x6 0x60'}}
      - {{series: 'up{{job="ratchet-verify",instance="e"}}', values: '1x20 0x60'}}
      - {{series: 'ratchet_verify_interval_seconds{{job="v",from="kafka:t",to="csv:f"}}', values: '600x200'}}
      - {{series: 'ratchet_verify_last_run_timestamp_seconds{{job="v",from="kafka:t",to="csv:f"}}', values: '0x20 600x180'}}
      - {{series: 'ratchet_verify_started_timestamp_seconds{{job="v",from="kafka:t",to="csv:f"}}', values: '0x10 600x10 1200x10 1800x60'}}
      - {{series: 'ratchet_verify_started_timestamp_seconds{{job="v",from="kafka:d",to="csv:d"}}', values: '0x10 600x10 1200x80'}}
      - {{series: 'ratchet_verify_interval_seconds{{job="v",from="kafka:d",to="csv:d"}}', values: '86400x200'}}
      - {{series: 'ratchet_verify_last_run_timestamp_seconds{{job="v",from="kafka:d",to="csv:d"}}', values: '0x200'}}
    alert_rule_test:
      - {{alertname: RatchetVerifyDown, eval_time: 14m}}
      - eval_time: 20m
        alertname: RatchetVerifyDown
        exp_alerts:
          - exp_labels: {{severity: warning, job: ratchet-verify, instance: e}}
            exp_annotations:
              summary: "`ratchet verify --every` at e does not answer: its pipelines are not compared."
      - {{alertname: RatchetPipelineStale, eval_time: 69m}}
      - eval_time: 72m
        alertname: RatchetPipelineStale
        exp_alerts:
          - exp_labels: {{severity: warning, job: v, from: "kafka:t", to: "csv:f"}}
            exp_annotations: {{summary: "No comparison of kafka:t with csv:f has ended for 1h 2m 0s."}}
      - {{alertname: RatchetVerifyRestarts, eval_time: 15m}}
      - eval_time: 20m
        alertname: RatchetVerifyRestarts
        exp_alerts:
          - exp_labels: {{severity: warning, job: v, from: "kafka:t", to: "csv:f"}}
            exp_annotations: {{summary: "The comparison of kafka:t with csv:f ends and starts again and again."}}
      - {{alertname: RatchetWorkerDown, eval_time: 3m}}
      - {{alertname: RatchetPipelineUnproven, eval_time: 15m}}
      - {{alertname: RatchetPartitionHalted, eval_time: 3m}}
      - {{alertname: RatchetSinkStuck, eval_time: 3m}}
      - {{alertname: RatchetOpenTransaction, eval_time: 7m}}
      - {{alertname: RatchetPartitionStalled, eval_time: 4m}}
      - eval_time: 10m
        alertname: RatchetOpenTransaction
        exp_alerts:
          - exp_labels: {{severity: warning, job: j, instance: b, stream: s, partition: "0", cause: open-transaction}}
            exp_annotations:
              summary: "Partition 0 of stream s waits for an open transaction of another producer; `ratchet tables` names it."
      - eval_time: 10m
        alertname: RatchetPartitionStalled
        exp_alerts:
          - exp_labels: {{severity: critical, job: j, instance: b, stream: s, partition: "1", cause: no-leader}}
            exp_annotations: {{summary: "Partition 1 of stream s stands still: no-leader."}}
      - {{alertname: RatchetNoWorkers, eval_time: 25m}}
      - {{alertname: RatchetProcessReplaced, eval_time: 3m}}
      - {{alertname: RatchetProducerStuck, eval_time: 9m}}
      - eval_time: 6m
        alertname: RatchetProcessReplaced
        exp_alerts:
          - exp_labels: {{severity: warning, job: j, instance: b, process: "1"}}
            exp_annotations: {{summary: "Process 1 of worker b ends again and again."}}
      - eval_time: 20m
        alertname: RatchetProducerStuck
        exp_alerts:
          - exp_labels: {{severity: critical, job: p, instance: d, producer: till, topic: t}}
            exp_annotations: {{summary: "Producer till waits with 5 records, and Kafka acknowledges none."}}
      - eval_time: 15m
        alertname: RatchetWorkerDown
        exp_alerts:
          - exp_labels: {{severity: critical, job: ratchet-worker, instance: a}}
            exp_annotations: {{summary: "Worker a does not answer."}}
      - eval_time: 15m
        alertname: RatchetPartitionHalted
        exp_alerts:
          - exp_labels: {{severity: critical, job: j, instance: b, stream: s, partition: "0", reason: PositionLost}}
            exp_annotations:
              summary: "Partition 0 of stream s has halted: PositionLost. A person decides."
      - eval_time: 15m
        alertname: RatchetPartitionUnserved
        exp_alerts:
          - exp_labels: {{severity: critical, job: j, stream: s}}
            exp_annotations: {{summary: "1 partitions of stream s have no worker."}}
          - exp_labels: {{severity: critical, job: j, stream: nowhere}}
            exp_annotations: {{summary: "3 partitions of stream nowhere have no worker."}}
      - eval_time: 15m
        alertname: RatchetSinkStuck
        exp_alerts:
          - exp_labels: {{severity: critical, job: k, sink: r, topic: t}}
            exp_annotations:
              summary: "Sink r has records to commit and has committed nothing for 15m 0s."
      - eval_time: 20m
        alertname: RatchetPipelineUnproven
        exp_alerts:
          - exp_labels: {{severity: warning, job: v, from: "kafka:t", to: "csv:f"}}
            exp_annotations:
              summary: "kafka:t and csv:f are not compared whole: a run failed, was cut short, or met rows without an identity."
  - interval: 30s
    input_series:
      - {{series: 'up{{job="ratchet-worker",instance="a"}}', values: '1x6 0x6 stale'}}
    alert_rule_test:
      - {{alertname: RatchetNoWorkers, eval_time: 3m}}
      - &nobody
        eval_time: 6m
        alertname: RatchetNoWorkers
        exp_alerts:
          - exp_labels: {{severity: critical}}
            exp_annotations: {{summary: "No worker answers, or Prometheus knows of none."}}
      - {{<<: *nobody, eval_time: 20m}}
"""  # noqa: E501


@promtool
def test_a_dead_worker_a_halted_partition_and_a_stuck_sink_fire(tmp_path: Path) -> None:
    cases = tmp_path / "cases.yml"
    cases.write_text(CASES.format(rules=FOLDER / "alerts.yml"), "utf-8")
    run("test", "rules", cases)


def check(
    folder: Path,
    alert: str,
    series: Mapping[str, str],
    at: Mapping[str, str | None],
    interval: str = "30s",
    **labels: str,
) -> None:
    """Check an alert at some times.

    Args:
        folder: an empty folder.
        alert: the alert's name.
        series: samples of each series.
        at: summary of the alert by time; None: it does not fire.
        interval: time between two samples.
        labels: labels of the alert that fires.
    """
    fires = [{"exp_labels": labels, "exp_annotations": {"summary": summary}} for summary in at.values()]
    cases = [
        {"alertname": alert, "eval_time": time, "exp_alerts": [] if summary is None else [firing]}
        for (time, summary), firing in zip(at.items(), fires, strict=True)
    ]
    samples = [{"series": name, "values": values} for name, values in series.items()]
    tests = [{"interval": interval, "input_series": samples, "alert_rule_test": cases}]
    given = {"rule_files": [str(FOLDER / "alerts.yml")], "evaluation_interval": interval, "tests": tests}
    (folder / "cases.yml").write_text(yaml.safe_dump(given), "utf-8")
    run("test", "rules", folder / "cases.yml")


@promtool
def test_a_process_that_hangs_under_a_parent_that_answers_fires(tmp_path: Path) -> None:
    series = {
        'up{job="ratchet-worker",instance="a"}': "1x40",
        'ratchet_process_up{job="ratchet-worker",instance="a",process="0"}': "1x6 0x34",
        'ratchet_process_up{job="ratchet-worker",instance="a",process="1"}': "1x40",
    }
    summary = "Process 0 of worker a does not answer; its partitions stand still."
    at = {"3m": None, "10m": summary}
    labels = {"job": "ratchet-worker", "instance": "a", "process": "0"}
    check(tmp_path, "RatchetProcessDown", series, at, severity="critical", **labels)


@promtool
def test_a_sink_that_dies_again_and_again_fires(tmp_path: Path) -> None:
    starts = "0x10 _x3 600x10 _x3 1200x10 _x3 1800x10 _x3 2400x10"
    finished = starts.replace("0x", "9x")
    at_port, in_file = (f'job="{job}",instance="{job}:1",sink="r",topic="t"' for job in ("ratchet-sink", "node"))
    series = {
        f"ratchet_sink_started_timestamp_seconds{{{at_port}}}": starts,
        # A batch run of every ten minutes, by its metrics_file: it has ended, and not died.
        f"ratchet_sink_started_timestamp_seconds{{{in_file}}}": starts,
        f"ratchet_sink_finished_timestamp_seconds{{{in_file}}}": finished,
    }
    at = {"20m": None, "31m": "Sink r ends and starts again and again."}
    labels = {"job": "ratchet-sink", "instance": "ratchet-sink:1", "sink": "r", "topic": "t"}
    check(tmp_path, "RatchetSinkRestarts", series, at, severity="critical", **labels)


@promtool
def test_a_worker_that_dies_again_and_again_fires(tmp_path: Path) -> None:
    series = {
        'process_start_time_seconds{job="ratchet-worker",instance="a"}': "0x10 _x3 600x10 _x3 1200x10 1800x10 2400x10",
        'process_start_time_seconds{job="ratchet-worker",instance="b"}': "0x10 _x3 600x50",
        'process_start_time_seconds{job="other",instance="c"}': "0+60x60",
    }
    at = {"20m": None, "30m": "Worker a ends and starts again and again."}
    check(tmp_path, "RatchetWorkerRestarts", series, at, severity="critical", job="ratchet-worker", instance="a")


@promtool
def test_a_batch_run_that_no_longer_succeeds_fires(tmp_path: Path) -> None:
    """Its file is that of the last success, for ever."""
    where = 'job="node",instance="n",sink="r",topic="t"'
    series = {f"ratchet_sink_finished_timestamp_seconds{{{where}}}": "3600x287 90000x600"}
    at = {"48h": None, "72h": None, "74h": "No run of sink r has ended well for 2d 1h 0m 0s."}
    labels = {"job": "node", "instance": "n", "sink": "r", "topic": "t"}
    check(tmp_path, "RatchetSinkBatchStale", series, at, "5m", severity="warning", **labels)


@promtool
def test_rejects_of_a_stream_and_of_a_batch_run_fire(tmp_path: Path) -> None:
    finished, running = (f'job="{job}",instance="n",sink="r",topic="t"' for job in ("node", "ratchet-sink"))
    summary = "Sink r rejects values that do not parse."
    for where, more, at in (
        (
            finished,
            {f"ratchet_sink_finished_timestamp_seconds{{{finished}}}": "9x200"},
            {"5m": summary, "90m": summary},
        ),
        (running, {}, {"5m": None, "90m": None}),
    ):
        labels = dict(re.findall(r'(\w+)="(.*?)"', where))
        series = {f"ratchet_sink_rejects_total{{{where}}}": "3x200", **more}
        check(tmp_path, "RatchetSinkRejects", series, at, severity="warning", **labels)
    rising = {f"ratchet_sink_rejects_total{{{running}}}": "3x20 5x200"}
    around = {"9m": None, "15m": summary, "60m": None}
    check(tmp_path, "RatchetSinkRejects", rising, around, severity="warning", **labels)


@promtool
def test_the_file_of_a_sink_that_is_a_stream_now_fires_nothing(tmp_path: Path) -> None:
    """Nothing rewrites the file of the batch runs before it. The stream starts after 30 minutes."""
    where = 'job="node",instance="n",sink="{}",topic="t"'
    streaming = 'job="ratchet-sink",instance="c",sink="r",topic="t"'
    series = {f"ratchet_sink_started_timestamp_seconds{{{streaming}}}": "_x6 1800x900"}
    for sink in ("r", "batch"):
        in_file = where.format(sink)
        series |= {
            f"ratchet_sink_started_timestamp_seconds{{{in_file}}}": "0x900",
            f"ratchet_sink_finished_timestamp_seconds{{{in_file}}}": "60x900",
            f"ratchet_sink_rejects_total{{{in_file}}}": "3x900",
        }
    labels = {"job": "node", "instance": "n", "sink": "batch", "topic": "t", "severity": "warning"}
    stale = "No run of sink batch has ended well for 2d 1h 59m 0s."
    check(tmp_path, "RatchetSinkBatchStale", series, {"48h": None, "50h": stale}, "5m", **labels)
    rejects = "Sink batch rejects values that do not parse."
    check(tmp_path, "RatchetSinkRejects", series, {"1h": rejects, "50h": rejects}, "5m", **labels)


@promtool
def test_a_jump_fires_until_the_partition_begins_anew(tmp_path: Path) -> None:
    where = 'job="j",instance="b",stream="s",partition="0"'
    # After a move, the series begins with the jump; a restart of the worker begins at 0.
    series = {f"ratchet_sequence_jumps_total{{{where}}}": "_x4 1x200 0x20"}
    summary = (
        "Stream s, partition 0: 1 sequences lay far above their identity's last; what follows may be dropped. "
        "The alert stays until the worker starts again."
    )
    at = {"1m": None, "5m": summary, "90m": summary, "110m": None}
    labels = {"job": "j", "instance": "b", "stream": "s", "partition": "0"}
    check(tmp_path, "RatchetSequenceJumped", series, at, severity="warning", **labels)
