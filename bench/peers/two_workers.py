"""Subject of two Ratchet workers of one application, each with its own state folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from bench.subjects import Task, worker_settings

LOOK_EVERY_S = 0.05


def main(task: Task) -> None:
    """Run both workers until SIGTERM, and print their messages."""
    workers = [_started(task, number) for number in (1, 2)]

    def stop(*_: object) -> None:
        for worker in workers:
            worker.terminate()

    signal.signal(signal.SIGTERM, stop)
    while all(worker.poll() is None for worker in workers):
        time.sleep(LOOK_EVERY_S)
    stop()  # measured is the two of them: neither goes on alone
    sys.exit(max(worker.wait() for worker in workers))


def _started(task: Task, number: int) -> subprocess.Popen[bytes]:
    folder = Path(task.folder) / str(number)
    folder.mkdir()
    config = worker_settings(Task(**{**asdict(task), "folder": str(folder)}))
    return subprocess.Popen([sys.executable, "-m", "kafka_ratchet", "worker", "--config", str(config)])


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
