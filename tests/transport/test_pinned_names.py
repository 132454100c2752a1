"""Names inside of Faust and aiokafka that Ratchet relies on, beyond what they promise.

When one of these fails after an upgrade: read the named module of ours, see what the library does now, change both.
"""

from __future__ import annotations

import asyncio
import inspect
from importlib.metadata import version
from typing import Any

import aiokafka.codec
import aiokafka.conn
import aiokafka.errors
import faust
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer import AIOKafkaConsumer
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from aiokafka.protocol.types import CompactArray, CompactString, TaggedFields
from faust.assignor.partition_assignor import PartitionAssignor
from faust.channels import Channel
from faust.stores.base import Store
from faust.tables.base import Collection
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery, ServiceStopped
from faust.tables.table import Table
from faust.transport.conductor import Conductor
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from mode import Service
from mode.threads import ServiceThread
from mode.utils.queues import FlowControlEvent, ThrowableQueue

from kafka_ratchet.transport.client.topic_id import FetchByIdRequest, TopicsRequest

PINS = {"faust-streaming": "0.15.3", "aiokafka": "0.14.0"}

CLUSTER, TRANSACTION = "transport/client/cluster.py", "transport/transactions/requests.py"
CONNECTING = "transport/client/cluster.py"
PRODUCER = "transport/transactions/producer.py"
LANES, COMPRESSION = "transport/assignment.py", "transport/batch/compression.py"
DESCRIBE, CONNECTION = "transport/client/describe.py", "transport/client/connection.py"
RECEIVING = "transport/client/receiving.py"
HANGING, BY_ID = "transport/transactions/outcome.py", "transport/client/topic_id.py"
APPLICATION, FAUST_APP = "app/worker/application.py", "app/worker/faust_app.py"
TABLE, SECURITY = "tables/table.py", "transport/client/security.py"

