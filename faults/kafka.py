"""The Kafka of a run: one embedded node or three, and proxies between each worker and the nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import structlog
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from faults.proxy import Line, Proxy
from kafka_ratchet.app.local.embedded_kafka import LET_IN_AGAIN_SOON, START_LIMIT_S, EmbeddedBroker, node_settings
from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.errors import BrokerUnavailable, SetupError
from kafka_ratchet.topic_log.clients import committed_positions, consumer

log = structlog.get_logger(__name__)

ASK_S = 10.0
LET_IN_LIMIT_S = START_LIMIT_S / 2
"""Seconds to wait until the cluster knows all nodes, before a restart of the missing ones and again after it. On an
idle machine this takes under a second."""
CLUSTER_ID = "cmF0Y2hldC1mYXVsdHMtIQ"
"""Id of the cluster, the same for all nodes: any 16 bytes in base64."""


class Kafka:
    """Kafka of a run: its address for each worker, a client for its topics, and their offsets.

    copies: replication factor of the run's topics.
    """

    def __init__(self, bootstrap: str, copies: int = 1) -> None:
        self.bootstrap, self.copies = bootstrap, copies

    def bootstrap_of(self, worker: int) -> str:
        """Return the bootstrap servers for the worker of this number."""
        return self.bootstrap

    def admin(self) -> AdminClient:
        """Return a client for topics; keep it while its futures are awaited."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def positions(self, group: str, topics: Mapping[str, int]) -> dict[tuple[str, int], int] | None:
        """Return the committed offsets of a group; 0 for a partition without one.

        Args:
            group: name of the workers' group.
            topics: number of partitions by topic.

        Returns:
            offsets by topic and partition; None while Kafka does not answer.
        """
        # Asked as a reader of uncommitted data, or Kafka would hold the answer back for as long as a killed worker's
        # transaction is open (KIP-447, require_stable).
        places = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
        with consumer({"bootstrap.servers": self.bootstrap}, group, committed=False) as client:
            try:
                found = committed_positions(client, places, ASK_S)
            except BrokerUnavailable:
                return None
        return {(place.topic, place.partition): max(0, place.offset) for place in found}

    def ends(self, topics: Mapping[str, int]) -> dict[tuple[str, int], int]:
        """Return the end offset of each partition, with uncommitted records included, by topic and partition."""
        admin = self.admin()
        wanted = {
            TopicPartition(topic, number): OffsetSpec.latest()
            for topic, count in topics.items()
            for number in range(count)
        }
        deadline = time.monotonic() + ASK_S
        while True:
            answers = admin.list_offsets(wanted, request_timeout=ASK_S)
            found = {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}
            if all(offset >= 0 for offset in found.values()):
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"no leader has returned the end offsets of {sorted(found)}")
            time.sleep(0.2)


class EmbeddedKafka(Kafka):
    """Nodes that can be killed and restarted one by one.

    `bootstrap` connects to them directly, without the proxies.
    """

    def __init__(self, folder: Path, nodes: int, workers: int, options: Mapping[str, str] | None = None) -> None:
        """Choose ports and start the proxies; no node runs yet.

        Args:
            folder: folder for the nodes' data and logs.
            nodes: number of nodes, 1 or 3.
            workers: number of workers with proxies of their own, numbered from 0.
            options: broker settings that replace the embedded broker's.
        """
        voters = {number: f"127.0.0.1:{free_port()}" for number in range(1, nodes + 1)}
        self.nodes: list[EmbeddedBroker] = []
        self._proxies: list[list[Proxy]] = [[] for _ in range(workers)]
        for number in voters:
            port = free_port()
            listeners, advertised = [f"PLAINTEXT://127.0.0.1:{port}"], [f"PLAINTEXT://127.0.0.1:{port}"]
            security = node_settings(number, voters)["listener.security.protocol.map"]
            for worker, proxies in enumerate(self._proxies):
                proxy = Proxy(free_port())
                proxies.append(proxy)
                listeners.append(f"W{worker}://127.0.0.1:{proxy.target}")
                advertised.append(f"W{worker}://127.0.0.1:{proxy.port}")
                security += f",W{worker}:PLAINTEXT"
            listeners.append(f"CONTROLLER://{voters[number]}")
            node = EmbeddedBroker(
                folder / f"node-{number}",
                port=port,
                node_id=number,
                voters=voters,
                cluster_id=CLUSTER_ID,
                options={
                    "listeners": ",".join(listeners),
                    "advertised.listeners": ",".join(advertised),
                    "listener.security.protocol.map": security,
                    **LET_IN_AGAIN_SOON,
                    **(options or {}),
                },
            )
            self.nodes.append(node)
        super().__init__(",".join(node.bootstrap for node in self.nodes), copies=min(3, nodes))

    def __enter__(self) -> EmbeddedKafka:
        try:
            for node in self.nodes:
                node.start(wait=False)
            for node in self.nodes:
                node.wait_until_ready()
            self._wait_until_all_are_let_in()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_until_all_are_let_in(self) -> None:
        """Wait until each node is known to all others, and restart nodes that stay unknown.

        A node answers before the others know it, but no topic can be placed on it yet.
        """
        if not (missing := self._missing(LET_IN_LIMIT_S)):
            return
        # Seen once, on a busy machine, and unexplained. A run does not prove a start: the nodes are
        # restarted, and their output until then is shown.
        for node in missing:
            log.warning("the cluster does not accept a node; restarting it", node=node.describe())
            node.kill()
            node.start()
        if missing := self._missing(LET_IN_LIMIT_S):
            states = "\n".join(node.describe() for node in missing)
            raise SetupError(
                f"not all {len(self.nodes)} nodes have joined the cluster within {LET_IN_LIMIT_S:.0f} s, not even "
                f"after a restart:\n{states}"
            )

    def _missing(self, limit_s: float) -> list[EmbeddedBroker]:
        """Return the nodes still unknown after `limit_s` seconds; empty as soon as all are known."""
        admin, deadline = self.admin(), time.monotonic() + limit_s
        while True:
            known = admin.list_topics(timeout=START_LIMIT_S).brokers
            missing = [node for number, node in enumerate(self.nodes, 1) if number not in known]
            if not missing or time.monotonic() > deadline:
                return missing
            time.sleep(0.05)

    def close(self) -> None:
        """End every node and every proxy."""
        for node in self.nodes:
            node.kill()
        for proxies in self._proxies:
            for proxy in proxies:
                proxy.close()

    def bootstrap_of(self, worker: int) -> str:
        """Return host:port,... of all nodes, through the worker's own proxies."""
        return ",".join(f"127.0.0.1:{proxy.port}" for proxy in self._proxies[worker])

    def proxy(self, worker: int, node: int) -> Proxy:
        """Return the proxy between a worker and a node, by the worker's number and the node's id."""
        return self._proxies[worker][node - 1]

    def line(self, worker: int, line: Line) -> None:
        """Set the state of all network connections of a worker."""
        for proxy in self._proxies[worker]:
            proxy.line = line
