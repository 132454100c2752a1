"""Operators' changes of a partition's identities: `ratchet forget`, `ratchet state import` and `ratchet resume`.

Each change has an entry in the changelog, which is committed together with the change. The entry's key is unique, so
compaction keeps the entries of all changes. Thus a lane applies a request only once, however often it reads the
request, and the author of each change stays known.

  b"g" + number     8-byte big-endian, counted from 0 in the order of their application
  value             JSON, see `Edit`

The change itself is an entry of the identity: a tombstone if the identity is forgotten. Kafka keeps tombstones only for
a limited time, so a reader of the changelog also forgets the identity when it reads the entry described here
(docs/decisions/0042).

`ratchet resume --forget` writes a single entry for all identities. A reader of the changelog drops all identities when
it reads this entry. A tombstone for each identity would need a transaction of unlimited size, and Kafka deletes
tombstones after a day. The single entry stays until a newer one replaces it, and compaction keeps its place after the
forgotten entries.

  b"f"              a version byte
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.map.entries import ENTRY_PREFIX
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.encoding import EncodedBatch, encode_entries
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.policy import ForgetRequest

EDIT: Final = b"g"
FORGET, IMPORT = "forget", "import"
VERSION: Final = 1
NOTHING: Final = -1
"""Last sequence of an unknown identity."""
_NUMBER: Final = struct.Struct(">q")


class Edit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Operator's change of identities, with author and reason.

    Args:
        id: id of the request.
        kind: FORGET or IMPORT.
        at: time of the request, ISO 8601 in UTC.
        by: user and machine.
        reason: reason, as the operator gave it.
        position: next input offset when the change was applied; earlier records were judged by the former state.
        identity: identity in hexadecimal digits, for FORGET.
        above: last sequence to keep, for FORGET; None: all sequences are forgotten.
        before: last sequence of the identity before the change; -1: none.
        after: last sequence of the identity after the change; -1: none.
        added: number of added identities, for IMPORT.
        raised: number of identities with a raised sequence, for IMPORT.
        replaced: number of identities with a replaced sequence, for IMPORT.
        version: version of the entry's form.
    """

    id: str
    kind: str
    at: str
    by: str
    reason: str
    position: int
    identity: str = ""
    above: int | None = None
    before: int = NOTHING
    after: int = NOTHING
    added: int = 0
    raised: int = 0
    replaced: int = 0
    version: int = VERSION

    def __str__(self) -> str:
        if self.kind != FORGET:
            counts = f"{self.added:,} added, {self.raised:,} raised, {self.replaced:,} replaced"
            return f"imported {counts}, {self.author}"
        after = "nothing" if self.after == NOTHING else str(self.after)
        before = "nothing" if self.before == NOTHING else str(self.before)
        return f"forgotten of {self.name!r}: last sequence {before}, now {after}, {self.author}"

    @property
    def author(self) -> str:
        """Return user, time and reason as a phrase."""
        return f"by {_printable(self.by)} at {_printable(self.at)}: {_printable(self.reason)}"

    @property
    def name(self) -> bytes:
        """Return the identity as bytes."""
        return bytes.fromhex(self.identity)

    @property
    def has_forgotten(self) -> bool:
        """Return True if the change forgot all sequences of a known identity."""
        return self.kind == FORGET and self.before != NOTHING and self.after == NOTHING

    @property
    def has_changed(self) -> bool:
        """Return True if the change had an effect."""
        return self.before != self.after or self.added + self.raised + self.replaced > 0

    def pack(self, number: int) -> tuple[bytes, bytes]:
        """Return key and value of the change's changelog entry.

        Args:
            number: number of the change in its partition, from 0.
        """
        whole = msgspec.to_builtins(self) | {"version": self.version}
        return EDIT + _NUMBER.pack(number), msgspec.json.encode(whole)

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> tuple[int, Edit]:
        """Parse a changelog entry that `pack` made, into the number and the change.

        Raises:
            StateError: the entry is damaged, or of another version.
        """
        try:
            found = _EDIT_OF.decode(value)
            if len(key) != 1 + _NUMBER.size or found.version != VERSION:
                raise StateError(
                    f"an operator's change has version {found.version}, and this Ratchet reads {VERSION}. Run the "
                    "newer version"
                )
            _ = found.name
        except (ValueError, RecursionError) as error:  # msgspec's errors among them
            raise StateError(
                f"an operator's change cannot be read ({error}). Check that no other program writes to the changelog"
            ) from None
        return _NUMBER.unpack(key[1:])[0], found


_EDIT_OF: Final = msgspec.json.Decoder(Edit)
"""Decoder created at import instead of at the first use: see `kafka_ratchet.transport.owner`."""


