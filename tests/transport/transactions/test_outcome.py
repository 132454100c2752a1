"""Kafka 4.3 calls a transaction complete although a partition that had no leader never got its marker."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from structlog.testing import capture_logs

from faults.kafka import EmbeddedKafka
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import Aborted, TransactionError
from kafka_ratchet.transport.client.cluster import GROUP, LATEST, TRANSACTION, Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.transactions.hanging import (
    ENDED,
    HANGS_AFTER_S,
    end_hanging,
    find_hanging,
    with_known_ends,
)
from kafka_ratchet.transport.transactions.outcome import ORPHANED_FOR_S, OWNER_S, HangingTransaction, OpenAt
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from kafka_ratchet.transport.transactions.requests import TransactionRequests
from tests.clock import let_skip, skip
from tests.transport.kafka_side import read_topic, values
from tests.transport.transactions.test_producer import batch_of
from tests.transport.transactions.test_producer import commit as commit_to

pytestmark = pytest.mark.matrix  # a Kafka of three nodes
INITIALISE = TransactionRequests.initialise
NODE = 3
SHARED = {"changelog": 1, "dead": 2}
LEADERLESS_WITHIN_S = 90.0
PATIENCE_S = 60.0
TIMEOUT_MS = 120_000
"""Time limit of transactions that are open while a node stops."""
NOTED = HangingTransaction(9, True, {("out", 0): OpenAt(1, 7)}, 2)
RECORDED = "ratchet: commit by producer 9, epoch 1, seen at epoch 2"
REFUSES_WHAT_IS_DENIED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class Killed(BaseException):
    """The process is gone."""


def kill_at(patch: pytest.MonkeyPatch, point: str) -> None:
    def crash_point(at: str) -> None:
        if at == point:
            raise Killed

    patch.setattr("kafka_ratchet.transport.transactions.producer.crash_point", crash_point)


class Left(NamedTuple):
    """A transaction that has ended, and that Kafka has left open in `out`."""

    name: str
    out: str

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """All that its id writes to."""
        return [(topic, 0) for topic in (self.out, *SHARED)]


class Case(NamedTuple):
    """Transaction left open for one test. next_is_given_up: another begins in that time, and its lane fails."""

    texts: tuple[bytes, ...]
    commit: bool = True
    next_is_given_up: bool = False


CASES = {
    "end-commit": Case((b"a", b"b")),
    "end-abort": Case((b"a", b"b"), commit=False),
    "end-commit-next-given-up": Case((b"a", b"b"), next_is_given_up=True),
    "killed-noted-commit": Case((b"f", b"g")),
    "killed-owing-commit": Case((b"f", b"g")),
    "killed-owing-abort": Case((b"f", b"g"), commit=False),
    "killed-completing-commit": Case((b"f", b"g")),
    "killed-completing-abort": Case((b"f", b"g"), commit=False),
    "late-noted": Case((b"i",)),
    "late-not-noted": Case((b"i",)),
    "nobody-knows": Case((b"x",)),
    "operator-commit": Case((b"y",)),
    "operator-abort": Case((b"y",), commit=False),
    "operator-recorded-commit": Case((b"y",)),
}
"""Each has an id and an output topic of its own."""


@pytest.fixture(scope="module")
def kafka(three_nodes: EmbeddedKafka) -> EmbeddedKafka:
    places = SHARED | {"out": NODE} | dict.fromkeys(map(output, CASES), NODE)
    admin = three_nodes.admin()
    # What these tests write has old timestamps, and Kafka looks for what is too old half a minute after its start.
    config = {"retention.ms": "-1"}
    topics = [NewTopic(topic, 1, replica_assignment=[[node]], config=config) for topic, node in places.items()]
    for created in admin.create_topics(topics).values():
        created.result(30)
    return three_nodes


@pytest.fixture(scope="module")
def left_open(kafka: EmbeddedKafka) -> dict[str, Left]:
    """Leave the transactions of all cases open, together: a node's restart takes longer than the rest here."""
    return asyncio.run(leave_open(kafka))


def output(case: str) -> str:
    return f"out-{case}"


