"""Operators' changes of a partition's identities: `ratchet forget`, `ratchet state import` and `ratchet resume`.

An entry of the changelog for each, committed with the change itself, under a key of its own: compaction keeps them all.
So a request is applied once however often a lane meets it, and the author of each change stays known.

    b"g" + number     8-byte big-endian, counted from 0 in the order of their application
    value             JSON, see `Edit`

The change itself is an entry of the identity, a null where it is forgotten. Kafka keeps nulls for a time only, so
every reader of the changelog forgets the identity when it comes to the entry here (docs/decisions/0042).

`ratchet resume --forget` writes one entry, however many identities there are: readers drop all identities when they
come to it. A null for each would need a transaction of any size, and nulls are compacted away after a day. This entry
stays: only the next of its kind replaces it, and compaction keeps its place after the forgotten entries.

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
from kafka_ratchet.transport.policy import Forget

EDIT: Final = b"g"
FORGET, IMPORT = "forget", "import"
VERSION: Final = 1
NOTHING: Final = -1
"""Last sequence of an unknown identity."""
_NUMBER: Final = struct.Struct(">q")


class Edit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Change of identities, with its author and reason.

    id: of the request; kind: FORGET or IMPORT; at: ISO 8601, UTC; by: user and machine; reason: as given;
    position: next input offset when it was applied: records before it were judged by the old state;
    identity: in hex, of FORGET; above: the sequences above it were forgotten, None: all;
    before, after: the identity's last sequence, -1 where there is none;
    added, raised, replaced: identities, of IMPORT.
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
        by = f"by {_printable(self.by)} at {_printable(self.at)}: {_printable(self.reason)}"
        if self.kind != FORGET:
            return f"imported {self.added:,} added, {self.raised:,} raised, {self.replaced:,} replaced, {by}"
        after = "nothing" if self.after == NOTHING else str(self.after)
        before = "nothing" if self.before == NOTHING else str(self.before)
        return f"forgotten of {self.name!r}: last sequence {before}, now {after}, {by}"

    @property
    def name(self) -> bytes:
        """Return the identity."""
        return bytes.fromhex(self.identity)

    @property
    def has_forgotten(self) -> bool:
        """Return True if the identity was known, and is not any more."""
        return self.kind == FORGET and self.before != NOTHING and self.after == NOTHING

    @property
    def has_changed(self) -> bool:
        """Return True if anything has changed."""
        return self.before != self.after or self.added + self.raised + self.replaced > 0

    def pack(self, number: int) -> tuple[bytes, bytes]:
        """Key and value of its entry. number: 0 is the first of the partition."""
        whole = msgspec.to_builtins(self) | {"version": self.version}
        return EDIT + _NUMBER.pack(number), msgspec.json.encode(whole)

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> tuple[int, Edit]:
        """Read what `pack` wrote.

        Raises:
            StateError: not an entry of this version.
        """
        try:
            found = _EDIT_OF.decode(value)
            if len(key) != 1 + _NUMBER.size or found.version != VERSION:
                raise StateError(f"an operator's change has version {found.version}; this Ratchet reads {VERSION}")
            _ = found.name
        except (ValueError, RecursionError) as error:  # msgspec's errors among them
            raise StateError(f"an operator's change cannot be read ({error})") from None
        return _NUMBER.unpack(key[1:])[0], found


_EDIT_OF: Final = msgspec.json.Decoder(Edit)
"""Made here and not by the first who reads: see `kafka_ratchet.transport.owner`."""


def _printable(text: str) -> str:
    """Return a text of others, made safe for a terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def edits_of(
    requests: Sequence[Forget], position: int, last: Callable[[bytes], int]
) -> tuple[list[Edit], dict[bytes, int]]:
    """Return the edits of requests to forget, one after the other.

    Args:
        requests: in their order
        position: next input offset
        last: returns an identity's last sequence, -1 where there is none

    Returns:
        (an edit for each; the new last sequence of each changed identity)
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
    """Those of one partition, with the same two views as its sequences: pushed and persisted."""

    def __init__(self, persisted: Iterable[tuple[int, Edit]] = ()) -> None:
        """persisted: as the store has them, with their numbers."""
        self._persisted = dict(persisted)
        self._pushed: dict[int, Edit] = {}
        self._unsaved: set[int] = set()
        self._ids = {edit.id for edit in self._persisted.values()}

    def __iter__(self) -> Iterator[Edit]:
        """Yield the persisted edits, in the order of their application."""
        return (self._persisted[number] for number in sorted(self._persisted))

    def has(self, request: str) -> bool:
        """Return True if the request of that id was applied and committed."""
        return request in self._ids

    @property
    def next(self) -> int:
        """Number of the next one."""
        return max((*self._persisted, *self._pushed), default=-1) + 1

    @property
    def forgotten(self) -> int:
        """Return the number of persisted requests with an effect."""
        return sum(edit.kind == FORGET and edit.has_changed for edit in self._persisted.values())

    def of(self, identity: bytes) -> list[Edit]:
        """Return the persisted forgotten parts of an identity, the oldest first."""
        name = identity.hex()
        return [edit for edit in self if edit.kind == FORGET and edit.identity == name and edit.has_changed]

    def push(self, edits: Sequence[Edit]) -> None:
        """Push edits into the open transaction."""
        self._pushed |= dict(enumerate(edits, self.next))

    def encode(self) -> list[EncodedBatch]:
        """Changelog entries of the open transaction."""
        return encode_entries((edit.pack(number) for number, edit in self._pushed.items()), sys.maxsize)

    def commit(self) -> None:
        """Pushed becomes persisted."""
        for number, edit in self._pushed.items():
            self._persist(number, edit)
        self._pushed.clear()

    def rollback(self) -> None:
        """Pushed falls back to persisted."""
        self._pushed.clear()

    def apply(self, batch: RecordBatch) -> RecordBatch:
        """Take over the entries in a batch of the changelog.

        Returns:
            the batch without them; where one has forgotten an identity, that one's null stands in its place

        Raises:
            StateError: an entry that Ratchet did not write.
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
        """Return key and value of the edits persisted since `saved`."""
        return [self._persisted[number].pack(number) for number in sorted(self._unsaved)]

    def saved(self) -> None:
        """Note that the store on disk has everything."""
        self._unsaved.clear()