def _printable(text: str) -> str:
    """Return a text from outside with its unprintable characters escaped, for a terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def edits_of(
    requests: Sequence[ForgetRequest], position: int, last: Callable[[bytes], int]
) -> tuple[list[Edit], dict[bytes, int]]:
    """Return the changes that operators' requests to forget identities cause.

    Each request applies to the result of the one before.

    Args:
        requests: requests, in the order of their application
        position: next input offset
        last: function that returns an identity's last sequence, or -1

    Returns:
        A change for each request, and the new last sequence of each changed identity.
    """
    edits, now = [], dict[bytes, int]()
    for each in requests:
        before = now.get(each.identity, last(each.identity))
        after = NOTHING if each.above is None else min(before, each.above)
        now[each.identity] = after
        who = each.id, FORGET, each.at, each.by, each.reason
        edits.append(Edit(*who, position, each.identity.hex(), each.above, before, after))
    return edits, {identity: after for identity, after in now.items() if after != last(identity)}


class Edits:
    """Operators' changes in one partition, in two states like its sequences: pushed and persisted."""

    def __init__(self, persisted: Iterable[tuple[int, Edit]] = ()) -> None:
        """Start with the changes in the store.

        Args:
            persisted: number and change of each entry in the store.
        """
        self._persisted = dict(persisted)
        self._pushed: dict[int, Edit] = {}
        self._unsaved: set[int] = set()
        self._ids = {edit.id for edit in self._persisted.values()}

    def __iter__(self) -> Iterator[Edit]:
        """Yield the persisted changes, in the order of their application."""
        return (self._persisted[number] for number in sorted(self._persisted))

    def has(self, request: str) -> bool:
        """Return True if the request with this id was applied and committed."""
        return request in self._ids

    @property
    def next(self) -> int:
        """Return the number for the next change."""
        return max((*self._persisted, *self._pushed), default=-1) + 1

    @property
    def forgotten(self) -> int:
        """Return the number of persisted requests to forget that had an effect."""
        return sum(edit.kind == FORGET and edit.has_changed for edit in self._persisted.values())

    def of(self, identity: bytes) -> list[Edit]:
        """Return the committed and effective requests to forget this identity, oldest first."""
        name = identity.hex()
        return [edit for edit in self if edit.kind == FORGET and edit.identity == name and edit.has_changed]

    def push(self, edits: Sequence[Edit]) -> None:
        """Add changes to the open transaction."""
        self._pushed |= dict(enumerate(edits, self.next))

    def encode(self) -> list[EncodedBatch]:
        """Encode the open transaction's changes as changelog entries."""
        return encode_entries((edit.pack(number) for number, edit in self._pushed.items()), sys.maxsize)

    def commit(self) -> None:
        """Make the pushed changes persisted."""
        for number, edit in self._pushed.items():
            self._persist(number, edit)
        self._pushed.clear()

    def rollback(self) -> None:
        """Discard the pushed changes."""
        self._pushed.clear()

    def apply(self, batch: RecordBatch) -> RecordBatch:
        """Apply the operators' changes in a batch of the changelog.

        Returns:
            The batch without these entries; an entry that forgot an identity is replaced by that identity's tombstone.

        Raises:
            StateError: Ratchet did not write an entry.
        """
        lengths = batch.columns[records.KEY_LENGTH]
        mine = np.zeros(batch.count, np.bool_)
        named = np.flatnonzero(lengths > 0)
        mine[named] = batch.data[batch.columns[records.KEY, named]] == EDIT[0]
        if not mine.any():
            return batch
        keep, columns, added = ~mine, batch.columns.copy(), bytearray()
        for index in np.flatnonzero(mine).tolist():
            try:
                number, edit = Edit.unpack(batch.key(index) or b"", batch.value(index) or b"")
            except StateError as error:
                offset = int(batch.offsets[index])
                raise StateError(f"{batch.topic}, partition {batch.partition}, offset {offset}: {error}") from None
            self._persist(number, edit)
            if edit.has_forgotten:
                key = bytes([ENTRY_PREFIX]) + edit.name
                columns[records.KEY, index] = len(batch.data) + len(added)
                columns[records.KEY_LENGTH, index], columns[records.VALUE_LENGTH, index] = len(key), -1
                keep[index] = True
                added += key
        data = np.concatenate([batch.data, np.frombuffer(bytes(added), np.uint8)])
        return replace(batch, data=data, columns=columns).only(keep)

    def _persist(self, number: int, edit: Edit) -> None:
        self._persisted[number] = edit
        self._ids.add(edit.id)
        self._unsaved.add(number)

    def unsaved_entries(self) -> list[tuple[bytes, bytes]]:
        """Return key and value of the changes persisted since the last snapshot."""
        return [self._persisted[number].pack(number) for number in sorted(self._unsaved)]

    def saved(self) -> None:
        """Mark all persisted changes as contained in the store on disk."""
        self._unsaved.clear()


FORGET_ALL_KEY: Final = b"f"
FORGET_ALL: Final = (FORGET_ALL_KEY, b"\1")


def remaining_entries(batch: RecordBatch) -> RecordBatch | None:
    """Drop from a changelog batch the identities that `FORGET_ALL` entries in it forget.

    Returns:
        The batch without its `FORGET_ALL` entries, and without the identities' entries before the last of those; None:
        it has no `FORGET_ALL` entry.
    """
    lengths, keys = batch.columns[records.KEY_LENGTH], batch.columns[records.KEY]
    named = np.flatnonzero(lengths > 0)
    first = np.zeros(batch.count, np.uint8)
    first[named] = batch.data[keys[named]]
    found = np.flatnonzero((lengths == len(FORGET_ALL_KEY)) & (first == FORGET_ALL_KEY[0]))
    if not len(found):
        return None
    keep = first != ENTRY_PREFIX
    keep[found[-1] :] = True
    keep[found] = False
    return batch.only(keep)


def entries_of_decision(
    progress: tuple[bytes, bytes], last: PolicyInterval | None, position: int, owner: Owner, *, forget: bool
) -> list[tuple[bytes, bytes | None]]:
    """Return the changelog entries of an operator's decision to resume at another input offset.

    Args:
        progress: key and value of the progress entry.
        last: newest policy interval; None: there is none.
        position: input offset to read next.
        owner: owner entry that includes the decision.
        forget: whether to add the entry that forgets all earlier identities.
    """
    entries: list[tuple[bytes, bytes | None]] = [progress]
    if last is not None:
        # The policy topic may have been deleted, so its old position is invalid: 0 accepts any later policy.
        entries.append(PolicyInterval(last.number + 1, True, position, position, 0, 0).pack())
    if forget:
        entries.append(FORGET_ALL)
    entries.append(owner.pack())  # last, so that a reader of the decision has read the other entries
    return entries
