"""Set of the replayed dead letters of a stream, stored in a compacted topic as bitmaps of offsets.

Each entry of the topic covers WINDOW offsets of one partition. The transaction that sends letters to the input also
writes their entries, so a letter is in the set if and only if its record was sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

WINDOW: Final = 8192
"""Number of offsets that one entry covers, with one bit for each."""
BYTES: Final = WINDOW // 8

_KEY: Final = re.compile(r"(?P<topic>[\w+-]{1,64}={0,2})/(?P<partition>[0-9]{1,10})/(?P<window>[0-9]{1,16})", re.ASCII)

Place = tuple[int, int]
"""Partition and offset of a dead letter."""


class ReplayedLetters:
    """Set of the replayed letters of a dead-letter topic."""

    def __init__(self, topic_id: str) -> None:
        """Start with an empty set.

        topic_id: id of the dead-letter topic as text; letters of an earlier topic do not count.
        """
        self._topic = topic_id
        self._windows: dict[tuple[int, int], bytes] = {}

    def take(self, key: bytes | None, value: bytes | None) -> bool:
        """Apply an entry of the topic of replays to the set. Return False for an entry in an unknown format."""
        found = _KEY.fullmatch((key or b"").decode("ascii", "replace"))
        if found is None or (value is not None and len(value) != BYTES):
            return False
        if found["topic"] != self._topic:
            return True
        window = int(found["partition"]), int(found["window"])
        if value is None:
            self._windows.pop(window, None)
        else:
            self._windows[window] = value
        return True

    def add_all(self, other: ReplayedLetters) -> None:
        """Add the letters of another set of the same dead-letter topic."""
        for window, bits in other._windows.items():
            own = self._windows.get(window, bytes(BYTES))
            self._windows[window] = bytes(one | two for one, two in zip(own, bits, strict=True))

    def __contains__(self, place: Place) -> bool:
        """Return True if the letter at this partition and offset was replayed."""
        partition, offset = place
        bits = self._windows.get((partition, offset // WINDOW))
        return bits is not None and bool(bits[offset % WINDOW // 8] >> offset % 8 & 1)

    def __len__(self) -> int:
        return sum(int.from_bytes(bits).bit_count() for bits in self._windows.values())

    def with_(self, places: Iterable[Place]) -> dict[tuple[int, int], bytes]:
        """Return the changed bitmaps after adding the letters at `places`.

        The keys of the result are (partition, number of the entry).

        The set itself does not change. `entries` and `accept` take the result.
        """
        changed: dict[tuple[int, int], bytearray] = {}
        for partition, offset in places:
            window = partition, offset // WINDOW
            if window not in changed:
                changed[window] = bytearray(self._windows.get(window, bytes(BYTES)))
            changed[window][offset % WINDOW // 8] |= 1 << offset % 8
        return {window: bytes(bits) for window, bits in changed.items()}

    def entries(self, changed: dict[tuple[int, int], bytes]) -> list[tuple[bytes, bytes | None]]:
        """Return key and value of each entry to write to the topic of replays, for changed bitmaps."""
        return [(f"{self._topic}/{number}/{window}".encode(), bits) for (number, window), bits in changed.items()]

    def accept(self, changed: dict[tuple[int, int], bytes]) -> None:
        """Add changed bitmaps to the set. Call it after Kafka has committed their entries."""
        self._windows |= changed
