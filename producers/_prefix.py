"""How far everything is acknowledged: the highest sequence with no hole below it."""

from __future__ import annotations

from collections import deque

from producers._headers import NOTHING_YET


class AcknowledgedPrefix:
    """Sequences in the order they were sent, and which of them Kafka has.

    Kafka acknowledges each partition in order, but one partition may lag behind another. `sequence` only moves over
    records of which all earlier ones are acknowledged as well. Not thread-safe; memory is bounded by the records in
    flight.
    """

    def __init__(self, sequence: int = NOTHING_YET) -> None:
        self.sequence = sequence
        """Everything up to and including this one is acknowledged; -1 when nothing is."""
        self.records = 0
        """Records that have raised `sequence` since this was made."""
        self._waiting: deque[int] = deque()
        self._early: set[int] = set()

    def sent(self, sequence: int) -> None:
        """This sequence, higher than all before, is on its way."""
        self._waiting.append(sequence)

    def withdraw(self) -> None:
        """The last one was not sent after all."""
        self._waiting.pop()

    def acknowledge(self, sequence: int) -> None:
        """Kafka has this one."""
        if self._waiting[0] != sequence:
            self._early.add(sequence)
            return
        self._advance()
        while self._waiting and self._waiting[0] in self._early:
            self._early.discard(self._waiting[0])
            self._advance()

    def __len__(self) -> int:
        """Records that the prefix waits for, or that wait for it."""
        return len(self._waiting)

    def _advance(self) -> None:
        sequence = self._waiting.popleft()
        # A source that is published a second time begins below what its name had reached: that still stands.
        if sequence > self.sequence:
            self.sequence = sequence
            self.records += 1
