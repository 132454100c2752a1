"""Faults of a reader without Spark: its processes are killed, frozen and rebalanced, its database is restarted.

At the end the table must have each committed record once, and the positions must be the topic's end.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from faults.postgres import PostgresServer, find_postgres, run_postgres
from faults.programs.reader import AFTER, BEFORE, IN, NAME, TABLE, store_of
from kafka_ratchet.app.local.child_process import ChildProcess
from kafka_ratchet.app.local.embedded_kafka import LET_IN_AGAIN_SOON, EmbeddedBroker
from kafka_ratchet.errors import FaultRunFailed
from kafka_ratchet.reader.positions import stored
from kafka_ratchet.reader.topic import TopicReading

STORES: Final = ("sqlite", "postgres", "duckdb")
SHARED: Final = ("sqlite", "postgres")
"""Stores that several processes can have open at a time."""

PARTITIONS: Final = 4
RECORDS: Final = 150
"""Records in one transaction of the publisher. Between two such transactions, a fifth as many are rolled back."""
PAUSE_S: Final = 0.25
"""Seconds between two transactions of the publisher: readers have work and can catch up."""
MOMENTS: Final = (BEFORE, IN, AFTER, "-", "-", "-")
"""Points where a process kills itself; `-`: the run kills it, at a random moment."""
OTHERS: Final = 5
"""Number of kills after which the run freezes a reader once, and restarts the database once."""
PATIENCE_S: Final = 180.0
"""Seconds after which a step counts as hung."""

Say = Callable[[str], None]


@dataclass
class StoreResult:
    """Actions and findings of a run over one store."""

    kills: int = 0
    frozen: int = 0
    rebalances: int = 0
    """Processes that joined or left a group."""
    restarts: int = 0
    """Restarts of the database."""
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    behind: int = 0
    """Partitions with a stored position other than the end of the topic."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Return True if every record is a row, once, and the positions are the topic's end."""
        return not (self.lost or self.doubled or self.behind) and self.rows > 0


@dataclass
class ReaderResult:
    """Results of all stores."""

    seed: int
    stores: dict[str, StoreResult] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return True if every store has each record once."""
        return bool(self.stores) and all(store.ok for store in self.stores.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the result for the last line of a run."""
        totals = {name: sum(getattr(each, name) for each in self.stores.values()) for name in ("lost", "doubled")}
        return {"seed": self.seed, **totals, "stores": {name: vars(store) for name, store in self.stores.items()}}


def run_reader(kills: int, seed: int, say: Say, folder: Path | None, only: tuple[str, ...] = ()) -> ReaderResult:
    """Kill the readers of each store, freeze them, let groups rebalance, and count the rows.

    Args:
        kills: number of SIGKILLs per store.
        seed: seed of the random moments.
        say: function called with progress, a line at a time.
        folder: new folder for logs and databases, which is kept. None: a temporary one, removed when all is well.
        only: names of stores; none: all that can run here.

    Raises:
        FaultRunFailed: a part did not recover. The folder is kept; `say` has named it.
        SetupError: a part of the environment could not be started.
    """
    result = ReaderResult(seed)
    kept = Path(tempfile.mkdtemp(prefix="ratchet-faults-reader-")) if folder is None else folder
    kept.mkdir(parents=True, exist_ok=True)
    say(f"seed {seed}; logs and data in {kept}")
    names = only or tuple(name for name in STORES if name != "postgres" or find_postgres() is not None)
    with ExitStack() as stack:
        server = stack.enter_context(run_postgres()) if "postgres" in names else None
        broker = stack.enter_context(EmbeddedBroker(kept / "kafka", options=LET_IN_AGAIN_SOON))
        for name in names:
            began = time.monotonic()
            run = _StoreFaults(name, broker.bootstrap, kept / name, server, random.Random(f"{seed} {name}"), say)  # noqa: S311
            result.stores[name] = run.all(kills)
            run.result.seconds = round(time.monotonic() - began, 1)
            say(f"{name}: {vars(run.result)}")
    if folder is None and result.ok:
        shutil.rmtree(kept, ignore_errors=True)
    return result


