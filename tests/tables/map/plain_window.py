"""Windows, fingerprints and gaps as docs/reference/settings.md has them, with sets, one record after the other."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field


@dataclass
class PlainIdentity:
    """known_from: of sequences below it nothing is known, and they count as seen. counted_from: None for all."""

    last: int
    seen: set[int]
    known_from: int
    value: tuple[bytes | None] | None
    counted: set[int] = field(default_factory=set)
    counted_from: int | None = None

    @property
    def missing(self) -> int:
        first = min(self.counted)
        return self.last - first + 1 - len(self.counted)


class PlainWindow:
    def __init__(self, window: int, *, fingerprints: bool, dense: bool) -> None:
        self.window, self.fingerprints, self.dense = window, fingerprints, dense
        self.pushed: dict[bytes, PlainIdentity] = {}
        self.persisted: dict[bytes, PlainIdentity] = {}

    @property
    def size(self) -> int:
        return -(-self.window // 64) * 64

    def judge(self, name: bytes, sequence: int, value: bytes | None) -> str:
        found = self.pushed.get(name)
        if found is None:
            self.pushed[name] = PlainIdentity(sequence, {sequence}, sequence - self.size, (value,), {sequence})
            return "fresh"
        if sequence == found.last:
            differs = self.fingerprints and found.value is not None and found.value != (value,)
            return "conflict" if differs else "duplicate"
        if sequence < found.last:
            if not self.window:
                return "duplicate"
            if sequence < found.last - self.window:
                return "too late"
            if sequence < found.known_from or sequence in found.seen:
                return "duplicate"
        else:
            found.value = (value,)
        found.last = max(found.last, sequence)
        found.seen.add(sequence)
        found.known_from = max(found.known_from, found.last - self.size)
        if found.counted_from is None or sequence > found.counted_from:
            found.counted.add(sequence)
        return "fresh"

    def has_seen(self, found: PlainIdentity, sequence: int) -> bool:
        if not 0 < found.last - sequence <= self.window:
            return False
        return sequence < found.known_from or sequence in found.seen

    def commit(self) -> None:
        self.persisted = deepcopy(self.pushed)

    def rollback(self) -> None:
        self.pushed = deepcopy(self.persisted)

    def changed(self) -> set[bytes]:
        return {name for name, found in self.pushed.items() if found != self.persisted.get(name)}

    def reload(self, kept: PlainWindow) -> PlainWindow:
        """The same identities under other settings, from what these have written; all of it, as if just changed."""
        other = PlainWindow(kept.window, fingerprints=kept.fingerprints, dense=kept.dense)
        for name, found in self.persisted.items():
            new = deepcopy(found)
            if not self.window:
                new.known_from = found.last
            if not self.fingerprints:
                new.value = None
            if not self.dense:
                new.counted, new.counted_from = {found.last}, found.last
            new.known_from = max(new.known_from, new.last - other.size)
            other.persisted[name] = new
        other.rollback()
        return other
