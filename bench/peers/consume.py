"""Reads a topic to its end with a bare confluent-kafka client, and does nothing with the records.

Its arguments are the bootstrap servers and the topic. It prints the number of records, and the seconds from the first
request to the last record.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing

from bench.load import committed_records


def main() -> None:
    bootstrap, topic = sys.argv[1:]
    began = time.monotonic()
    with closing(committed_records(bootstrap, topic)) as records:
        count = sum(1 for _ in records)
    print(count, time.monotonic() - began)


if __name__ == "__main__":
    main()
