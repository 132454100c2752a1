"""Faust assigns without the topics that Kafka does not list; a group that stayed so would stand still for good."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from faults.environment import Site
from faults.kafka import Kafka
from kafka_ratchet.app.local.child_process import Part


def test_partitions_that_were_given_to_nobody_are_given_out_again(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(Kafka(broker), tmp_path / "site", workers=1, seed=3, app=f"forgetful-{uuid.uuid4().hex[:8]}")
    try:
        worker = site.workers[0]
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
        monkeypatch.setenv("RATCHET_BOOTSTRAP", broker)
        arguments = ["worker", "-c", str(site.folder / "ratchet.toml"), "--state-folder", str(worker.state)]
        worker.part = Part(site.folder, worker.name, *arguments, module="forgetful_worker")
        site.wait_for_progress(site.positions(), "the first commits")
        assert "partitions were given to nobody" in worker.output()
        assert "lanes=[]" in worker.output()
    finally:
        site.close()
