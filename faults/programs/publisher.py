"""Program for fault runs to kill: sends the lines of a file under a producer name.

    python -m faults.programs.publisher FILE TOPIC NAME BOOTSTRAP UNTIL RATE

It sends the lines that begin before byte UNTIL, RATE records a second, and then waits to be killed. With UNTIL "end" it
sends the rest at full speed and ends. After a kill it learns its position from Kafka and the file alone.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from kafka_ratchet.producers import FileSource, Producer, Record, publish

SENDING = "sending"
"""Text that the program prints once, at its first record."""
KEYS = 200


class KeyedLines:
    """Lines of a file, each with a key derived from its text.

    Any file therefore has keys on all partitions.
    """

    def __init__(self, path: Path, until: float = float("inf")) -> None:
        self._file, self._until = FileSource(path, format="lines"), until

    def read(self, from_sequence: int) -> Iterator[Record]:
        for sequence, _, value in self._file.read(from_sequence):
            if sequence >= self._until:
                return
            yield Record(sequence, b"key-%d" % (zlib.crc32(value or b"") % KEYS), value)

    def mark(self, sequence: int) -> str:
        return self._file.mark(sequence)

    def check(self, sequence: int, mark: str) -> str | None:
        return self._file.check(sequence, mark)


def main(path: Path, topic: str, name: str, bootstrap: str, until: str, rate: str) -> None:
    """Publish the file up to a byte and wait to be killed, or publish all of it and end."""
    has_printed = False

    def sent(sequence: int) -> None:
        nonlocal has_printed
        if not has_printed:
            has_printed = True
            print(SENDING, file=sys.stderr, flush=True)

    goes_on = until != "end"
    source = KeyedLines(path, int(until)) if goes_on else KeyedLines(path)
    with Producer(topic, name, options={"bootstrap.servers": bootstrap}, source=source) as producer:
        publish(source, producer, records_per_s=float(rate) if goes_on else None, on_record=sent)
        while goes_on:
            time.sleep(3600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
