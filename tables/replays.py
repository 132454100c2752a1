"""Records that `ratchet dead-letters replay` has sent to the input again: how they are judged.

Each has the header `ratchet-replays`. There are two kinds (docs/decisions/0043-replayed-dead-letters.md):

- Its dead letter came from an agent: the record was judged before that, and its sequence is counted as seen. It has the
  header `ratchet-replayed-from` as well, which names that letter. It is judged by this name alone, so that it passes,
  and passes once, whatever its own identity and sequence are.
- Its dead letter came from judging. It is judged as any record. But it is never dropped: where it is not new it becomes
  a dead letter once more, for it may be a record that was never forwarded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.tables.identities import ONCE, Identities
from kafka_ratchet.tables.identity import MAX_IDENTITY_BYTES
from kafka_ratchet.tables.map.kernels import FRESH, INVALID
from kafka_ratchet.tables.reasons import NONE, REPLAY_NOT_NEW
from kafka_ratchet.transport.batch.record_batch import REPLAY_HEADERS, Header, RecordBatch

REPLAYS: Final = f"{REPLAY_HEADERS}s"
"""Header: how often the record was replayed, decimal text."""
REPLAYED_FROM: Final = f"{REPLAY_HEADERS}ed-from"
"""Header: the dead letter by which the record is judged."""
REPLAYED_FOR: Final = f"{REPLAY_HEADERS}ed-for"
"""Header: the agents that rejected it, as the dead letter named them; the others have had it."""
LETTER: Final = b"ratchet-replayed-from:"
"""What an identity that stands for a dead letter begins with."""


def letter_of(headers: Iterable[Header]) -> bytes | None:
    """The identity by which a record with these headers is judged; None: by its own."""
    names = [value for name, value in headers if name == REPLAYED_FROM]
    if len(names) != 1 or not names[0] or len(LETTER) + len(names[0]) > MAX_IDENTITY_BYTES:
        return None
    return LETTER + names[0]


def agents_of(headers: Iterable[Header]) -> frozenset[str] | None:
    """The agents that are to have a replayed record; None: all of them."""
    headers = list(headers)
    names = [value for name, value in headers if name == REPLAYED_FOR]
    if len(names) != 1 or letter_of(headers) is None:
        return None
    try:
        return frozenset(msgspec.json.decode(names[0] or b"", type=list[str])) or None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class Replays(NamedTuple):
    """The replayed records of a batch. letters: by index, the identity it is judged by; again: indices of others."""

    letters: dict[int, bytes]
    again: list[int]

    @classmethod
    def of(cls, batch: RecordBatch) -> Replays:
        """Those of a batch."""
        found = cls({}, [])
        for index in batch.replays.tolist():
            headers = batch.headers(index)
            if (letter := letter_of(headers)) is not None:
                found.letters[index] = letter
            elif any(name == REPLAYS for name, _ in headers):
                found.again.append(index)
        return found

    def stand_in(
        self, identities: Identities, sequences: NDArray[np.int64], reasons: NDArray[np.uint8]
    ) -> tuple[Identities, NDArray[np.int64]]:
        """What the batch is judged by, with the letters in place of the records' own identities and sequences.

        Args:
            identities: of the batch
            sequences: int64[batch.count]; left as it is
            reasons: uint8[batch.count]; changed here
        """
        if not self.letters:
            return identities, sequences
        indices, names = list(self.letters), list(self.letters.values())
        lengths = np.array([len(name) for name in names], np.int64)
        data = np.concatenate([identities.data, np.frombuffer(b"".join(names), np.uint8)])
        data.flags.writeable = False
        begins, spans, times = identities.begins.copy(), identities.lengths.copy(), identities.times
        begins[indices] = len(identities.data) + np.cumsum(lengths) - lengths
        spans[indices] = lengths
        if times is not ONCE:
            times = times.copy()
            times[indices] = 1
        sequences = sequences.copy()
        sequences[indices], reasons[indices] = 0, NONE
        return identities._replace(data=data, begins=begins, lengths=spans, times=times), sequences

    def keep(self, verdicts: NDArray[np.uint8], reasons: NDArray[np.uint8]) -> None:
        """Have the others that are not new become dead letters; both arrays are changed."""
        for index in self.again:
            if verdicts[index] not in (FRESH, INVALID):
                verdicts[index], reasons[index] = INVALID, REPLAY_NOT_NEW

    def own(self, verdicts: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The verdicts on records that were judged by their own identity; the others count as invalid."""
        verdicts = verdicts.copy()
        verdicts[list(self.letters)] = INVALID
        return verdicts