FORGET_ALL_KEY: Final = b"f"
FORGET_ALL: Final = (FORGET_ALL_KEY, b"\1")


def remaining_entries(batch: RecordBatch) -> RecordBatch | None:
    """Return a changelog batch without this entry and the identities before it; None where the entry is absent."""
    lengths, keys = batch.columns[records.KEY_LENGTH], batch.columns[records.KEY]
    named = np.flatnonzero(lengths > 0)
    first = np.zeros(batch.count, np.uint8)
    first[named] = batch.data[keys[named]]
    said = np.flatnonzero((lengths == len(FORGET_ALL_KEY)) & (first == FORGET_ALL_KEY[0]))
    if not len(said):
        return None
    keep = first != ENTRY_PREFIX
    keep[said[-1] :] = True
    keep[said] = False
    return batch.only(keep)


def entries_of_decision(
    progress: tuple[bytes, bytes], last: PolicyInterval | None, position: int, owner: Owner, *, forget: bool
) -> list[tuple[bytes, bytes | None]]:
    """Return the changelog entries of an operator's decision to resume elsewhere.

    Args:
        progress: key and value of the progress entry.
        last: the newest policy interval; None where there is none.
        position: input offset to read next.
        owner: owner with the decision in it.
        forget: True: forget every identity before them.
    """
    entries: list[tuple[bytes, bytes | None]] = [progress]
    if last is not None:
        # Positions of a deleted policy topic mean nothing: the next policy is taken as it is then.
        entries.append(PolicyInterval(last.number + 1, True, position, position, 0, 0).pack())
    if forget:
        entries.append(FORGET_ALL)
    entries.append(owner.pack())  # the last: a reader of the decision has seen all of it
    return entries
