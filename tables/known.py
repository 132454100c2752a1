"""The identities of one partition: the map in memory, and what only the store on disk has."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from kafka_ratchet.errors import StateError, StoreDamaged
from kafka_ratchet.rule.windows import PLAIN, Kept
from kafka_ratchet.tables.map.map import LastSequence, LastSequences
from kafka_ratchet.tables.store import Store
from kafka_ratchet.transport.batch.encoding import pack_entries

LOAD_ENTRIES: Final = 10_000
"""Entries taken from the store into the map at a time; about 15 ms."""
LOAD_AT_ONCE: Final = 50_000
"""Identities loaded before the partition works.

Further ones follow during its work, some after each commit, and a batch's own come first.
"""
NAMES_AT_ONCE: Final = 20_000
"""Identities not yet in the store that a list searches, in some 10 ms.

Where more came since the last snapshot, a list is without them until the next one.
"""
RESIDENT_BYTES: Final = 100
"""Most bytes of an identity in the map: three slots of 33 bytes. Its own bytes are added."""


class KnownIdentities:
    """Identities with a sequence, in the map or in the store alone.

    The map holds as many as fit in its memory budget `room`. When it has outgrown that, everything is saved and the
    map starts empty; from then on an identity without a slot is read from the store before its verdict.
    """

    def __init__(
        self, path: Path, entries_of: tuple[str, int], *, timed: bool, room: Callable[[], int], kept: Kept = PLAIN
    ) -> None:
        """Start without reading.

        Args:
            path: folder of the store.
            entries_of: changelog topic and partition, for messages about an entry.
            timed: True if each identity has a time of activity.
            room: memory budget of the map, in bytes.
            kept: further state of each identity.
        """
        self.path, self.room, self.kept = path, room, kept
        self._entries_of, self._timed = entries_of, timed
        self.map = self._empty_map()
        self.beyond = 0
        """Identities in the store and not in the map."""
        self.store: Store | None = None
        self._rest: Generator[tuple[bytes, bytes], None, None] | None = None
        """Entries not yet taken into the map, as they were when the store was opened."""

    def __len__(self) -> int:
        """Identities with a persisted sequence."""
        return len(self.map) + self.beyond

    def _empty_map(self) -> LastSequences:
        return LastSequences(timed=self._timed, kept=self.kept)

    @property
    def _resident_bytes(self) -> int:
        return RESIDENT_BYTES + 3 * self.kept.bytes

    def load(self, store: Store, identities: int) -> tuple[LastSequences, int]:
        """Return a map of a store's identities, or an empty one if they are too many for now.

        It changes nothing here.

        Args:
            store: open
            identities: number of its identities

        Returns:
            (the map, number of identities in the store alone)

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
        """Take the store's entries of these identities into the map.

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
        """Take some more of the store's entries into the map, unless the map has newer ones.

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
        """Return True while entries of the store wait to be taken into the map."""
        return self._rest is not None

    @property
    def has_outgrown(self) -> bool:
        """Return True if the map exceeds its memory budget."""
        return self.map.outgrows(self.room())

    def leave_to_store(self) -> None:
        """Start with an empty map: everything in it is in the store."""
        self.beyond += len(self.map)
        missing, self.map = self.map.missing, self._empty_map()
        self.map.missing = missing
        self._forget_rest()

    def forget(self) -> None:
        """Know none any more, whatever the store has."""
        self._forget_rest()
        self.map, self.beyond = self._empty_map(), 0

    def last(self, identity: bytes) -> LastSequence:
        """Return an identity's last sequence; -1 is none.

        It changes nothing, so another thread may open the store.

        Raises:
            StoreDamaged: a file is damaged.
        """
        if self.beyond and self.store is not None and not self.map.holds(identity):
            for _, value in self.store.find([identity]):
                sequence = int.from_bytes(value[:8], "big")
                return LastSequence(sequence, sequence)
        return self.map.get(identity)

    def seen(self, identity: bytes, sequence: int) -> tuple[bool, bool]:
        """Return whether a sequence was seen, persisted and pushed: see `LastSequences.seen`.

        It changes nothing, as `last`.

        Raises:
            StoreDamaged: a file is damaged.
        """
        return (self._with(identity) if self.kept.window else self.map).seen(identity, sequence)

    def page(
        self, after: bytes | None, limit: int, prefix: bytes = b"", until: bytes | None = None
    ) -> tuple[list[bytes], bool]:
        """Return identities after `after` in the order of their bytes, pushed ones included.

        The map is in no order: names come from the store, which has them in order, and from the few newer ones of the
        map. However many there are, about `limit` are read.

        Args:
            after: the name before the first one; None: from the first.
            limit: names.
            prefix: their first bytes.
            until: the last name; None: there is no end.

        Returns:
            (at most limit of them; True if none can be missing, see `NAMES_AT_ONCE`).

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

    def told(self, identity: bytes) -> tuple[int | None, int | None]:
        """Return an identity's last activity in seconds, and its number of missing sequences.

        None: it is not kept.

        Raises:
            StoreDamaged: a file is damaged.
        """
        return self._with(identity).told(identity)

    def _with(self, identity: bytes) -> LastSequences:
        """Return the map, or one with the store's entry of this identity."""
        if not self.beyond or self.store is None or self.map.holds(identity):
            return self.map
        alone = self._empty_map()
        self._take(alone, self.store.find([identity]))
        return alone

    def discard(self) -> None:
        """Remove a damaged store; the next opening starts a new one."""
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
