"""Verdicts on re-sent dead letters (`ratchet dead-letters replay`).

Each has the header `ratchet-replays`. There are two kinds (docs/decisions/0043-replayed-dead-letters.md):

- Its dead letter came from an agent: the record was judged before that, and its sequence is counted as seen. It has
the header `ratchet-replayed-from` as well, with the name of that dead letter. It is judged by this name and its
content alone, so that it passes exactly once, whatever its own identity and sequence are.
- Its dead letter came from judging, or is one of another stream: two may read one input, and headers are copied. It is
  judged as any record. But it is never dropped: where it is not new it becomes a dead letter once more, for it may
  never have been forwarded.
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
from kafka_ratchet.rule.kernels import FRESH, INVALID
from kafka_ratchet.rule.reasons import NONE, REPLAY_NOT_NEW
from kafka_ratchet.transport.batch.record_batch import REPLAY_HEADERS, Header, RecordBatch

REPLAYS: Final = f"{REPLAY_HEADERS}s"
"""Header: how often the record was replayed, decimal text."""
REPLAYED_FROM: Final = f"{REPLAY_HEADERS}ed-from"
"""Header with the name of the dead letter, by which the record is judged."""
REPLAYED_FOR: Final = f"{REPLAY_HEADERS}ed-for"
"""Header: the agents that rejected it, as the dead letter named them; the others have had it."""
FOR_ALL: Final = b"null"
"""Header value of a record for all agents."""
LETTER: Final = b"ratchet-replayed-from:"
"""Prefix of an identity made from a dead letter."""


PLACE: Final = re.compile(rb"(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,18})")
"""Partition and offset of a dead letter, after its topic and the topic's id."""
FINGERPRINT_BYTES: Final = 16


def letter_of(headers: Iterable[Header], letters: bytes) -> bytes | None:
    """Return this stream's dead letter of a re-sent record; None: there is none.

    Args:
        headers: headers of the record; any program may have written or copied them.
        letters: prefix of the names of this stream's dead letters: application, topic and its id; b"": unknown, and
            no name counts.

    Returns:
        its name without the application, which records re-sent by an earlier version lack.
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
    """Return the identity for judging a re-sent record. Other content cannot take its place."""
    found = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    for part in (key, value):
        found.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    return LETTER + letter + b"/" + found.hexdigest().encode()


def agents_of(headers: Iterable[Header], letters: bytes) -> frozenset[str] | None:
    """Return the agents for a re-sent record; None: all of them; empty: the header is unreadable."""
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
        """Return identities and sequences identities of the batch, with dead letter names in place of the records' own.

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
        """Make dead letters of the other re-sent records that are not new; both arrays are changed."""
        for index in self.again:
            if verdicts[index] not in (FRESH, INVALID):
                verdicts[index], reasons[index] = INVALID, REPLAY_NOT_NEW

    def own(self, verdicts: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the verdicts on records with their own identity; the others count as invalid."""
        verdicts = verdicts.copy()
        verdicts[list(self.letters)] = INVALID
        return verdicts
