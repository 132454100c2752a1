"""Faust assigns without the topics that Kafka does not list; a group that stayed so would stand still for good."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from faults.environment import Environment
from faults.kafka import Kafka
from kafka_ratchet.app.local.child_process import ChildProcess


def test_partitions_that_were_given_to_nobody_are_given_out_again(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment(
        Kafka(broker), tmp_path / "environment", workers=1, seed=3, app=f"forgetful-{uuid.uuid4().hex[:8]}"
    )
    try:
        worker = environment.workers[0]
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
        monkeypatch.setenv("RATCHET_BOOTSTRAP", broker)
        arguments = ["worker", "-c", str(environment.folder / "ratchet.toml"), "--state-folder", str(worker.state)]
        worker.started = ChildProcess(environment.folder, worker.name, *arguments, module="forgetful_worker")
        environment.wait_for_progress(environment.positions(), "the first commits")
        assert "partitions have no owner" in worker.output()
        assert "lanes=[]" in worker.output()
    finally:
        environment.close()