SIGNATURES: list[tuple[str, Any, str, list[str]]] = [
    (CONNECTING, AIOKafkaClient, "__init__", ["bootstrap_servers", "client_id", "request_timeout_ms"]),
    (SECURITY, AIOKafkaClient, "__init__", ["ssl_context", "security_protocol", "sasl_mechanism"]),
    (SECURITY, AIOKafkaClient, "__init__", ["sasl_plain_username", "sasl_plain_password"]),
    (SECURITY, AIOKafkaClient, "__init__", ["sasl_kerberos_service_name"]),
    (CONNECTING, AIOKafkaClient, "bootstrap", []),
    (CLUSTER, AIOKafkaClient, "close", []),
    (CLUSTER, AIOKafkaClient, "send", ["node_id", "request", "group"]),
    (CONNECTION, AIOKafkaConnection, "close", ["reason", "exc"]),
    (CONNECTION, AIOKafkaConnection, "_next_correlation_id", []),
    (RECEIVING, AIOKafkaConnection, "_handle_frame", ["resp"]),
    (RECEIVING, AIOKafkaConnection, "_create_reader_task", []),
    (RECEIVING, AIOKafkaConnection, "_on_read_task_error", ["self_ref", "read_task"]),
    (CLUSTER, AIOKafkaClient, "add_topic", ["topic"]),
    (CLUSTER, AIOKafkaClient, "force_metadata_update", []),
    (CLUSTER, AIOKafkaClient, "coordinator_lookup", ["coordinator_type", "coordinator_key"]),
    (CLUSTER, ClusterMetadata, "partitions_for_topic", ["topic"]),
    (CLUSTER, ClusterMetadata, "leader_for_partition", ["partition"]),
    (CLUSTER, ClusterMetadata, "broker_metadata", ["broker_id"]),
    (CLUSTER, aiokafka.errors, "for_code", ["error_code"]),
    (COMPRESSION, aiokafka.codec, "snappy_encode", ["payload"]),
    (DESCRIBE, RequestStruct, "build_request_header", ["correlation_id", "client_id"]),
    (DESCRIBE, RequestStruct, "parse_response_header", ["read_buffer"]),
    (DESCRIBE, CompactArray, "decode", ["data"]),
    (DESCRIBE, CompactString, "decode", ["data"]),
    (DESCRIBE, TaggedFields, "decode", ["data"]),
    (LANES, SubscriptionState, "fetch_context", []),
    (LANES, PartitionAssignor, "assigned_actives", []),
    (LANES, PartitionAssignor, "assigned_standbys", []),
    (LANES, GroupCoordinator, "request_rejoin", []),
    (LANES, GroupCoordinator, "check_errors", []),
    (LANES, Channel, "__init__", ["app", "maxsize"]),
    (LANES, Channel, "put", ["value"]),
    (LANES, Recovery, "__init__", ["app", "tables"]),
    (LANES, Recovery, "add_active", ["table", "tp"]),
    (LANES, Recovery, "add_standby", ["table", "tp"]),
    (LANES, FlowControlEvent, "__init__", ["initially_suspended"]),
    (TABLE, Store, "__init__", ["url", "app", "table", "table_name"]),
    (TABLE, Store, "persisted_offset", ["tp"]),
    (TABLE, Store, "set_persisted_offset", ["tp", "offset"]),
    (TABLE, Store, "need_active_standby_for", ["tp"]),
    (TABLE, Store, "apply_changelog_batch", ["batch", "to_key", "to_value"]),
    (TABLE, Store, "backup_partition", []),
    (TABLE, Store, "restore_backup", []),
    (TABLE, Store, "reset_state", []),
    (TABLE, Collection, "__init__", ["app", "name", "key_type", "value_type", "partitions"]),
    (TABLE, Table, "_new_store", []),
    (TABLE, Table, "_changelog_topic_name", []),
    (APPLICATION, TableManager, "add", ["table"]),
    (FAUST_APP, faust.App, "_new_conductor", []),
    (FAUST_APP, faust.App, "_new_transport", []),
    (FAUST_APP, faust.App, "_init_fixups", []),
    (FAUST_APP, faust.App, "_on_agent_error", ["agent", "exc"]),
    (FAUST_APP, faust.Agent, "__init__", ["fun", "app", "name", "channel", "on_error", "help", "use_reply_headers"]),
    (FAUST_APP, Conductor, "add", ["topic"]),
    (APPLICATION, faust.App, "agent", ["channel", "name"]),
    (APPLICATION, faust.App, "start", []),
    (APPLICATION, faust.App, "stop", []),
    (APPLICATION, Service, "wait_until_stopped", []),
    (FAUST_APP, faust.SASLCredentials, "__init__", ["username", "password", "mechanism", "ssl_context"]),
    (FAUST_APP, faust.SSLCredentials, "__init__", ["context"]),
]


@pytest.mark.parametrize("distribution", PINS)
def test_versions(distribution: str) -> None:
    assert version(distribution) == PINS[distribution], (
        f"{distribution} is {version(distribution)}, not {PINS[distribution]}. If all other tests of this folder pass, "
        "raise the pin in pyproject.toml and here"
    )


@pytest.mark.parametrize(("ours", "owner", "name", "parameters"), SIGNATURES)
def test_what_is_called_takes_these_arguments(ours: str, owner: Any, name: str, parameters: list[str]) -> None:
    called = f"{getattr(owner, '__module__', '')} {owner.__name__}.{name}"
    found = getattr(owner, name, None)
    assert callable(found), f"{called} is gone; {ours} calls it"
    known = inspect.signature(found).parameters
    missing = [parameter for parameter in parameters if parameter not in known]
    assert not missing, f"{called} takes no {', '.join(missing)} any more; {ours} gives it"


