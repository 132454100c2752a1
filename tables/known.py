"""Identities of one partition: those in the map in memory, and those only in the store on disk."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from kafka_ratchet.errors import StateError, StoreDamaged
from kafka_ratchet.rule.windows import PLAIN, StateOptions
from kafka_ratchet.tables.map.map import LastSequence, LastSequences
from kafka_ratchet.tables.store import Store
from kafka_ratchet.transport.batch.encoding import pack_entries

LOAD_ENTRIES: Final = 10_000
"""Number of entries loaded from the store into the map at a time, in about 15 ms."""
LOAD_AT_ONCE: Final = 50_000
"""Maximum number of identities loaded before the partition starts to work.

If there are more, they are loaded while the partition works: some after each commit, and a batch's identities before
the batch is judged.
"""
NAMES_AT_ONCE: Final = 20_000
"""Maximum number of identities not yet in the store that a listing includes, in about 10 ms.

If more were added since the last snapshot, a listing lacks them until the next snapshot.
"""
RESIDENT_BYTES: Final = 100
"""Maximum bytes of an identity in the map, without the identity's own bytes: three slots of 33 bytes."""


class KnownIdentities:
    """Identities with a last sequence, in the map or only in the store.

    The map has as many identities as fit into the memory budget `room`. When it exceeds the budget, everything is saved
    and the map becomes empty. From then on, an identity missing in the map is read from the store before its record is
    judged.
    """

    def __init__(
        self,
        path: Path,
        entries_of: tuple[str, int],
        *,
        timed: bool,
        room: Callable[[], int],
        kept: StateOptions = PLAIN,
    ) -> None:
        """Store the settings without reading the store.

        Args:
            path: folder of the store.
            entries_of: topic and partition of the changelog, for messages about an entry.
            timed: whether the map stores each identity's time of activity.
            room: memory budget of the map, in bytes.
            kept: which further state of each identity to keep.
        """
        self.path, self.room, self.kept = path, room, kept
        self._entries_of, self.timed = entries_of, timed
        self.map = self._empty_map()
        self.beyond = 0
        """Number of identities in the store but not in the map."""
        self.store: Store | None = None
        self._rest: Generator[tuple[bytes, bytes], None, None] | None = None
        """Iterator over entries still to be loaded into the map, as of the store's opening; None: there are none."""

    def __len__(self) -> int:
        """Return the number of identities with a persisted sequence."""
        return len(self.map) + self.beyond

    def _empty_map(self) -> LastSequences:
        return LastSequences(timed=self.timed, kept=self.kept)

    @property
    def _resident_bytes(self) -> int:
        return RESIDENT_BYTES + 3 * self.kept.bytes

    def load(self, store: Store, identities: int) -> tuple[LastSequences, int]:
        """Load a store's identities into a new map; with too many identities, return an empty map.

        The call does not change this object.

        Args:
            store: open store.
            identities: number of identities in the store.

        Returns:
            The map, and the number of identities only in the store.

        Raises:
            StoreDamaged: Ratchet did not write an entry.
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
        """Use an open store and the map that `load` returned. beyond: number of identities only in the store."""
        # In this order: a thread may read it in between, see `last`.
        self.map, self.beyond, self.store = loaded, beyond, store
        if beyond and beyond * self._resident_bytes <= self.room():
            self._rest = store.entries()

    def opened(self) -> Store:
        """Return the open store.

        Raises:
            StateError: the store is not open.
        """
        if self.store is None:
            raise StateError(f"{self.path}: the store is not open")
        return self.store

    def look_up(self, identities: list[bytes]) -> None:
        """Load the store's entries of the given identities into the map.

        Raises:
            StoreDamaged: a file is damaged; the store is removed.
        """
        try:
            if found := self.opened().find(identities):
                self.take_in(found)
        except StoreDamaged:
            self.discard()
            raise

    def take_in(self, entries: list[tuple[bytes, bytes]]) -> None:
        """Add entries of the store to the map, which must have none of them.

        Raises:
            StoreDamaged: Ratchet did not write an entry.
        """
        self._take(self.map, entries)
        self.beyond -= len(entries)

    def _take(self, into: LastSequences, entries: list[tuple[bytes, bytes]]) -> None:
        damaged, _, _ = into.load(pack_entries(*self._entries_of, entries), saved=True)
        if damaged >= 0:
            raise StoreDamaged(f"{self.path}: key {entries[damaged][0].hex()} is not an entry that Ratchet wrote")

    def take_rest(self) -> None:
        """Load some more of the store's entries into the map, except identities that the map has already.

        Raises:
            StoreDamaged: a file is damaged; the store is removed.
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
        """Return True while entries of the store remain to be loaded into the map."""
        return self._rest is not None

    @property
    def has_outgrown(self) -> bool:
        """Return True if the map exceeds its memory budget."""
        return self.map.outgrows(self.room())

    def leave_to_store(self) -> None:
        """Replace the map by an empty one; the store must already contain all of its identities."""
        self.beyond += len(self.map)
        missing, self.map = self.map.missing, self._empty_map()
        self.map.missing = missing
        self._forget_rest()

    def forget(self) -> None:
        """Forget all identities in memory, and treat those in the store as unknown."""
        self._forget_rest()
        self.map, self.beyond = self._empty_map(), 0

    def last(self, identity: bytes) -> LastSequence:
        """Return an identity's last sequence; -1: the identity has none.

        The call changes nothing, so another thread may open the store at the same time.

        Raises:
            StoreDamaged: a file is damaged.
        """
        if self.beyond and self.store is not None and not self.map.holds(identity):
            for _, value in self.store.find([identity]):
                sequence = int.from_bytes(value[:8], "big")
                return LastSequence(sequence, sequence)
        return self.map.get(identity)

    def seen(self, identity: bytes, sequence: int) -> tuple[bool, bool]:
        """Return whether a sequence was seen, as (persisted, pushed); see `LastSequences.seen`.

        The call changes nothing, so another thread may open the store at the same time.

        Raises:
            StoreDamaged: a file is damaged.
        """
        return (self._with(identity) if self.kept.window else self.map).seen(identity, sequence)

    def page(
        self, after: bytes | None, limit: int, prefix: bytes = b"", until: bytes | None = None
    ) -> tuple[list[bytes], bool]:
        """Return identities after a given one, ordered by their bytes and including pushed ones.

        The map has no order, so this method reads the ordered store, and adds the few newer identities of the map.
        However many identities the store has, only about `limit` of them are read.

        Args:
            after: identity before the first to return; None: start at the first.
            limit: maximum number of identities.
            prefix: bytes that each identity begins with.
            until: last identity to return; None: no end.

        Returns:
            The identities, and True if none can be missing, see `NAMES_AT_ONCE`.

        Raises:
            StateError: the store is not open.
            StoreDamaged: a file is damaged.
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

    def activity_of(self, identity: bytes) -> tuple[int | None, int | None]:
        """Return an identity's last activity in seconds, and its number of missing sequences.

        Returns:
            None in place of a value that the stream does not record.

        Raises:
            StoreDamaged: a file is damaged.
        """
        return self._with(identity).activity_of(identity)

    def _with(self, identity: bytes) -> LastSequences:
        """Return a map that contains the identity's entry, if there is one.

        Usually it is the loaded map. If only the store may have the entry, it is a new map with that entry alone.
        """
        if not self.beyond or self.store is None or self.map.holds(identity):
            return self.map
        alone = self._empty_map()
        self._take(alone, self.store.find([identity]))
        return alone

    def discard(self) -> None:
        """Close the store and remove its files; the next opening creates a new one."""
        self.release()
        Store.remove(self.path)

    def _forget_rest(self) -> None:
        if self._rest is not None:
            self._rest.close()
            self._rest = None

    def release(self) -> None:
        """Close the store if it is open; the map stays unchanged."""
        self._forget_rest()  # its iterator keeps the store open
        if self.store is not None:
            self.store.close()
            self.store = None
