"""Until when all that was written to an input is judged, by the brokers' clock alone.

No clock of this process can say it: the process may be stopped, or its whole machine, between a look at the input's end
and the commit that goes by it, and records come meanwhile. What a broker has appended before a question was sent
cannot be younger than the answer (docs/decisions/0069-judged-until.md).
"""

from __future__ import annotations


class InputEnd:
    """Where an input ended when it was last asked."""

    def __init__(self) -> None:
        self.known_ms = 0
        """The newest time that a broker has told: take it before a question, and give it to `told` with the answer."""
        self._end: int | None = None
        self._asked_ms = 0

    def appended(self, at_ms: int) -> None:
        """A broker has appended something at that time, in milliseconds since the epoch."""
        self.known_ms = max(self.known_ms, at_ms)

    def told(self, end: int, asked_ms: int) -> None:
        """An answer. end: the last stable offset; asked_ms: `known_ms`, as it was before the question was sent."""
        self._end, self._asked_ms = end, asked_ms

    def judged_until_ms(self, position: int) -> int | None:
        """The time until which all that was written is below position; 0: nobody knows. None: there is more to read."""
        return self._asked_ms if self._end is not None and position >= self._end else None
