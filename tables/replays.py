"""Records that `ratchet dead-letters replay` has sent to the input again: how they are judged.

Each has the header `ratchet-replays`. There are two kinds (docs/decisions/0043-replayed-dead-letters.md):

- Its dead letter came from an agent: the record was judged before that, and its sequence is counted as seen. It has the
  header `ratchet-replayed-from` as well, which names that letter. It is judged by this name and its content alone, so
  that it passes, and passes once, whatever its own identity and sequence are.
- Its dead letter came from judging, or is one of another stream: two may read one input, and headers are copied. It is
  judged as any record. But it is never dropped: where it is not new it becomes a dead letter once more, for it may be
  a record that was never forwarded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.rule.identities import ONCE, Identities
from kafka_ratchet.rule.reasons import NONE, REPLAY_NOT_NEW
from kafka_ratchet.tables.map.kernels import FRESH, INVALID
from kafka_ratchet.transport.batch.record_batch import REPLAY_HEADERS, Header, RecordBatch

REPLAYS: Final = f"{REPLAY_HEADERS}s"
"""Header: how often the record was replayed, decimal text."""
REPLAYED_FROM: Final = f"{REPLAY_HEADERS}ed-from"
"""Header: the dead letter by which the record is judged."""
REPLAYED_FOR: Final = f"{REPLAY_HEADERS}ed-for"
"""Header: the agents that rejected it, as the dead letter named them; the others have had it."""
FOR_ALL: Final = b"null"
"""In its place: the record is to go to all agents."""
LETTER: Final = b"ratchet-replayed-from:"
"""What an identity that stands for a dead letter begins with."""


PLACE: Final = re.compile(rb"(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,18})")
"""Partition and offset of a letter, behind its topic and the topic's id."""
FINGERPRINT_BYTES: Final = 16


def letter_of(headers: Iterable[Header], letters: bytes) -> bytes | None:
    """Which dead letter of this stream a record was replayed from; None: of none.

    Args:
        headers: of the record; anybody may have written or copied them
        letters: what the names of this stream's letters begin with, application, topic and its id; b"": they are not
            known, and no name counts

    Returns:
        its name without the application, which records do not have that an earlier version has replayed
    """
    names = [value or b"" for name, value in headers if name == REPLAYED_FROM]
    if not letters or len(names) != 1:
        return None
    _, _, topic = letters.partition(b"/")
    begin = next((each for each in (letters, topic) if names[0].startswith(each)), None)
    if begin is None or PLACE.fullmatch(names[0], len(begin)) is None:
        return None
    return topic + names[0][len(begin) :]


def identity_of(letter: bytes, key: bytes | None, value: bytes | None) -> bytes:
    """What a record that was replayed from a letter is judged by. Other content cannot take its place."""
    found = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    for part in (key, value):
        found.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    return LETTER + letter + b"/" + found.hexdigest().encode()


def agents_of(headers: Iterable[Header], letters: bytes) -> frozenset[str] | None:
    """The agents that are to have a replayed record; None: all of them; empty: it does not say."""
    headers = list(headers)
    if letter_of(headers, letters) is None:
        return None
    names = [value for name, value in headers if name == REPLAYED_FOR]
    if names == [FOR_ALL]:
        return None
    try:
        return frozenset(msgspec.json.decode(names[0] or b"", type=list[str]) if len(names) == 1 else ())
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return frozenset()


class Replays(NamedTuple):
    """The replayed records of a batch. letters: by index, the identity it is judged by; again: indices of others."""

    letters: dict[int, bytes]
    again: list[int]

    @classmethod
    def of(cls, batch: RecordBatch, letters: bytes) -> Replays:
        """Those of a batch. letters: see `letter_of`."""
        found = cls({}, [])
        for index in batch.replays.tolist():
            headers = batch.headers(index)
            if (letter := letter_of(headers, letters)) is not None:
                found.letters[index] = identity_of(letter, batch.key(index), batch.value(index))
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
