"""Memory of an identity in addition to its last sequence, with sets: for the commit path's model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

SOME_JUDGING: st.SearchStrategy[dict[str, str]] = st.fixed_dictionaries(
    {"reorder_window": st.sampled_from(["1", "3", "64"])},
    optional={
        "late": st.just("dead-letter"),
        "conflicts": st.sampled_from(["count", "dead-letter"]),
        "dense": st.just("True"),
    },
)
"""Settings in the form of `StreamSettings.judging`."""
ANY_JUDGING: st.SearchStrategy[dict[str, str]] = st.one_of(st.just({}), SOME_JUDGING)


@dataclass
class Seen:
    """known_from: what is below it counts as seen; value: of the last sequence, None where it is not known.

    counted: sequences that count where none should be missing, all above counted_from but for that itself; None where
    nobody counts
    """

    last: int
    known_from: int
    sequences: set[int]
    value: tuple[bytes | None] | None
    counted: set[int] | None
    counted_from: int = -1

    def is_seen(self, sequence: int) -> bool:
        return sequence < self.known_from or sequence in self.sequences

    @property
    def missing(self) -> int:
        return self.last - min(self.counted) + 1 - len(self.counted) if self.counted else 0


class Remembered:
    """The identities of a partition."""

    def __init__(self) -> None:
        self.of: dict[bytes, Seen] = {}
        self.under({})

    def under(self, settings: Mapping[str, str]) -> None:
        """Judge by these settings from here on."""
        self.window = int(settings.get("reorder_window", "0"))
        self.size = -(-self.window // 64) * 64
        self.compares, self.dense = "conflicts" in settings, "dense" in settings
        self.lettered = {"late"} if settings.get("late") == "dead-letter" else set()
        self.lettered |= {"conflict"} if settings.get("conflicts") == "dead-letter" else set()

    def judge(self, name: bytes, sequence: int, value: bytes | None) -> str:
        seen = self.of.get(name)
        if seen is None:
            seen = self.of[name] = Seen(sequence, sequence - self.size, {sequence}, (value,), {sequence})
            self._write(seen)
            return "fresh"
        if sequence == seen.last:
            return "conflict" if self.compares and seen.value not in (None, (value,)) else "duplicate"
        if sequence < seen.last:
            if not self.window:
                return "duplicate"
            if sequence < seen.last - self.window:
                return "late"
            if seen.is_seen(sequence):
                return "duplicate"
        else:
            seen.value = (value,)
        if seen.counted is None:
            seen.counted, seen.counted_from = {seen.last}, seen.last
        if sequence > seen.counted_from:
            seen.counted.add(sequence)
        seen.last = max(seen.last, sequence)
        seen.sequences.add(sequence)
        self._write(seen)
        return "fresh"

    def lower(self, name: bytes, to: int) -> None:
        """Forget the sequences above `to`, which come again."""
        seen = self.of[name]
        seen.known_from = min(to, max(seen.known_from, seen.last - self.size))
        seen.last, seen.value = to, None
        seen.sequences = {each for each in seen.sequences if each < to} | {to}
        seen.counted, seen.counted_from = {to}, to
        self._write(seen)

    def _write(self, seen: Seen) -> None:
        """Write the entry of an identity; memory outside the entry is forgotten with it."""
        seen.known_from = max(seen.known_from, seen.last - self.size)
        if not self.compares:
            seen.value = None
        if not self.dense:
            seen.counted = None


def check_entry(entry: bytes, seen: Seen) -> None:
    """Assert that an identity's changelog entry has its memory, in the bytes of docs/decisions/0039."""
    assert int.from_bytes(entry[:8], "big") == seen.last
    flags, words, rest = (entry[8], entry[9], entry[10:]) if len(entry) > 8 else (0, 0, b"")
    numbers = [int.from_bytes(rest[at : at + 8], "big") for at in range(0, len(rest), 8)]
    assert (flags & 1 != 0) == (seen.value is not None)
    if flags & 1:
        numbers.pop(0)
    # Nothing counted is as good as counting from the last sequence on, which is what a worker makes of it.
    counted = (numbers.pop(0), numbers.pop(0)) if flags & 2 else (seen.last, 1)
    assert counted == ((min(seen.counted), len(seen.counted)) if seen.counted else (seen.last, 1))
    assert len(numbers) == words
    for sequence in range(max(0, seen.last - 64), seen.last):
        bit = sequence % (64 * words) if words else 0
        is_seen = numbers[bit // 64] >> (bit % 64) & 1 == 1 if words else True
        assert is_seen == seen.is_seen(sequence), (sequence, seen)
