"""The schedule: injects every fault that a running worker must survive without help, in random order, under load."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from faults.damage import Damage
from faults.environment import SESSION_TIMEOUT_MS, Environment, Worker
from faults.kafka import EmbeddedKafka
from faults.operations import resume
from faults.process import tree
from faults.proxy import Line

log = structlog.get_logger(__name__)

SESSION_S = SESSION_TIMEOUT_MS / 1000
CLOCK_SHIFT_S = 4_000
"""Error of a worker's clock in seconds: a little over an hour. A timestamp may be an hour ahead
(message.timestamp.after.max.ms)."""
FEED_CLOCK_SHIFT_S = 3_500
"""Lead of the events' timestamps in seconds: a little less than an hour, because Kafka refuses events further ahead."""


@dataclass(frozen=True, slots=True)
class FaultCounts:
    """Number of faults of each kind.

    Attributes:
        process_kills: kills of one process of a worker with several; its parent starts another.
        frozen_processes: freezes of one such process; its parent does not notice.
        open_transactions: foreign transactions left open in an input until a worker names them.
        foreign_commits: offsets of an input committed by another client; its partitions halt until the run restores
            these offsets.
        strangers: consumers that join the workers' group before the workers do; the workers wait until such a consumer
            has left.
    """

    worker_kills: int = 0
    zombies: int = 0
    broker_restarts: int = 0
    rebalances: int = 0
    network_faults: int = 0
    damaged_stores: int = 0
    clock_jumps: int = 0
    process_kills: int = 0
    frozen_processes: int = 0
    open_transactions: int = 0
    foreign_commits: int = 0
    strangers: int = 0

    def drawn(self, choose: random.Random) -> list[str]:
        """Return the names of the faults in random order, each as often as it is planned."""
        names = [field.name for field in fields(self) for _ in range(getattr(self, field.name))]
        choose.shuffle(names)
        return names


