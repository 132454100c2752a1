"""For how long a run has had something to commit and committed nothing."""

from __future__ import annotations

import pytest

from kafka_ratchet.spark_sink.errors import KafkaUnavailable
from kafka_ratchet.spark_sink.job.plan import OffsetRange
from kafka_ratchet.spark_sink.job.run_state import Commit, RunState


def test_a_run_stalls_from_when_there_is_something_to_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    run = RunState()
    run.looked(OffsetRange("t", {0: 0}, {0: 5}), {0: 5})
    now[0] += 50
    assert run.stalled_s() == 0
    run.looked(OffsetRange("t", {0: 0}, {0: 9}), {0: 5})
    now[0] += 50
    run.looked(OffsetRange("t", {0: 0}, {0: 12}), {0: 5})  # it looks again, and commits nothing
    assert run.stalled_s() == 50
    run.committed(Commit(1, 4, {0: 5}, {0: 9}, 1.0))
    now[0] += 7
    assert run.stalled_s() == 7  # there is more
    run.committed(Commit(2, 3, {0: 9}, {0: 12}, 1.0))
    assert run.stalled_s() == 0
    run.failed(KafkaUnavailable("nobody answers"))
    now[0] += 3
    assert (run.stalled_s(), run.failures) == (3, 1)