REQUESTS: list[tuple[str, Any, tuple[Any, ...], int]] = [
    # The highest version that is known to be answered as our modules read the answer.
    (CLUSTER, OffsetFetchRequest, ("g", [("t", [0])]), 3),
    (HANGING, OffsetCommitRequest, ("g", -1, "", -1, [("t", [(0, 5, "")])]), 3),
    (CLUSTER, OffsetRequest, (-1, 1, [("t", [(0, -1)])]), 3),
    (CLUSTER, DescribeConfigsRequest, ([(2, "t", ["max.message.bytes"])],), 2),
    (BY_ID, TopicsRequest, (["t"],), 12),
    (BY_ID, FetchByIdRequest, (bytes(16), 0, 0, -1, 1 << 20, 250), 13),
    (TRANSACTION, ProduceRequest, ("id", -1, 30_000, [("t", [(0, b"")])]), 7),
    (TRANSACTION, InitProducerIdRequest, ("id", 60_000), 0),
    (TRANSACTION, AddPartitionsToTxnRequest, ("id", 1, 0, [("t", [0])]), 0),
    (TRANSACTION, AddOffsetsToTxnRequest, ("id", 1, 0, "g"), 0),
    (TRANSACTION, TxnOffsetCommitRequest, ("id", "g", 1, 0, [("t", [(0, 5, "")])]), 0),
    (TRANSACTION, EndTxnRequest, ("id", 1, 0, True), 0),
]


@pytest.mark.parametrize(("ours", "request_class", "arguments", "highest"), REQUESTS)
def test_requests_and_their_versions(ours: str, request_class: Any, arguments: tuple[Any, ...], highest: int) -> None:
    name = request_class.__name__
    request = request_class(*arguments)
    versions = [cls.API_VERSION for cls in request_class._CLASSES]
    assert max(versions) == highest, (
        f"aiokafka's {name} now goes up to version {max(versions)}, was {highest}: check that {ours} reads that answer"
    )
    built = request.build(request_class._CLASSES[-1])
    assert built.encode(), f"aiokafka's {name} cannot be encoded as {ours} fills it"


RESPONSES: list[tuple[str, str, Any, list[str]]] = [
    (CLUSTER, "offsets", OffsetRequest, ["partition", "error_code", "timestamp", "offset"]),
    (CLUSTER, "committed", OffsetFetchRequest, ["partition", "offset", "metadata", "error_code"]),
    (HANGING, "record_outcome", OffsetCommitRequest, ["partition", "error_code"]),
    (TRANSACTION, "_produce", ProduceRequest, ["partition", "error_code", "offset"]),
]


@pytest.mark.parametrize(("ours", "where", "request_class", "names"), RESPONSES)
def test_where_the_answers_keep_what_is_read(ours: str, where: str, request_class: Any, names: list[str]) -> None:
    for cls in request_class._CLASSES:
        if (request_class, cls.API_VERSION) == (OffsetRequest, 0):
            continue  # another form, which no broker from 4.0 on speaks
        schema = cls.RESPONSE_TYPE.SCHEMA
        topics = schema.fields[schema.names.index("topics")].array_of
        partitions = topics.fields[1].array_of
        assert list(partitions.names[: len(names)]) == names, (
            f"aiokafka's answer to {cls.__name__} has other fields; {ours} ({where}) unpacks them by place"
        )


ERRORS: list[tuple[str, str, int]] = [
    (CLUSTER, "OffsetOutOfRangeError", 1),
    (CLUSTER, "LeaderNotAvailableError", 5),
    (PRODUCER, "MessageSizeTooLargeError", 10),
    (PRODUCER, "RecordListTooLargeError", 18),
    (TRANSACTION, "GroupLoadInProgressError", 14),
    (TRANSACTION, "GroupCoordinatorNotAvailableError", 15),
    (TRANSACTION, "NotCoordinatorForGroupError", 16),
    (HANGING, "GroupAuthorizationFailedError", 30),
    (TRANSACTION, "InvalidProducerEpoch", 47),
    (TRANSACTION, "InvalidTxnState", 48),
    (TRANSACTION, "InvalidProducerIdMapping", 49),
    (PRODUCER, "InvalidTransactionTimeout", 50),
    (TRANSACTION, "ConcurrentTransactions", 51),
    (TRANSACTION, "TransactionalIdAuthorizationFailed", 53),
]


