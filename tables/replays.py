"""Verdicts on re-sent dead letters (`ratchet dead-letters replay`).

Every re-sent record has the header `ratchet-replays`. There are two kinds
(docs/decisions/0043-replayed-dead-letters.md):
- Records rejected by an agent of this stream. They were judged before, so their sequences count as seen. They also have
  the header `ratchet-replayed-from` with the name of the dead letter. They are judged by this name and their content
  alone. So each passes exactly once, whatever its identity and sequence are.
- Records rejected by the deduplication, or by another stream: two streams may read one input, and programs may copy
  headers. They are judged by their own identities and sequences, but never dropped. A record with another verdict than
  fresh becomes a dead letter again, because it may never have been forwarded.
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
"""Header with the number of replays of the record, as decimal text."""
REPLAYED_FROM: Final = f"{REPLAY_HEADERS}ed-from"
"""Header with the name of the dead letter, which identifies the record for judging."""
REPLAYED_FOR: Final = f"{REPLAY_HEADERS}ed-for"
"""Header with the agents that rejected the record, as the dead letter names them; other agents have processed it."""
FOR_ALL: Final = b"null"
"""Value of the header `REPLAYED_FOR` for a record to all agents."""
LETTER: Final = b"ratchet-replayed-from:"
"""Prefix of an identity made from the name of a dead letter."""


PLACE: Final = re.compile(rb"(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,18})")
"""Pattern of a dead letter's partition and offset, which follow its topic and the topic's id."""
FINGERPRINT_BYTES: Final = 16


def letter_of(headers: Iterable[Header], letters: bytes) -> bytes | None:
    """Return the name of this stream's dead letter that a record was re-sent from; None: there is none.

    Args:
        headers: headers of the record; any program may have written or copied them.
        letters: prefix of the names of this stream's dead letters: application, topic and topic id; b"": unknown, and
            no name is valid.

    Returns:
        Name of the dead letter without the application; the headers of an earlier version do not name an application.
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
    """Return the identity for judging a re-sent record, from its dead letter and a digest of its content."""
    found = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    for part in (key, value):
        found.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    return LETTER + letter + b"/" + found.hexdigest().encode()


def agents_of(headers: Iterable[Header], letters: bytes) -> frozenset[str] | None:
    """Return the names of the agents that a record is for; None: all agents.

    The set is empty if the header of a re-sent record cannot be read.
    """
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
    """Re-sent records of a batch.

    Args:
        letters: identity to judge a record by, made from the name of its dead letter; by index of the record.
        again: indices of the other re-sent records, which are judged by their own identities.
    """

    letters: dict[int, bytes]
    again: list[int]

    @classmethod
    def of(cls, batch: RecordBatch, letters: bytes) -> Replays:
        """Return the re-sent records of a batch.

        Args:
            batch: the batch.
            letters: see `letter_of`.
        """
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
        """Return the batch's identities and sequences, replaced for the records in `letters`.

        Such a record gets the identity in `letters` and sequence 0, so that it is fresh once.

        Args:
            identities: identities of the batch
            sequences: int64[batch.count]; stays unchanged
            reasons: uint8[batch.count]; set to NONE here for these records
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
        """Change the verdict of each record in `again` to INVALID, with a reason, unless the record is fresh."""
        for index in self.again:
            if verdicts[index] not in (FRESH, INVALID):
                verdicts[index], reasons[index] = INVALID, REPLAY_NOT_NEW

    def own(self, verdicts: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the verdicts for counting activity: INVALID for records in `letters`, which are not counted."""
        verdicts = verdicts.copy()
        verdicts[list(self.letters)] = INVALID
        return verdicts
