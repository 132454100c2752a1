"""Program that verifies a stream once, and prints one line of JSON.

Its arguments are the settings file, and `columns` or `independent`."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from kafka_ratchet.app.settings import load
from kafka_ratchet.app.verify import verify


def main() -> None:
    config, kind = sys.argv[1:]
    settings = load(Path(config))
    began, cpu = time.monotonic(), time.process_time()
    report = verify(settings, independent=kind == "independent")
    print(
        json.dumps(
            {
                "seconds": time.monotonic() - began,
                "cpu_s": time.process_time() - cpu,
                "proven": report.is_proven,
                "delivered": report.delivered,
                "as_columns": len(report.columns),
                "singly": report.singly,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            }
        )
    )


if __name__ == "__main__":
    main()
