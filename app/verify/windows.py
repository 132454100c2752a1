"""Rule of reorder windows and conflicts, written a second time for verify.

Within the window, a record is accepted even after a record of its identity with a higher sequence. If it is unknown
whether a sequence below the last one was seen, that sequence counts as seen. After a change of settings, an identity
keeps its state until its next fresh record. This code shares nothing with the worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from kafka_ratchet.rule.settings import DEFAULT_TEXTS
from kafka_ratchet.rule.verdicts import CONTENT_DIFFERS, DUPLICATE, FRESH, TOO_LATE
from kafka_ratchet.transport.owner import JudgingFrom, Owner


@dataclass(slots=True)
class IdentityState:
    """State of an identity.

    last: last sequence. sequences: all seen sequences from `known_from` on. value: digest of the last sequence's value;
    None: not known.
    """

    last: int
    known_from: int
    sequences: set[int] = field(default_factory=set)
    value: bytes | None = None


def judging_of(owner: Owner | None) -> tuple[JudgingFrom, ...]:
    """Return a partition's window and conflict settings by input offset; empty if it never had any."""
    judging = owner.judging if owner is not None else ()
    return judging if any(each.settings.keys() & {"reorder_window", "conflicts"} for each in judging) else ()


class Windows:
    """Window and conflict rule of one partition, with the state of its identities."""

    def __init__(self, judging: Sequence[JudgingFrom]) -> None:
        """Start without identities. judging: settings by rising input offset."""
        self._coming = list(reversed(judging))
        self._of: dict[bytes, IdentityState] = {}
        self._set({})

    def continue_from(self, before: Windows) -> None:
        """Take over the identities' state from the preceding leg's windows, which must not be used any more.

        A leg is the input between two decisions of an operator.
        """
        self._of = before._of

    def _set(self, settings: dict[str, str]) -> None:
        texts = DEFAULT_TEXTS | settings
        self._window = int(texts["reorder_window"])
        self._remembered = -(-self._window // 64) * 64
        self._compares = texts["conflicts"] != "ignore"
        self.lettered = {TOO_LATE} if texts["late"] == "dead-letter" else set()
        """Verdicts that make dead letters, under the settings that applied to the last judged record."""
        self.lettered |= {CONTENT_DIFFERS} if texts["conflicts"] == "dead-letter" else set()

    def verdict_of(self, offset: int, identity: bytes, sequence: int, last: int, value: bytes | None) -> str:
        """Return the verdict on the next input record. last: last sequence of its identity; -1: it had none."""
        while self._coming and self._coming[-1].start <= offset:
            self._set(self._coming.pop().settings)
        if last < 0:
            self._of[identity] = IdentityState(sequence, sequence - self._remembered, {sequence}, self._digest(value))
            return FRESH
        seen = self._of.setdefault(identity, IdentityState(last, last))
        if seen.last != last:  # an operator has changed it
            known_from = max(seen.known_from, seen.last - self._remembered) if last < seen.last else last
            known_from = min(known_from, last)
            sequences = {each for each in seen.sequences if each < last} | {last}
            seen = self._of[identity] = IdentityState(last, known_from, sequences)
        if sequence == last:
            differs = self._compares and seen.value is not None and seen.value != self._digest(value)
            return CONTENT_DIFFERS if differs else DUPLICATE
        if sequence < last:
            if not self._window:
                return DUPLICATE
            if sequence < last - self._window:
                return TOO_LATE
            if sequence < seen.known_from or sequence in seen.sequences:
                return DUPLICATE
        if sequence > last or not self._compares:
            seen.value = self._digest(value)
        seen.last = max(last, sequence)
        seen.known_from = max(seen.known_from, seen.last - self._remembered)
        seen.sequences.add(sequence)
        if len(seen.sequences) > 2 * self._remembered + 64:
            seen.sequences = {each for each in seen.sequences if each >= seen.known_from}
        return FRESH

    def _digest(self, value: bytes | None) -> bytes | None:
        if not self._compares:
            return None
        return hashlib.blake2b(b"null" if value is None else b"bytes" + value, digest_size=16).digest()