class Schedule:
    """Schedule of faults.

    The last worker joins and leaves; all other workers run all the time.
    """

    def __init__(
        self, environment: Environment, kafka: EmbeddedKafka, choose: random.Random, say: Callable[[str], None]
    ) -> None:
        """Prepare the schedule without starting anything.

        Args:
            environment: environment with at least three workers.
            kafka: Kafka of the environment.
            choose: source of all random choices.
            say: function called with each fault, a line at a time.
        """
        self.environment, self._kafka, self._choose, self._say = environment, kafka, choose, say
        self.home, self.guest = environment.workers[:-1], environment.workers[-1]
        self.counts: Counter[str] = Counter()
        self.ready_s: list[float] = []
        """Seconds from each kill until every partition had committed something new."""
        self._damage = Damage(environment.folder / "copies", choose)

    def run(self, plan: FaultCounts, total: int) -> None:
        """Inject the planned faults, while the feed sends `total` events.

        Raises:
            FaultRunFailed: the environment did not recover.
        """
        since = self.environment.positions()
        for worker in self.home:
            worker.start()
        self.environment.wait_for_progress(since, "the first commits")
        drawn = plan.drawn(self._choose)
        for done, name in enumerate(drawn, 1):
            began = time.monotonic()
            what = getattr(self, f"_{name}")()
            self.counts[name] += 1
            self._say(f"{done}/{len(drawn)} {what} ({time.monotonic() - began:.1f} s)")
            self.environment.feed.allow(total * done // len(drawn))
        for worker in self.home:
            if not worker.is_running:
                worker.start()

    def _choose_permanent(self) -> Worker:
        """Start the permanent workers that do not run, and choose one of all permanent workers."""
        for worker in self.home:
            if not worker.is_running:
                worker.start()
        return self._choose.choice(self.home)

    def _pause(self, most_s: float, least_s: float = 0.0) -> None:
        time.sleep(self._choose.uniform(least_s, most_s))

    def _worker_kills(self) -> str:
        worker = self._choose_permanent()
        since, began = self.environment.positions(), time.monotonic()
        worker.kill()
        if self._choose.random() < 0.3:  # else it is back unnoticed
            self._pause(2 * SESSION_S)
        worker.start()
        self.environment.wait_for_progress(since, f"progress after {worker.name} was killed")
        self.ready_s.append(time.monotonic() - began)
        return f"{worker.name} killed"

    def _zombies(self) -> str:
        worker = self._choose_permanent()
        since = self.environment.positions()
        worker.freeze()
        self.environment.wait_for_progress(since, f"the others taking over from {worker.name}, which is frozen")
        self._pause(SESSION_S)
        worker.mark()
        process = worker.process()
        worker.thaw()
        self.environment.wait_for(
            lambda: not process.is_running or worker.has_logged("partitions assigned"),
            f"{worker.name} rejoining or ending",
        )
        self.environment.wait_for_progress(self.environment.positions(), f"progress after {worker.name} was thawed")
        return f"{worker.name} frozen and thawed: " + (
            "rejoined" if process.is_running else f"ended with {process.wait()}"
        )

    def _broker_restarts(self) -> str:
        node = self._choose.choice(self._kafka.nodes)
        since = self.environment.positions()
        hard = self._choose.random() < 0.5
        (node.kill if hard else node.stop)()
        self._pause(2.0)
        node.start()
        self.environment.wait_for_progress(since, "progress after the broker's return")
        return "broker killed and restarted" if hard else "broker stopped and restarted"

    def _rebalances(self) -> str:
        guest = self.guest
        if not guest.is_running:
            guest.start()
            what = "joins"
        elif self._choose.random() < 0.75:
            guest.stop()
            what = "leaves"
        else:
            guest.kill()
            what = "is gone"
        self._pause(5.0, 1.0)
        if self.counts["rebalances"] % 10 == 9:
            self.environment.wait_for_progress(self.environment.positions(), "progress between rebalances")
        return f"{guest.name} {what}"

    def _network_faults(self) -> str:
        worker = self._choose_permanent()
        line = self._choose.choice([Line.CUT, Line.DELAYED, Line.SILENT])
        since = self.environment.positions()
        self._kafka.line(worker.number, line)
        self._pause(3 * SESSION_S, 0.5)
        self._kafka.line(worker.number, Line.OPEN)
        self.environment.wait_for_progress(since, f"progress after {worker.name}'s network was {line}")
        return f"{worker.name}'s network {line}"

    def _damaged_stores(self) -> str:
        worker = self._choose_permanent()
        since = self.environment.positions()
        worker.kill()
        worker.wait_for_orphans()
        done = self._damage.strike(worker.state)
        worker.start()
        self.environment.wait_for_progress(since, f"progress after {worker.name}'s stores were damaged: {done}")
        return f"{worker.name} killed, stores: {', '.join(done) or 'none yet'}"

    def _clock_jumps(self) -> str:
        worker = self._choose_permanent()
        since = self.environment.positions()
        worker.kill()
        shift = self._choose.choice([-CLOCK_SHIFT_S, CLOCK_SHIFT_S])
        self.environment.feed.clock_shift_s = self._choose.choice([-FEED_CLOCK_SHIFT_S, 0, FEED_CLOCK_SHIFT_S])
        worker.start(clock_shift_s=shift)
        self.environment.wait_for_progress(since, f"progress of {worker.name} with its clock {shift:+} s off")
        process = worker.process()
        self.environment.wait_for(
            lambda: worker.has_logged("partitions assigned") or not process.is_running, f"{worker.name} joining"
        )
        for pid in tree(worker.process().pid):  # those with a clock of their own
            os.kill(pid, signal.SIGHUP)
        self.environment.wait_for_progress(
            self.environment.positions(), f"progress of {worker.name} after its clock jumped"
        )
        return f"{worker.name} killed, back with its clock {shift:+} s off, which then jumps to {-shift:+} s"

    def _open_transactions(self) -> str:
        self._choose_permanent()
        topic, number = self._choose.choice(list(self.environment.inputs.items()))
        partition = self._choose.randrange(number)
        since, name = self.environment.positions(), f"foreign-{self.counts['open_transactions']}"
        producer = Producer({"bootstrap.servers": self._kafka.bootstrap, "transactional.id": name, "log_level": 0})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(topic, b"of a transaction that is rolled back", partition=partition)
        producer.flush(60)
        workers = [worker for worker in self.environment.workers if worker.is_running]
        for worker in workers:
            worker.mark()
        named = f"wait for an open transaction (transactional id '{name}'"
        waited_s = self.environment.wait_for(
            lambda: any(worker.has_logged(named) for worker in workers), f"the sentence about {name}, open in {topic}"
        )
        producer.abort_transaction(60)
        self.environment.wait_for_progress(since, f"progress after {name} was rolled back")
        return f"{name} open in {topic}, partition {partition}; named after {waited_s:.1f} s"

    def _foreign_commits(self) -> str:
        self._kill_all()
        kind = self._choose.choice(self.environment.kinds)
        topic = f"{self.environment.app}.{kind}.in"
        count = self.environment.inputs[topic]
        ends = self._kafka.ends({topic: count})
        offsets = [
            TopicPartition(topic, number, self._choose.choice([0, ends[topic, number]])) for number in range(count)
        ]
        client = Consumer(self._in_group("foreign"))
        client.commit(offsets=offsets, asynchronous=False)
        client.close()
        since = self.environment.positions()
        for worker in self.home:
            worker.start()
        sentence = re.compile(rf"{re.escape(topic)}, partition (\d+): another client has committed offset")

        def are_halted() -> bool:
            output = "".join(worker.output_since_mark() for worker in self.home)
            return len({*sentence.findall(output)}) == count

        waited_s = self.environment.wait_for(are_halted, f"the halt of {count} partitions of {topic}")
        resume(self.environment, f"by-{kind}")
        others = {place: offset for place, offset in since.items() if place[0] != topic}
        self.environment.wait_for_progress(others, "progress of untouched streams")
        own = {place: offset for place, offset in self.environment.positions().items() if place[0] == topic}
        self.environment.wait_for_progress(own, f"progress after the offsets of {topic} were restored")
        return f"offsets of {topic} committed by another client; {count} partitions halted after {waited_s:.1f} s"

    def _strangers(self) -> str:
        self._kill_all()
        topic = self._choose.choice([*self.environment.inputs])
        protocol = ("classic", "consumer")[self.counts["strangers"] % 2]
        stranger = Consumer(self._in_group("stranger") | {"group.protocol": protocol, "enable.auto.commit": False})
        stranger.subscribe([topic])

        def has_joined() -> bool:
            stranger.poll(0.2)
            return bool(stranger.assignment())

        self.environment.wait_for(has_joined, f"a consumer of the {protocol} protocol in the group")
        since = self.environment.positions()
        for worker in self.home:
            worker.start()

        def are_refused() -> bool:
            stranger.poll(0.2)
            return all(worker.has_logged("client id 'stranger'") for worker in self.home)

        self.environment.wait_for(are_refused, "the sentence about the stranger")
        stranger.close()
        waited_s = self.environment.wait_for_progress(since, "progress after the stranger has left")
        return f"a consumer of the {protocol} protocol in the group; progress {waited_s:.1f} s after it has left"

    def _kill_all(self) -> None:
        """Kill all workers, and wait until Kafka has no member of their group any more."""
        for worker in self.environment.running():
            worker.kill()
            worker.wait_for_orphans()
        admin, group = self._kafka.admin(), self.environment.app

        def is_empty() -> bool:
            try:
                return not admin.describe_consumer_groups([group], request_timeout=10)[group].result().members
            except KafkaException:
                return False

        self.environment.wait_for(is_empty, "the end of the members' sessions")

    def _in_group(self, client: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._kafka.bootstrap,
            "group.id": self.environment.app,
            "client.id": client,
            "log_level": 0,
        }

    def _process_kills(self) -> str:
        worker, number = self._choose_permanent(), self._choose.randrange(self.environment.processes)
        since, pid, began = self.environment.positions(), worker.child(number), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.environment.wait_for_progress(since, f"progress after process {number} of {worker.name} was killed")
        self.ready_s.append(time.monotonic() - began)
        return f"process {number} of {worker.name} killed"

    def _frozen_processes(self) -> str:
        worker, number = self._choose_permanent(), self._choose.randrange(self.environment.processes)
        pid, since = worker.child(number), self.environment.positions()
        os.kill(pid, signal.SIGSTOP)
        self.environment.wait_for_progress(
            since, f"others taking over from process {number} of {worker.name}, which is frozen"
        )
        self._pause(SESSION_S)
        worker.mark()
        os.kill(pid, signal.SIGCONT)
        self.environment.wait_for(
            lambda: worker.has_logged("partitions assigned"),
            f"process {number} of {worker.name} rejoining or being replaced",
        )
        self.environment.wait_for_progress(self.environment.positions(), "progress after that")
        again = "rejoined" if worker.child(number) == pid else "ended, and was replaced"
        return f"process {number} of {worker.name} frozen and thawed: {again}"
