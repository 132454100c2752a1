"""Damage to files: local stores are deleted or cut short, get a flipped bit, or are replaced by an older copy."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

WAYS = ("folder deleted", "file deleted", "file cut short", "bit flipped", "older copy")


class Damage:
    """Damager of stores of stopped workers; keeps a copy of each store for later."""

    def __init__(self, copies: Path, choose: random.Random) -> None:
        """Remember the arguments; nothing is damaged yet.

        copies: an empty folder for copies of the stores. choose: source of the random choices.
        """
        self._copies, self._choose = copies, choose

    def strike(self, state: Path) -> list[str]:
        """Damage a random choice of the stores below a worker's state folder.

        Returns:
            one line for each damaged store, with its path and the damage, for the log
        """
        stores = sorted(path.parent for path in state.rglob("CURRENT"))
        done = []
        for store in self._choose.sample(stores, self._choose.randint(1, len(stores)) if stores else 0):
            copy = self._copies / store.relative_to(state.parent)
            way = self._choose.choice([way for way in WAYS if way != "older copy" or copy.exists()])
            older = copy.with_suffix(".older")
            shutil.rmtree(older, ignore_errors=True)
            if copy.exists():
                copy.rename(older)
            shutil.copytree(store, copy)
            done.append(f"{store.relative_to(state)}: {self._do(way, store, older)}")
        return done

    def _do(self, way: str, store: Path, older: Path) -> str:
        if way == "folder deleted":
            shutil.rmtree(store)
            return way
        if way == "older copy":
            shutil.rmtree(store)
            shutil.copytree(older, store)
            return way
        # RocksDB's own log and lock are no data.
        files = [
            path
            for path in sorted(store.iterdir())
            if path.stat().st_size and not path.name.startswith(("LOCK", "LOG"))
        ]
        file = self._choose.choice(files)
        if way == "file deleted":
            file.unlink()
            return f"{way}: {file.name}"
        data = bytearray(file.read_bytes())
        at = self._choose.randrange(len(data))
        if way == "file cut short":
            del data[at:]
        else:
            data[at] ^= 1 << self._choose.randrange(8)
        file.write_bytes(data)
        return f"{way}: {file.name} at byte {at}"