class _Publisher(threading.Thread):
    """Thread that publishes numbers in transactions, some of them rolled back, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._topic, self._stopped = topic, threading.Event()
        self.committed = 0
        """Number of committed records; they have the numbers from 0 on, each once."""
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"publisher-{topic}", "log_level": 0}
        )
        self._producer.init_transactions(60)

    def run(self) -> None:
        """Publish numbers until stopped; runs in the thread."""
        while not self._stopped.wait(PAUSE_S):
            self._send(range(-RECORDS // 5, 0), commit=False)
            self._send(range(self.committed, self.committed + RECORDS), commit=True)
            self.committed += RECORDS

    def _send(self, numbers: range, *, commit: bool) -> None:
        self._producer.begin_transaction()
        for number in numbers:
            self._producer.produce(self._topic, b"%d" % number, partition=number % PARTITIONS)
        self._producer.flush(60)
        self._producer.commit_transaction(60) if commit else self._producer.abort_transaction(60)

    def stop(self) -> int:
        """Stop after the open transaction, and return how many numbers were committed."""
        self._stopped.set()
        self.join(PATIENCE_S)
        return self.committed


class _StoreFaults:
    def __init__(
        self, kind: str, bootstrap: str, folder: Path, server: PostgresServer | None, chance: random.Random, say: Say
    ) -> None:
        folder.mkdir(parents=True)
        self._kind, self._bootstrap, self._folder, self._chance, self._say = kind, bootstrap, folder, chance, say
        self._server = server if kind == "postgres" else None
        self._where = str(folder / "bill.db") if self._server is None else self._server.url
        self._environment = {} if self._server is None else {"PGPASSWORD": self._server.password}
        own = self._where if self._server is None else f"{self._where}?password={self._server.password}"
        self._store = store_of(kind, own)
        self._topic, self._group = f"orders.{kind}", f"group-{kind}"
        self._started = 0
        self.result = StoreResult()

    def all(self, kills: int) -> StoreResult:
        """Inject all faults, then count, and return the result.

        During the first half of the kills one process reads, and during the second half a group if the store can be
        shared.
        """
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(self._topic, PARTITIONS, 1)])[self._topic].result(60)
        with self._database() as execute:
            execute(f"CREATE TABLE {TABLE} (value bigint, kafka_partition integer, kafka_offset bigint)")
        publisher = _Publisher(self._bootstrap, self._topic)
        publisher.start()
        in_group = kills // 2 if self._kind in SHARED else 0
        self._alone(kills - in_group)
        if in_group:
            self._grouped(in_group)
        count = publisher.stop()
        self._finish()
        self._count(count)
        return self.result

    # -- one process has all partitions

    def _alone(self, kills: int) -> None:
        for kill in range(kills):
            moment = self._chance.choice(MOMENTS)
            reader = self._start("-", moment)
            self._wait_for(reader, "took")
            if kill % OTHERS == OTHERS - 1:
                if self._kind in SHARED:
                    reader = self._frozen(reader, moment)
                self._restart_database()
            if moment == "-":
                time.sleep(self._chance.uniform(0, 0.6))
                reader.kill()
            else:
                self._wait_until_ended(reader)
            self.result.kills += 1
            self._say(f"{self._kind}: kill {self.result.kills} ({'wherever it was' if moment == '-' else moment})")

    def _frozen(self, reader: ChildProcess, moment: str) -> ChildProcess:
        """Freeze a reader, start a second one that takes over, and thaw the first: its commit must be refused.

        Returns:
            the second reader
        """
        reader.freeze()
        second = self._start("-", moment if self._kind == "postgres" else "-")
        if self._kind == "postgres":
            self._wait_for(second, "took")
        else:
            # SQLite's lock may be the frozen one's: the second can only wait for it.
            time.sleep(self._chance.uniform(0, 1))
        reader.thaw()
        self._wait_until_ended(reader)
        self.result.frozen += 1
        if self._kind == "sqlite":
            self._wait_for(second, "took")
            if moment != "-":
                second.kill()
        return second

    # -- a group shares them

    def _grouped(self, kills: int) -> None:
        readers = [self._start(self._group), self._start(self._group)]
        last, turn = self.result.kills + kills, 0
        while self.result.kills < last:
            turn += 1
            victim = readers.pop(self._chance.randrange(len(readers)))
            self._wait_for_any([victim, *readers], "took")
            if turn % OTHERS == 0:
                self._restart_database()
            if turn % OTHERS == 2:
                victim.freeze()  # for longer than Kafka's session: its partitions move, and it comes back
                time.sleep(self._chance.uniform(6, 8))
                victim.thaw()
                self.result.frozen += 1
            time.sleep(self._chance.uniform(0, 0.6))
            if self._chance.random() < 0.3:
                if victim.is_running:
                    victim.stop()
            else:
                victim.kill()
                self.result.kills += 1
            readers.append(self._start(self._group))
            self.result.rebalances += 2
            self._say(f"{self._kind}: rebalance {self.result.rebalances}, kill {self.result.kills}")
        for reader in readers:
            reader.kill()

    # -- steps

    def _start(self, group: str, moment: str = "-", until_end: str = "-") -> ChildProcess:
        self._started += 1
        return ChildProcess(
            self._folder, f"reader-{self._started}", self._kind, self._where, self._bootstrap, self._topic, group,
            moment, until_end, module="faults.programs.reader", environment=self._environment,
        )  # fmt: skip

    def _wait_for(self, reader: ChildProcess, word: str) -> None:
        self._wait_for_any([reader], word)

    def _wait_for_any(self, readers: list[ChildProcess], word: str) -> None:
        """Wait until a reader has printed the word, or all have ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(word in reader.log.read_text("utf-8", "replace") for reader in readers):
            if not any(reader.is_running for reader in readers):
                return
            if time.monotonic() > deadline:
                raise FaultRunFailed(f"{readers[0].name} has printed nothing; see {readers[0].log}")
            time.sleep(0.02)

    def _wait_until_ended(self, reader: ChildProcess) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while reader.is_running:
            if time.monotonic() > deadline:
                raise FaultRunFailed(f"{reader.name} should have ended, but still runs; see {reader.log}")
            time.sleep(0.02)
        reader.wait()

    def _restart_database(self) -> None:
        if self._server is not None:
            self._chance.choice((self._server.stop, self._server.crash))()
            self._server.start()
            self.result.restarts += 1

    def _finish(self) -> None:
        reader = self._start("-", "-", "until_end")
        self._wait_until_ended(reader)
        if "done" not in reader.log.read_text("utf-8", "replace"):
            raise FaultRunFailed(f"the last reader did not reach the end of the topic; see {reader.log}")

    def _count(self, count: int) -> None:
        with self._database() as execute:
            found = Counter(int(value) for (value,) in execute(f"SELECT value FROM {TABLE}"))  # noqa: S608
        result = self.result
        result.rows = found.total()
        result.lost = sum(1 for number in range(count) if not found[number])
        result.doubled = sum(times - 1 for times in found.values()) + sum(
            1 for number in found if not 0 <= number < count
        )
        database = self._store.connect("")
        try:
            positions = {row.partition: row.next for row in stored(database) if row.reader == NAME}
        finally:
            database.close()
        ends = TopicReading(self._topic, {"bootstrap.servers": self._bootstrap, "log_level": 0}, 60).ends(
            range(PARTITIONS)
        )
        result.behind = sum(1 for partition, end in ends.items() if positions.get(partition) != end)

    @contextmanager
    def _database(self) -> Iterator[Callable[[str], list[Any]]]:
        database = self._store.connect("")

        def execute(statement: str) -> list[Any]:
            found = database.execute(statement)
            return found.fetchall() if getattr(found, "description", None) else []

        try:
            yield execute
        finally:
            database.close()
