"""A worker that joins its group only when somebody has made a file called `go` in its folder."""

import time
from pathlib import Path
from typing import Any

from kafka_ratchet.app.cli import main
from kafka_ratchet.app.worker import process

prepared = process.prepare


def waits(*arguments: Any) -> Any:
    topics = prepared(*arguments)
    print("claims are read", flush=True)
    while not Path("go").exists():
        time.sleep(0.02)
    return topics


if __name__ == "__main__":
    process.prepare = waits  # type: ignore[assignment] # it passes on what it is given
    main()
