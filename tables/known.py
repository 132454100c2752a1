"""The identities of one partition: the map in memory, and what only the store on disk has."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from kafka_ratchet.errors import StateError, StoreDamaged
from kafka_ratchet.tables.map.map import LastSequence, LastSequences
from kafka_ratchet.tables.map.windows import PLAIN, Kept
from kafka_ratchet.tables.store import Store
from kafka_ratchet.transport.batch.encoding import pack_entries

LOAD_ENTRIES: Final = 10_000
"""Entries taken from the store into the map at a time; about 15 ms."""
LOAD_AT_ONCE: Final = 50_000
"""Identities that are all taken before the partition is at work. Where there are more, they follow while it is, some
after each commit, and what a batch needs before that is looked up."""
NAMES_AT_ONCE: Final = 20_000
"""Identities not yet in the store that are looked through for a list, in some 10 ms. Where more came since the last
snapshot, a list is without them until the next one."""
RESIDENT_BYTES: Final = 100
"""What an identity may take in the map: at worst three slots of 33 bytes. Its own bytes come on top."""


class KnownIdentities:
    """Which identities have a sequence, in the map or in the store alone.

    The map holds what fits in `room`. When it has outgrown that, everything is saved and the map begun anew; from then
    on an identity without a slot is looked up in the store before it is judged.
    """

    def __init__(
        self, path: Path, entries_of: tuple[str, int], *, timed: bool, room: Callable[[], int], kept: Kept = PLAIN
    ) -> None:
        """Nothing is read yet.

        Args:
            path: folder of the store
            entries_of: changelog topic and partition, for what is said of an entry
            timed: whether it is known when each identity was active
            room: bytes that the map may take
            kept: of each identity, beside its last sequence
        """
        self.path, self.room, self.kept = path, room, kept
        self._entries_of, self._timed = entries_of, timed
        self.map = self._empty_map()
        self.beyond = 0
        """Identities that are in the store and not in the map."""
        self.store: Store | None = None
        self._rest: Generator[tuple[bytes, bytes], None, None] | None = None
        """Entries that are still to be taken into the map, as they were when the store was opened."""

    def __len__(self) -> int:
        """Identities with a persisted sequence."""
        return len(self.map) + self.beyond

    def _empty_map(self) -> LastSequences:
        return LastSequences(timed=self._timed, kept=self.kept)

    @property
    def _resident_bytes(self) -> int:
        return RESIDENT_BYTES + 3 * self.kept.bytes

    def load(self, store: Store, identities: int) -> tuple[LastSequences, int]:
        """A map of what a store has, or an empty one where that is too much for now. Changes nothing here.

        Args:
            store: open
            identities: that it has

        Returns:
            (the map, identities that are in the store alone)

        Raises:
            StoreDamaged: an entry is not one of ours.
        """
        loaded = self._empty_map()
        loaded.missing = (store.missing or 0) if self.kept.dense else 0
        if identities > LOAD_AT_ONCE or identities * self._resident_bytes > self.room():
            return loaded, identities
        with closing(store.entries()) as entries:
            while pairs := list(islice(entries, LOAD_ENTRIES)):
                self._take(loaded, pairs)
        return loaded, 0

    def open(self, store: Store, loaded: LastSequences, beyond: int) -> None:
        """Go on with a store and what `load` made of it."""
        # In this order: a thread may look at it meanwhile, see `last`.
        self.map, self.beyond, self.store = loaded, beyond, store
        if beyond and beyond * self._resident_bytes <= self.room():
            self._rest = store.entries()

    def opened(self) -> Store:
        """The store.

        Raises:
            StateError: it is not open.
        """
        if self.store is None:
            raise StateError(f"{self.path}: the store is not open")
        return self.store

    def look_up(self, identities: list[bytes]) -> None:
        """Take into the map what the store has of these.

        Raises:
            StoreDamaged: a file is not what was written; the store is removed.
        """
        try:
            if found := self.opened().find(identities):
                self.take_in(found)
        except StoreDamaged:
            self.discard()
            raise

    def take_in(self, entries: list[tuple[bytes, bytes]]) -> None:
        """Take entries of the store into the map, which has none of them.

        Raises:
            StoreDamaged: one is not ours.
        """
        self._take(self.map, entries)
        self.beyond -= len(entries)

    def _take(self, into: LastSequences, entries: list[tuple[bytes, bytes]]) -> None:
        damaged, _, _ = into.load(pack_entries(*self._entries_of, entries), saved=True)
        if damaged >= 0:
            raise StoreDamaged(f"{self.path}: key {entries[damaged][0].hex()} is not an entry that Ratchet wrote")

    def take_rest(self) -> None:
        """Take some more of the store's entries into the map; those that it has are newer.

        Raises:
            StoreDamaged: a file is not what was written; the store is removed.
        """
        if self._rest is None:
            return
        try:
            if entries := list(islice(self._rest, LOAD_ENTRIES)):
                absent = set(self.map.absent_entries(pack_entries(*self._entries_of, entries)))
                if missing := [entry for entry in entries if entry[0][1:] in absent]:
                    self.take_in(missing)
                return
        except StoreDamaged:
            self.discard()
            raise
        self._rest = None

    @property
    def has_rest(self) -> bool:
        """Whether entries of the store are still to be taken into the map."""
        return self._rest is not None

    @property
    def has_outgrown(self) -> bool:
        """Whether the map takes more than its room."""
        return self.map.outgrows(self.room())

    def leave_to_store(self) -> None:
        """Begin the map anew: everything in it is in the store."""
        self.beyond += len(self.map)
        missing, self.map = self.map.missing, self._empty_map()
        self.map.missing = missing
        self._forget_rest()

    def forget(self) -> None:
        """Know none any more, whatever the store has."""
        self._forget_rest()
        self.map, self.beyond = self._empty_map(), 0

    def last(self, identity: bytes) -> LastSequence:
        """Last sequence of an identity; -1 is none. Changes nothing: it may be asked while another thread opens.

        Raises:
            StoreDamaged: a file is not what was written.
        """
        if self.beyond and self.store is not None and not self.map.holds(identity):
            for _, value in self.store.find([identity]):
                sequence = int.from_bytes(value[:8], "big")
                return LastSequence(sequence, sequence)
        return self.map.get(identity)

    def seen(self, identity: bytes, sequence: int) -> tuple[bool, bool]:
        """Whether a sequence was seen, persisted and pushed: see `LastSequences.seen`. Changes nothing, as `last`.

        Raises:
            StoreDamaged: a file is not what was written.
        """
        return (self._with(identity) if self.kept.window else self.map).seen(identity, sequence)

    def page(
        self, after: bytes | None, limit: int, prefix: bytes = b"", until: bytes | None = None
    ) -> tuple[list[bytes], bool]:
        """Identities behind `after` in the order of their bytes (None: from the first), pushed ones included.

        The map is in no order: names come from the store, which has them in order and is sought in, and from those few
        of the map that are newer than the store. However many there are, about `limit` are read.

        Args:
            after: the name before the first one
            limit: names
            prefix: what they begin with
            until: the last name that is wanted; None: there is no end

        Returns:
            (at most limit of them; whether none can be missing, see `NAMES_AT_ONCE`)

        Raises:
            StateError: the store is not open.
            StoreDamaged: a file is not what was written.
        """
        recent = self.map.uncommitted(NAMES_AT_ONCE)
        gone = {name for name, is_there in (recent or {}).items() if not is_there}
        first = b"i" + (prefix if after is None or after < prefix else after + b"\0")
        with closing(self.opened().scan_from(b"i" + prefix, first)) as entries:
            names = (key[1:] for key, _ in entries if key[1:] not in gone)
            found = set(islice(takewhile(lambda name: until is None or name <= until, names), limit))
        found.update(
            name
            for name in recent or ()
            if name not in gone
            and name.startswith(prefix)
            and (after is None or name > after)
            and (until is None or name <= until)
        )
        return sorted(found)[:limit], recent is not None

    def told(self, identity: bytes) -> tuple[int | None, int | None]:
        """When an identity was last active, in seconds, and how many sequences it lacks; None: that is not kept.

        Raises:
            StoreDamaged: a file is not what was written.
        """
        return self._with(identity).told(identity)

    def _with(self, identity: bytes) -> LastSequences:
        """The map, or one of what the store alone has of this identity."""
        if not self.beyond or self.store is None or self.map.holds(identity):
            return self.map
        alone = self._empty_map()
        self._take(alone, self.store.find([identity]))
        return alone

    def discard(self) -> None:
        """Remove a damaged store; it is begun anew when it is opened next."""
        self.release()
        Store.remove(self.path)

    def _forget_rest(self) -> None:
        if self._rest is not None:
            self._rest.close()
            self._rest = None

    def release(self) -> None:
        """Close the store, if it is open. The map stays as it is."""
        self._forget_rest()  # it holds on to the store
        if self.store is not None:
            self.store.close()
            self.store = None
