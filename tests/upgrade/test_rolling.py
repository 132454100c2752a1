"""A rolling restart: two workers of the previous version, one replaced after the other, and one put back."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.worker_process import ROOT, Site, WorkerProcess, read_all
from tests.upgrade.previous import extract

EVENTS = 3_000
TOML = '[streams.events]\ninput = "{0}"\noutput = "{1}"\ndead_letters = "{2}"\n'


class SiteOf(Site):
    """Its commands and workers are of one version."""

    root = ROOT

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PYTHONPATH": f"{self.root}:{self.folder}"}


@pytest.mark.long
def test_two_versions_in_one_group_count_each_event_once(
    tmp_path: Path, broker: str, new_topic: Callable[..., str]
) -> None:
    previous = extract(tmp_path / "previous")
    topics = [new_topic(4) for _ in range(3)]
    app = f"rolling-{uuid.uuid4().hex[:8]}"
    new, old = (SiteOf(tmp_path, broker, app, TOML.format(*topics)) for _ in range(2))
    old.root = previous
    first, second = WorkerProcess(old, "first"), WorkerProcess(old, "second")
    published = 0

    def load() -> None:
        """Events of a producer of its own, each twice, while whoever is there works."""
        nonlocal published
        published += 1
        file = tmp_path / f"events-{published}.ndjson"
        file.write_text("".join(json.dumps({"event": f"{published}/{n}"}) + "\n" for n in range(EVENTS)))
        for more in ((), ("--from-start",)):
            done = new.command("publish", str(file), "--producer", f"till-{published}", *more)
            assert done.returncode == 0, done.stderr

    def arrived() -> None:
        first.wait_for(lambda: new.position(topics[0]) >= 2 * EVENTS * published, "all that was published")

    def replace(worker: WorkerProcess, site: Site) -> None:
        ran = worker.text().count("worker runs")
        worker.stop()
        worker.site = site
        load()  # the other one has all partitions now
        worker.start()
        worker.wait_for(lambda: worker.text().count("worker runs") > ran, "its start")
        load()
        arrived()

    try:
        for worker in (first, second):
            worker.start()
        load()
        arrived()
        replace(first, new)
        replace(second, new)
        replace(first, old)  # rolled back
        verified = new.command("verify")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        for worker in (first, second):
            worker.stop()
            assert "failed between two" not in worker.text()
            assert "partition halted" not in worker.text()
            assert "takes this worker" not in worker.text()
    finally:
        first.end()
        second.end()
    values = [message.value() for part in read_all(broker, topics[1]).values() for message in part]
    assert len(values) == len(set(values)) == EVENTS * published