@pytest.mark.parametrize(("ours", "name", "number"), ERRORS)
def test_error_numbers(ours: str, name: str, number: int) -> None:
    cls = getattr(aiokafka.errors, name, None)
    sentence = f"aiokafka.errors.{name} no longer stands for Kafka's error {number}; {ours} catches it"
    assert cls is not None, sentence
    assert aiokafka.errors.for_code(number) is cls, sentence
    assert issubclass(cls, aiokafka.errors.KafkaError), sentence


def test_what_a_connection_reads_with() -> None:
    source = inspect.getsource(aiokafka.conn)
    for line in (
        "protocol = AIOKafkaProtocol(self._closed_fut, reader, loop=loop)",
        "self._reader, self._writer, self._protocol = reader, writer, protocol",
        "self._read_task = self._create_reader_task()",
        "correlation_id, request, fut = self._requests[0]",
        "self._last_action = time.monotonic()",
        "if not self._read_task.done():",
        "self._read_task.cancel()",
    ):
        assert line in source, f"aiokafka's connections read differently; see {RECEIVING}"
    drain = inspect.getsource(asyncio.StreamWriter.drain)
    assert "self._protocol._drain_helper()" in drain, f"asyncio drains differently; see {RECEIVING}"


async def test_the_request_timeout_of_a_client() -> None:
    client = AIOKafkaClient(bootstrap_servers="127.0.0.1:1", request_timeout_ms=1_234)
    assert client._request_timeout_ms == 1_234, f"AIOKafkaClient keeps its time-out elsewhere; {CONNECTING} sets it"
    await client.close()


def test_errors_that_have_no_number() -> None:
    for name in ("KafkaConnectionError", "ProducerFenced"):
        assert issubclass(getattr(aiokafka.errors, name), aiokafka.errors.KafkaError), (
            f"aiokafka.errors.{name} has changed; see {CLUSTER}"
        )


@pytest.fixture
def app() -> faust.App:
    return faust.App("pinned", broker="kafka://127.0.0.1:1", autodiscover=False, web_enabled=False)


def test_lane_channel_replaces_the_queue_of_a_channel(app: faust.App) -> None:
    sentence = f"faust.Channel keeps its queue elsewhere; see LaneChannel in {LANES}"
    channel = Channel(app, maxsize=3)
    assert channel._queue is None, sentence
    assert isinstance(Channel.queue, property), sentence
    assert (channel.maxsize, channel.queue is channel._queue) == (3, True), sentence
    queue = ThrowableQueue(maxsize=2, flow_control=FlowControlEvent(initially_suspended=False))
    assert queue.maxsize == 2, sentence


def test_lane_recovery_replaces_that_of_the_table_manager(app: faust.App) -> None:
    sentence = f"faust's TableManager makes its recovery elsewhere; see LaneTableManager in {LANES}"
    manager = TableManager(app)
    assert manager._recovery is None, sentence
    assert isinstance(TableManager.recovery, property), sentence
    assert manager.recovery is manager._recovery, sentence
    source = inspect.getsource(TableManager) + inspect.getsource(Recovery)
    assert "self.add_active(" in source, sentence
    assert "self.add_standby(" in source, sentence


async def test_a_recovery_that_waits_too_long_takes_it_for_a_stop(app: faust.App) -> None:
    try:
        await Recovery(app, app.tables)._wait(asyncio.Event().wait(), timeout=0.01)
    except ServiceStopped:
        return
    pytest.fail(f"mode tells a time-out from a stop; _LaneRecovery in {LANES} need not do so any more")