@pytest.fixture(autouse=True)
async def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane would begin anew where it takes longer; here that would be another case."""
    let_skip()  # whoever waits for another owner keeps the loop's clock
    monkeypatch.setattr("kafka_ratchet.transport.transactions.producer.COMPLETE_WITHIN_S", PATIENCE_S)


@pytest.fixture
async def cluster(kafka: EmbeddedKafka) -> AsyncIterator[Cluster]:
    cluster = Cluster(client_options(kafka.bootstrap, {}))
    await cluster.start(30)
    for topic in SHARED:
        await cluster.offset(topic, 0, LATEST, "here")
    yield cluster
    await cluster.close()


@pytest.fixture
async def name(cluster: Cluster) -> str:
    return await staying_name(cluster)


async def staying_name(cluster: Cluster) -> str:
    """Return a name for group and transactional id with coordinators on the nodes that stay."""
    for number in range(100):
        name = f"name-{number}-{time.monotonic_ns()}"
        if NODE not in [await coordinator(cluster, kind, name) for kind in (GROUP, TRANSACTION)]:
            return name
    raise AssertionError("every coordinator is on one node")


async def coordinator(cluster: Cluster, kind: int, name: str) -> int:
    while True:
        try:
            return await cluster.coordinator(kind, name)
        except KafkaError:
            await asyncio.sleep(0.1)  # Kafka creates its own topics when they are asked for first


def wait_until_leaderless(kafka: EmbeddedKafka, topic: str) -> None:
    admin = kafka.admin()
    deadline = time.monotonic() + LEADERLESS_WITHIN_S
    while (leader := admin.list_topics(topic, 60).topics[topic].partitions[0].leader) != -1:
        assert time.monotonic() < deadline, f"{topic} is still led by {leader}"
        time.sleep(0.1)


def open_records(kafka: EmbeddedKafka, topic: str) -> int:
    """Records and markers beyond the last stable offset."""
    admin, place = kafka.admin(), TopicPartition(topic, 0)
    ends = [
        admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place].result(30).offset
        for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
    ]
    return int(ends[0] - ends[1])


async def leave_open(kafka: EmbeddedKafka) -> dict[str, Left]:
    """End a transaction of each case, of which Kafka leaves the output open, which it does not tell."""
    cluster = Cluster(client_options(kafka.bootstrap, {}))
    await cluster.start(30)
    left, producers = {}, {}
    for case, (texts, *_) in CASES.items():
        one = left[case] = Left(await staying_name(cluster), output(case))
        producer = producers[case] = TransactionalProducer(cluster, one.name, one.name, TIMEOUT_MS, one.partitions)
        await producer.initialise()
        producer.begin([(one.out, 0), ("changelog", 0)])
        await producer.produce(one.out, 0, batch_of(*texts))
        await producer.produce("changelog", 0, batch_of(b"state"))
        await producer.delivered()
    kafka.nodes[NODE - 1].stop()
    try:
        for case, one in left.items():
            wait_until_leaderless(kafka, one.out)
            producer = producers[case]
            await (producer.commit("changelog", 0, 7) if CASES[case].commit else producer._requests.end(commit=False))
            if CASES[case].next_is_given_up:  # it waits for the leader
                producer.begin([(one.out, 0), ("changelog", 0)])
                await asyncio.sleep(0.5)
                await producer.abort()
    finally:
        kafka.nodes[NODE - 1].start()
    for case, one in left.items():
        await cluster.offset(one.out, 0, LATEST, "here")
        assert open_records(kafka, one.out) == len(CASES[case].texts), "Kafka does not do it any more"
    assert open_records(kafka, "changelog") == 0
    await cluster.close()
    return left


async def initialise_after(seconds: float, producer: TransactionalProducer) -> None:
    """Initialise; so much time passes each time it begins to wait for another owner."""
    waits = 0
    with capture_logs() as said:
        work = asyncio.create_task(producer.initialise())
        while not work.done():
            if sum("another owner may be about to" in line["event"] for line in said) > waits:
                waits += 1
                skip(seconds)
            await asyncio.sleep(0.01)
        await work


async def freeze_after_initialising(requests: TransactionRequests, timeout_ms: int, *, ends_raise: bool) -> None:
    await INITIALISE(requests, timeout_ms, ends_raise=ends_raise)
    skip(PATIENCE_S)


@pytest.mark.parametrize("case", ["end-commit", "end-abort", "end-commit-next-given-up"])
async def test_what_kafka_left_open_ends_as_its_transaction_did(
    kafka: EmbeddedKafka, cluster: Cluster, left_open: dict[str, Left], case: str
) -> None:
    left = left_open[case]
    successor = TransactionalProducer(cluster, left.name, left.name, 30_000, left.partitions)
    await successor.initialise()
    assert open_records(kafka, left.out) == 0
    ended = [b"a", b"b"] if CASES[case].commit else []
    assert values(read_topic(kafka.bootstrap, left.out)) == ended

    successor.begin([(left.out, 0), ("changelog", 0)])
    await successor.produce(left.out, 0, batch_of(b"c"))
    await commit_to(successor, "changelog", 8)
    assert values(read_topic(kafka.bootstrap, left.out)) == [*ended, b"c"]


async def test_what_is_open_in_the_usual_way_is_left_to_the_coordinator(
    kafka: EmbeddedKafka, cluster: Cluster, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for text in (b"d", b"e"):
        producer = TransactionalProducer(cluster, name, name, 30_000, Left(name, "out").partitions)
        await producer.initialise()
        producer.begin([("out", 0)])
        await producer.produce("out", 0, batch_of(text))
        await producer.delivered()
    await commit_to(producer, "changelog", 9)
    assert values(read_topic(kafka.bootstrap, "out")) == [b"e"]
    assert "left open" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("point", "end"),
    [
        ("noted", "commit"),
        ("owing", "commit"),
        ("owing", "abort"),
        ("completing", "commit"),
        ("completing", "abort"),
    ],
)
async def test_whoever_comes_after_one_that_was_killed_over_it_ends_it_as_it_was_to_end(
    kafka: EmbeddedKafka,
    cluster: Cluster,
    left_open: dict[str, Left],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    end: str,
) -> None:
    left = left_open[f"killed-{point}-{end}"]
    owner = TransactionalProducer(cluster, left.name, left.name, TIMEOUT_MS, left.partitions)
    with monkeypatch.context() as patch:
        kill_at(patch, point)
        with pytest.raises(Killed):
            await owner.initialise()
    assert open_records(kafka, left.out) == 2

    successor = TransactionalProducer(cluster, left.name, left.name, 30_000, left.partitions)
    await initialise_after(OWNER_S, successor)
    ended = [b"f", b"g"] if end == "commit" else []
    assert values(read_topic(kafka.bootstrap, left.out)) == ended
    successor.begin([(left.out, 0), ("changelog", 0)])
    await successor.produce(left.out, 0, batch_of(b"h"))
    await commit_to(successor, "changelog", 8)
    assert values(read_topic(kafka.bootstrap, left.out)) == [*ended, b"h"]


async def records(producer: TransactionalProducer) -> bool:
    """Return whether an outcome could be recorded."""
    try:
        await producer._record(NOTED)
    except KafkaError:
        await asyncio.sleep(0.1)
        return False
    return True


async def refuse(*_: object) -> None:
    raise GroupAuthorizationFailedError


@pytest.mark.parametrize("noted", ["noted", "not-noted"])
async def test_whoever_comes_late_to_end_it_starts_again(
    kafka: EmbeddedKafka, cluster: Cluster, left_open: dict[str, Left], monkeypatch: pytest.MonkeyPatch, noted: str
) -> None:
    left = left_open[f"late-{noted}"]
    frozen = TransactionalProducer(cluster, left.name, left.name, 30_000, left.partitions)
    with monkeypatch.context() as patch:
        if noted == "not-noted":  # this user may leave no notes
            patch.setattr("kafka_ratchet.transport.transactions.producer.record_outcome", refuse)
        patch.setattr(TransactionRequests, "initialise", freeze_after_initialising)
        with pytest.raises(Aborted, match="could not complete the hanging transaction within"):
            await frozen.initialise()
    assert open_records(kafka, left.out) == 1  # nothing that a successor could abort

    await initialise_after(OWNER_S, frozen)
    assert values(read_topic(kafka.bootstrap, left.out)) == [b"i"]


async def test_a_note_finds_its_coordinator_when_that_has_moved(cluster: Cluster, name: str) -> None:
    right = await coordinator(cluster, GROUP, name)
    cluster._coordinators[GROUP, name] = right % 3 + 1
    producer = TransactionalProducer(cluster, name, name, 30_000, [])
    with pytest.raises(KafkaError):  # what it knows is looked at again before the next try
        await producer._record(NOTED)
    await producer._record(NOTED)
    assert await cluster.committed(name, "out", 0, "here") == (7, RECORDED)


async def test_without_the_right_to_leave_a_note_it_is_said_and_done_without(
    tmp_path: Path,
) -> None:
    with EmbeddedBroker(tmp_path / "kafka", options=REFUSES_WHAT_IS_DENIED) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        everybody = "User:ANONYMOUS", "*"
        denied = AclBinding(
            ResourceType.GROUP, "id", ResourcePatternType.LITERAL, *everybody, AclOperation.READ, AclPermissionType.DENY
        )
        for created in [*admin.create_acls([denied]).values(), *admin.create_topics([NewTopic("out", 1, 1)]).values()]:
            created.result(30)
        cluster = Cluster(client_options(broker.bootstrap, {}))
        await cluster.start(30)
        await coordinator(cluster, GROUP, "not denied")
        with capture_logs() as said:
            await TransactionalProducer(cluster, "id", "group", 30_000, [])._record(NOTED)
        assert "may not commit offsets for a group named as its transactional id" in said[0]["event"]
        allowed = TransactionalProducer(cluster, "not denied", "group", 30_000, [])
        assert any([await records(allowed) for _ in range(20)])  # its coordinator may still be loading
        assert await cluster.committed("not denied", "out", 0, "here") == (7, RECORDED)
        await cluster.close()


async def test_what_nobody_knows_how_to_end_is_refused(
    kafka: EmbeddedKafka, cluster: Cluster, left_open: dict[str, Left]
) -> None:
    name, out = left = left_open["nobody-knows"]
    # An owner that takes over the id, and dies before it has ended what was open.
    await TransactionalProducer(cluster, name, name, 30_000, []).initialise()

    reason = rf"open in {out}/0, and the transaction's state is Empty.*is unknown"
    with pytest.raises(TransactionError, match=reason):
        await initialise_after(ORPHANED_FOR_S, TransactionalProducer(cluster, name, name, 30_000, left.partitions))
    assert open_records(kafka, out) == 1

    # A person decides, and whoever takes the id over next ends it so.
    later = time.time() + TIMEOUT_MS / 1000 + 2 * HANGS_AFTER_S
    hanging = await find_hanging(cluster, [(out, 0)], TIMEOUT_MS, "here", lambda: later)
    assert [(one.topic, one.start) for one in hanging] == [(out, hanging[0].start)]
    await end_hanging(cluster, name, hanging, "here", commit=True)
    await TransactionalProducer(cluster, name, name, 30_000, left.partitions).initialise()
    assert open_records(kafka, out) == 0


@pytest.mark.parametrize("case", ["operator-commit", "operator-abort", "operator-recorded-commit"])
async def test_an_operator_cannot_end_it_otherwise_than_it_ended(
    kafka: EmbeddedKafka, cluster: Cluster, left_open: dict[str, Left], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    name, out = left = left_open[case]
    if "recorded" in case:  # its next owner has made the coordinator forget
        owner = TransactionalProducer(cluster, name, name, TIMEOUT_MS, left.partitions)
        with monkeypatch.context() as patch:
            kill_at(patch, "owing")
            with pytest.raises(Killed):
                await owner.initialise()
    later = time.time() + TIMEOUT_MS / 1000 + 2 * HANGS_AFTER_S
    hanging = await find_hanging(cluster, [(out, 0)], TIMEOUT_MS, "here", lambda: later)
    end, other = ("commit", "abort") if CASES[case].commit else ("abort", "commit")
    assert [one.ends for one in await with_known_ends(cluster, name, hanging, "here")] == [end]
    with pytest.raises(
        TransactionError, match=f"was {ENDED[end]}, but its marker is missing.*--open-transaction {end}"
    ):
        await end_hanging(cluster, name, hanging, "here", commit=other == "commit")
    assert open_records(kafka, out) == 1

    await end_hanging(cluster, name, hanging, "here", commit=CASES[case].commit)
    await initialise_after(OWNER_S, TransactionalProducer(cluster, name, name, 30_000, left.partitions))
    assert open_records(kafka, out) == 0
    assert values(read_topic(kafka.bootstrap, out)) == [b"y"] * CASES[case].commit
