"""Program that a reader's fault run kills: copies a topic into a table, and may kill itself at a chosen moment.

It also raises an error once, after it has written rows, and continues with the same reader, as a program that handles
its errors.

Arguments: store, where, bootstrap, topic, group or `-`, moment or `-`, until_end or `-`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

from kafka_ratchet.reader import Duckdb, Postgres, Reader, Sqlite, Transaction
from kafka_ratchet.reader.stores.database import Database, Store

TABLE: Final = "bill"
NAME: Final = "billing"

BEFORE: Final = "before-commit"
"""Moment to die at: the rows are written and the positions are not."""
IN: Final = "in-commit"
"""Moment to die at: rows and positions are written, and the transaction is still open."""
AFTER: Final = "after-commit"
"""Moment to die at: the database has committed, and the program does not know it yet."""

MOST: Final = 40
"""Maximum records of a transaction. Small transactions give many commits, and so many moments for a kill."""


SLIPS_AT: Final = 2
"""Transaction, counted from the first, in which the program raises an error once; it continues with the same
reader.
"""


class HandledError(Exception):
    """Error that the program raises and handles itself."""


def store_of(kind: str, where: str) -> Store:
    """Return the store of a run's database."""
    if kind == "postgres":
        return Postgres(where)
    return Sqlite(where) if kind == "sqlite" else Duckdb(where)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in_commit(database: Database, moment: str) -> None:
    commit = database.commit

    def dying() -> None:
        if moment == IN:
            _die()
        commit()
        _die()

    database.commit = dying  # type: ignore[method-assign]


def main() -> None:
    """Copy the topic's records into the table, until the topic's end or a kill."""
    kind, where, bootstrap, topic, group, moment, until_end = sys.argv[1:]
    store, transactions = store_of(kind, where), 0
    mark = "%s" if kind == "postgres" else "?"
    statement = f"INSERT INTO {TABLE} VALUES ({mark}, {mark}, {mark})"  # noqa: S608

    def write(transaction: Transaction) -> None:
        nonlocal transactions
        transactions += 1
        rows = [(int(event.value or b""), event.partition, event.offset) for event in transaction.events]
        transaction.executemany(statement, rows)
        print(f"took {len(rows)}", flush=True)
        if transactions == SLIPS_AT:
            raise HandledError
        if transactions == 3 and moment == BEFORE:
            _die()
        if transactions == 3 and moment in (IN, AFTER):
            _die_in_commit(reader._ours.database, moment)  # noqa: SLF001 - the moment that is looked for is in there

    options: dict[str, str | int | bool] = {"bootstrap.servers": bootstrap, "session.timeout.ms": 6000}
    with Reader(
        topic, store=store, name=NAME, options=options, group=None if group == "-" else group, max_records=MOST
    ) as reader:
        print("ready", flush=True)
        try:
            reader.run(write, until_end=until_end != "-")
        except HandledError:
            reader.run(write, until_end=until_end != "-")
    print("done", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main()