def test_the_start_of_the_table_manager_waits_and_then_does_two_things() -> None:
    source = inspect.getsource(TableManager.on_start)
    calls = [line.strip() for line in source.splitlines() if "await" in line]
    assert calls == ["await self.sleep(1.0)", "await self._update_channels()", "await self.recovery.start()"], (
        f"faust's TableManager starts differently; see LaneTableManager.on_start in {LANES}"
    )


def test_everybody_is_told_the_whole_assignment() -> None:
    sentence = f"Faust's leader does not tell the whole assignment any more; see Lanes._on_assigned in {LANES}"
    assert isinstance(PartitionAssignor.changelog_distribution, property), sentence
    source = inspect.getsource(PartitionAssignor)
    assert "self.changelog_distribution = metadata.changelog_distribution" in source, sentence
    assert "self._client = " in inspect.getsource(AIOKafkaConsumer), sentence
    assert "self._coordinator = GroupCoordinator(" in inspect.getsource(AIOKafkaConsumer), sentence
    assert "self.thread_loop = " in inspect.getsource(ServiceThread), sentence


async def test_the_way_to_the_fetch_context(app: faust.App) -> None:
    sentence = f"the group is told elsewhere that a worker polls; see Lanes._stay_alive in {LANES}"
    consumer = inspect.getsource(type(app.transport).Consumer) + inspect.getsource(
        inspect.getmodule(faust.transport.base.Transport.Consumer)  # type: ignore[arg-type]
    )
    assert "_thread" in consumer, sentence
    assert "self._consumer = self._create_consumer(" in inspect.getsource(AIOKafkaConsumerThread), sentence
    assert "self._subscription = SubscriptionState(" in inspect.getsource(AIOKafkaConsumer), sentence
    state = SubscriptionState()
    state._last_fetch_ended -= 1_000.0
    assert state.fetcher_idle_time >= 1_000.0, sentence
    with state.fetch_context():
        assert state.fetcher_idle_time == 0, sentence
    assert state.fetcher_idle_time < 1_000.0, sentence


def test_what_is_heard_of_the_group() -> None:
    sentence = f"aiokafka tells elsewhere what keeps a worker out of its group; see Lanes._check_membership in {LANES}"
    source = inspect.getsource(GroupCoordinator)
    for name in ("self._coordination_task = ", "self._heartbeat_task = ", "self._pending_exception = "):
        assert name in source, sentence


def test_what_the_application_reads_of_an_app(app: faust.App) -> None:
    for name in ("on_partitions_assigned", "assignor", "conf", "tables", "crash", "crashed", "crash_reason"):
        assert hasattr(app, name), f"faust.App has no {name}; {APPLICATION} and {LANES} read it"
    for name in ("canonical_url", "datadir"):
        assert hasattr(app.conf, name), f"faust's settings have no {name}; {FAUST_APP} uses it"
    assert app.assignor.assigned_actives() == set()


def test_settings_that_the_application_gives(app: faust.App) -> None:
    given = [
        *("broker", "broker_credentials", "broker_client_id", "broker_session_timeout", "broker_heartbeat_interval"),
        *("broker_request_timeout", "TableManager", "datadir", "topic_disable_leader", "topic_allow_declare"),
        *("web_enabled", "web_host", "autodiscover"),
    ]
    unknown = [name for name in given if name not in type(app.conf).SETTINGS]
    assert not unknown, f"faust has no settings {unknown}; {FAUST_APP} gives them"


def test_a_member_with_an_instance_id_does_not_leave() -> None:
    sentence = f"aiokafka keeps the id elsewhere, or leaves the group; see leave_for_good in {LANES}"
    source = inspect.getsource(GroupCoordinator._maybe_leave_group)
    assert "self._group_instance_id is None" in source, sentence
    assert "group_instance_id=conf.consumer_group_instance_id" in inspect.getsource(AIOKafkaConsumerThread), sentence
