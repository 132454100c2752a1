"""A real Prometheus with the alerts of deploy/, made quick: only durations are changed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafka_ratchet.app.local.ports import free_port

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/ratchet.json"
STALLED = "(ratchet_sink_stalled_seconds) > "
"""The one alert of the test whose expression has a duration to wait for."""
ELSEWHERE = re.compile("ratchet[_-]verify|ratchet_sink_finished")
"""Metrics of a comparison and of a batch run: neither is among the targets."""

needed = pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus has the server")


def quicker(alerts: str) -> str:
    """The alerts with two seconds in the place of each `for`, and ten where a sink is stuck for five minutes."""
    alerts, count = re.subn(r"^( +for: )\d+[smh]$", r"\g<1>2s", alerts, flags=re.MULTILINE)
    assert count == alerts.count("for: ")
    assert alerts.count(f"{STALLED}300") == 1
    return alerts.replace(f"{STALLED}300", f"{STALLED}10")


def asked() -> dict[str, str]:
    """Return the expressions of alerts and dashboard by place, without the side they are compared with.

    A series with a cause exists during a standstill only, so the cause is left out too.
    """
    found = {}
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            found[rule["alert"]] = rule["expr"]
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "15s").replace("$stream", ".*")
            found[f"{panel['title']}: {target['legendFormat']}"] = expression
    sides = {where: _left_of_comparison(expression) for where, expression in found.items()}
    return {where: side for where, side in sides.items() if ELSEWHERE.search(side) is None}


def _left_of_comparison(expression: str) -> str:
    inner = re.fullmatch(r"absent\((.*)\)", expression)
    left = re.split(r" (?:==|>) [\d.]+", inner[1] if inner else expression)[0]
    return re.sub(r'\{cause!?[=~]+"[^"]*"\}', "", left)


class Prometheus:
    """The server, asked over HTTP."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._address}/-/ready", timeout=10):  # noqa: S310
                return True
        except OSError:
            return False

    def ask(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self._address}{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:  # noqa: S310
            return json.load(answer)["data"]

    def vector(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("/api/v1/query", query=expression)["result"]
        return found

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """Labels of the alerts that fire, by name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in self.ask("/api/v1/alerts")["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found


@contextmanager
def run_prometheus(folder: Path, targets: Mapping[str, Sequence[str]]) -> Iterator[Prometheus]:
    """A server that asks these addresses each second. targets: by job."""
    folder.mkdir()
    (folder / "alerts.yml").write_text(quicker(ALERTS.read_text("utf-8")), "utf-8")
    jobs = [{"job_name": job, "static_configs": [{"targets": [*each]}]} for job, each in targets.items()]
    each_second = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    settings = {"global": each_second, "rule_files": ["alerts.yml"], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), "utf-8")
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found, deadline = Prometheus(port), time.monotonic() + 60
        while not found.answers():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
