"""Topics whose values name schemas of a registry, read by the job and compared with confluent-kafka's deserializers."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.errors import OptionRefused, RegistryRefused
from kafka_ratchet.spark_sink.job import job as job_module
from kafka_ratchet.spark_sink.job.access import Access
from kafka_ratchet.spark_sink.job.job import run_batch, run_stream
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.recount import recount
from kafka_ratchet.spark_sink.job.run_log import log_run
from kafka_ratchet.spark_sink.job.run_state import RunState, RunSummary
from kafka_ratchet.spark_sink.job.spec import JobSpec
from kafka_ratchet.spark_sink.job.start import with_columns
from tests.spark_sink.schema_registries import APICURIO, OurRegistry, apicurio

TOPICS_OWN = {"subject.name.strategy": topic_subject_name_strategy}


@pytest.fixture
def ours() -> Iterator[OurRegistry]:
    registry = OurRegistry()
    yield registry
    registry.stop()


@pytest.fixture(scope="module")
def apicurios(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with apicurio(tmp_path_factory.mktemp("apicurio")) as url:
        yield url


@pytest.fixture(
    params=["ours", pytest.param("apicurio", marks=pytest.mark.skipif(not APICURIO, reason="RATCHET_APICURIO"))]
)
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "apicurio":
        return str(request.getfixturevalue("apicurios"))
    return str(request.getfixturevalue("ours").url)


class Ingest:
    """The batch job into a Delta table with rejects, by settings as the command line has them."""

    def __init__(self, broker: str, spark: SparkSession, folder: Path) -> None:
        self._broker, self._spark, self.path = broker, spark, str(folder / "table")

    def __call__(self, topic: str, url: str, run: RunState | None = None, **options: Any) -> RunSummary:
        job, planner, store, session = self._parts(topic, url, options)
        return run_batch(job, planner, store, session, run)

    def stream(self, topic: str, url: str, stop: Event, run: RunState, **options: Any) -> RunSummary:
        job, planner, store, session = self._parts(topic, url, options)
        return run_stream(job, planner, store, session, 0.05, stop, run)

    def _parts(self, topic: str, url: str, options: dict[str, Any]) -> Any:
        spec = JobSpec(self._broker, topic, "job", path=self.path, schema_registry=True, rejects=True, **options)
        access = Access(registry={"url": url, "max.retries": "0"})
        pipeline = spec.pipeline(access)
        planner = TopicPlanner(self._broker, topic, {})
        store = spec.result_store(pipeline, access, planner.topic_id())
        return spec.job(pipeline, access), planner, store, lambda: nullcontext(self._spark)

    def rows(self, *, rejects: bool = False) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        found = DeltaTable(f"{self.path}_rejects" if rejects else self.path).to_pyarrow_dataset().to_table()
        return sorted(found.to_pylist(), key=lambda row: row["_kafka_offset"])

    def rejected(self) -> list[int]:
        return [row["_kafka_offset"] for row in self.rows(rejects=True)]


@pytest.fixture
def ingest(broker: str, spark: SparkSession, tmp_path: Path) -> Ingest:
    return Ingest(broker, spark, tmp_path)


@pytest.fixture
def publish(broker: str) -> Callable[..., None]:
    """publish(topic, *values) puts records there; one of them may be a pair of value and headers."""

    def put(topic: str, *values: Any) -> None:
        producer = Producer({"bootstrap.servers": broker})
        for each in values:
            value, headers = each if isinstance(each, tuple) else (each, [])
            producer.produce(topic, value, partition=0, headers=headers)
        assert producer.flush(30) == 0

    return put


def record(name: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "shop", "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


FIRST = record("Order", field("id", "int"), field("who", "string"), field("amount", ["null", "float"]))
SECOND = record(
    "Order",
    field("id", "long"),
    field("who", ["null", "string"]),
    field("amount", ["null", "double", "string"]),
    field("note", "string", default="-"),
)
GROWN = record(
    "Order",
    field("id", "long"),
    field("who", "string"),
    field("amount", ["null", "double"]),
    field("note", "string", default="-"),
)
PLACE = record("Place", field("town", "string"))
THIRD = record("Order", field("id", "long"), field("who", "string"), field("where", "shop.Place"))
READER = record(
    "Order",
    field("number", "long", aliases=["id"]),
    field("who", ["null", "string"]),
    field("amount", ["null", "double"], default=None),
    field("note", "string", default="none"),
)


def test_many_avro_schemas_in_one_topic(
    url: str, ingest: Ingest, new_topic: Callable[..., str], publish: Callable[..., None], caplog: Any
) -> None:
    topic = new_topic(partitions=1)
    client, context = SchemaRegistryClient({"url": url}), SerializationContext(topic, MessageField.VALUE)
    client.register_schema(f"{topic}-place", Schema(json.dumps(PLACE), "AVRO"))
    referring = Schema(json.dumps(THIRD), "AVRO", [SchemaReference("shop.Place", f"{topic}-place", 1)])

    def written(schema: Any, value: dict[str, Any]) -> bytes:
        text = schema if isinstance(schema, Schema) else json.dumps(schema)
        found = AvroSerializer(client, text, None, {**TOPICS_OWN, "auto.register.schemas": True})(value, context)
        assert isinstance(found, bytes)
        return found

    values: list[Any] = [
        written(FIRST, {"id": 1, "who": "Zoë", "amount": 0.5}),
        written(SECOND, {"id": 2**40, "who": None, "amount": ("double", 0.1), "note": "n"}),
        written(referring, {"id": 3, "who": "x", "where": {"town": "Bern"}}),
        None,
    ]
    unread = [
        written(SECOND, {"id": 4, "who": None, "amount": ("string", "much"), "note": ""}),  # no number
        written(record("Payment", field("number", "long")), {"number": 7}),  # not that record
        values[0][:-1],
        values[0] + b"\0",
        b"\0\x7f\xff\xff\xff" + values[0][5:],  # no such id
        b"\x7f" + values[0][1:],  # no magic byte
        b"\0\0\0",
        b"",
    ]
    publish(topic, *values, *unread)
    outcome = ingest(topic, url, format="avro", avro_schema=json.dumps(READER))
    rows = ingest.rows()
    columns = ("number", "who", "amount", "note")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        (1, "Zoë", 0.5, "none"),
        (2**40, None, 0.1, "n"),
        (3, "x", None, "none"),
        (None,) * 4,
    ]
    deserialize = AvroDeserializer(client, json.dumps(READER), conf=TOPICS_OWN)
    for value, row in zip(values[:3], rows, strict=False):
        assert deserialize(value, context) == {name: row[name] for name in columns}
    assert (outcome.rows, outcome.rejects) == (4, len(unread))
    assert [row["_kafka_value"] for row in ingest.rows(rejects=True)] == unread
    said = caplog.text
    assert "1 of schema 2147483647: schema 2147483647 is not in the registry" in said
    assert "values do not parse if they have record shop.Payment, and not shop.Order" in said
    assert "3 without a schema's id in front" in said


def test_columns_are_the_newest_schemas_once_and_grow_where_asked(
    ours: OurRegistry, ingest: Ingest, new_topic: Callable[..., str], publish: Callable[..., None]
) -> None:
    topic = new_topic(partitions=1)
    client, context = SchemaRegistryClient({"url": ours.url}), SerializationContext(topic, MessageField.VALUE)
    publish(topic, b"\0\0\0\0\1\0")
    with pytest.raises(OptionRefused, match=f"subject '{topic}-value' is not in the registry"):
        ingest(topic, ours.url, format="avro")
    in_header = AvroSerializer(
        client, json.dumps(FIRST), None, {**TOPICS_OWN, "schema.id.serializer": header_schema_id_serializer}
    )
    headers: list[tuple[str, bytes]] = []
    value = in_header(
        {"id": 5, "who": "h", "amount": 1.5}, SerializationContext(topic, MessageField.VALUE, headers=headers)
    )
    assert [(name, len(found)) for name, found in headers] == [("__value_schema_id", 17)]
    unknown = [("__value_schema_id", b"\1" + uuid.uuid4().bytes)]
    by_guid = headers[0][1] + value
    publish(topic, (value, [*unknown, *headers]), (value, unknown), by_guid, (by_guid, [("__value_schema_id", None)]))
    publish(topic, (by_guid, [("other", b"x")]))
    assert ingest(topic, ours.url, format="avro").rows == 4
    second = AvroSerializer(client, json.dumps(SECOND), None, TOPICS_OWN)
    publish(topic, second({"id": 6, "who": "w", "amount": None, "note": "new"}, context))
    ingest(topic, ours.url, format="avro")  # the table's columns
    assert [
        set(row) - set("_kafka_partition _kafka_offset _kafka_timestamp _kafka_key".split()) for row in ingest.rows()
    ] == [{"id", "who", "amount"}] * 5
    grown = AvroSerializer(client, json.dumps(GROWN), None, TOPICS_OWN)
    publish(topic, grown({"id": 2**40, "who": "w", "amount": None, "note": "no room"}, context))
    publish(topic, grown({"id": 7, "who": "w", "amount": 0.25, "note": "new"}, context))
    assert ingest(topic, ours.url, format="avro", evolve="add").rows == 1
    assert [(row["id"], row["amount"], row["note"]) for row in ingest.rows()] == [
        (5, 1.5, None),
        (5, 1.5, None),
        (5, 1.5, None),
        (5, 1.5, None),
        (6, None, None),
        (7, 0.25, "new"),
    ]
    assert ingest.rejected() == [0, 2, 7]


def protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    other = file.message_type.add(name="Other")
    other.field.add(name="n", number=1, type=kinds.TYPE_INT64, label=1)
    order = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(
        {"id": kinds.TYPE_UINT64, "who": kinds.TYPE_STRING, "ok": kinds.TYPE_BOOL, "amount": kinds.TYPE_SINT32}.items(),
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=1)
    order.field.add(name="at", number=5, type=kinds.TYPE_MESSAGE, label=1, type_name=".google.protobuf.Timestamp")
    order.field.add(name="ns", number=6, type=kinds.TYPE_INT32, label=3)
    return file


def test_protobuf_by_its_message_indexes(
    url: str, ingest: Ingest, new_topic: Callable[..., str], publish: Callable[..., None], caplog: Any
) -> None:
    topic = new_topic(partitions=1)
    client, context = SchemaRegistryClient({"url": url}), SerializationContext(topic, MessageField.VALUE)
    pool = descriptor_pool.DescriptorPool()
    from google.protobuf import timestamp_pb2

    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(protobuf_file())
    order, other = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{n}")) for n in ("Order", "Other")
    )
    made = order(id=2**64 - 1, who="Zoë", amount=-3, ns=[1, -2, 300])
    made.at.seconds, made.at.nanos = 10, 5_000
    late = order(id=1)
    late.at.nanos = 1
    conf = {**TOPICS_OWN, "use.deprecated.format": False, "skip.known.types": True}
    of_orders, of_others = (ProtobufSerializer(kind, client, conf) for kind in (order, other))
    values = [
        of_orders(made, context),
        of_orders(order(), context),
        of_orders(late, context),
        of_others(other(n=9), context),
    ]
    publish(topic, *values, values[0][:-1], values[0][:5], values[0][:5] + b"\x0c")
    columns = "id decimal(20,0), who string, ok boolean, amount bigint, at timestamp, ns array<int>"
    ingest(topic, url, format="protobuf", columns=columns)
    rows = ingest.rows()
    assert [(row["id"], row["who"], row["ok"], row["amount"], row["ns"]) for row in rows] == [
        (2**64 - 1, "Zoë", False, -3, [1, -2, 300]),
        (0, "", False, 0, []),
    ]
    assert [None if row["at"] is None else row["at"].timestamp() for row in rows] == [10.000005, None]
    assert ingest.rejected() == [2, 3, 4, 5, 6]  # a nanosecond has no place in a timestamp; Other is no Order


def test_last_rows_and_what_verify_makes_of_the_topic(
    ours: OurRegistry,
    ingest: Ingest,
    new_topic: Callable[..., str],
    publish: Callable[..., None],
    spark: SparkSession,
) -> None:
    topic = new_topic(partitions=1)
    client, context = SchemaRegistryClient({"url": ours.url}), SerializationContext(topic, MessageField.VALUE)
    payment = AvroSerializer(client, json.dumps(record("Payment", field("id", "long"))), None, TOPICS_OWN)
    other = payment({"id": 1}, context)
    order = AvroSerializer(client, json.dumps(FIRST), None, TOPICS_OWN)
    values = [order({"id": n % 3, "who": str(n), "amount": None}, context) for n in range(9)]
    publish(topic, *values, other, b"none")
    options: dict[str, Any] = {"format": "avro", "schema_record": "shop.Order", "kind": "upsert", "key": ("id",)}
    with pytest.raises(OptionRefused, match=r"it is 'shop\.Order', not 'shop\.Refund'"):
        ingest(topic, ours.url, **{**options, "schema_record": "shop.Refund"})
    ingest(topic, ours.url, **options)
    assert sorted((row["id"], row["who"]) for row in ingest.rows()) == [(0, "6"), (1, "7"), (2, "8")]
    assert ingest.rejected() == [9, 10]
    job, planner, store, _ = ingest._parts(topic, ours.url, options)
    found = with_columns(job, planner, store, spark, grow=False)
    assert found is not None
    again = recount(spark, found, {0: 0}, store.offsets(), restricted_values=store.restricted_values)
    assert sorted(
        zip(*(again.keys[name].to_pylist() for name in ("id", "_kafka_partition", "_kafka_offset")), strict=True)
    ) == [
        (0, 0, 6),
        (1, 0, 7),
        (2, 0, 8),
    ]
    assert again.rejects.column("_kafka_offset").to_pylist() == [9, 10]


ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "place": {"$ref": "place.json"},
        "x": {"oneOf": [{"type": "null"}, {"type": "number"}]},
    },
    "required": ["id"],
}
PLACE_JSON = {"type": "object", "properties": {"town": {"type": "string", "minLength": 2}}}


def test_json_that_its_schema_allows(
    url: str, ingest: Ingest, new_topic: Callable[..., str], publish: Callable[..., None]
) -> None:
    topic = new_topic(partitions=1)
    client, context = SchemaRegistryClient({"url": url}), SerializationContext(topic, MessageField.VALUE)
    client.register_schema(f"{topic}-place", Schema(json.dumps(PLACE_JSON), "JSON"))
    schema = Schema(json.dumps(ORDER), "JSON", [SchemaReference("place.json", f"{topic}-place", 1)])
    serialize = JSONSerializer(schema, client, None, TOPICS_OWN)
    value = serialize({"id": 1, "place": {"town": "Bern"}, "x": 0.5}, context)
    assert value is not None
    frame = value[:5]
    publish(topic, value, frame + b'{"place":{}}', frame + b'{"id":2,"place":{"town":"B"}}', frame + b'{"id":3', b"{}",
            frame + b'{"id":9223372036854775808}', frame + b'{"id":4}', None)  # fmt: skip
    assert ingest(topic, url, format="json").rows == 3
    found = [(row["id"], row["place"], row["x"]) for row in ingest.rows()]
    assert found == [(1, {"town": "Bern"}, 0.5), (4, None, None), (None, None, None)]
    assert [row["_kafka_value"] for row in ingest.rows(rejects=True)][:2] == [
        frame + b'{"place":{}}',
        frame + b'{"id":2,"place":{"town":"B"}}',
    ]
    assert ingest.rejected() == [1, 2, 3, 4, 5]


@pytest.mark.matrix
def test_a_registry_that_is_away_is_waited_for_and_no_value_is_judged(
    ours: OurRegistry,
    ingest: Ingest,
    new_topic: Callable[..., str],
    publish: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(partitions=1)
    client, context = SchemaRegistryClient({"url": ours.url}), SerializationContext(topic, MessageField.VALUE)
    write = AvroSerializer(client, json.dumps(FIRST), None, TOPICS_OWN)
    publish(topic, write({"id": 1, "who": "a", "amount": None}, context))
    monkeypatch.setattr(job_module, "RETRY_PAUSE_S", 0.05)
    seen: list[str] = []

    def until(failures: int, then: Callable[[], None]) -> RunState:
        def look(run: RunState) -> None:
            if run.step == "failed" and run.failures == failures:
                seen.append(str(run.error))
                then()

        return RunState(log_run, look)

    ours.stop()  # at the start, where columns are asked for
    assert ingest(topic, ours.url, until(3, ours.start), format="avro").rows == 1
    assert "does not answer" in seen[-1]
    other = AvroSerializer(client, json.dumps(SECOND), None, TOPICS_OWN)
    publish(topic, other({"id": 2, "who": "b", "amount": None, "note": ""}, context))
    ours.fails_with = 503  # columns are the table's: the records are what it is asked for

    def recover() -> None:
        ours.fails_with = None

    assert ingest(topic, ours.url, until(2, recover), format="avro").rows == 1
    assert "answered with HTTP 503" in seen[-1]
    assert [(row["id"], row["who"]) for row in ingest.rows()] == [(1, "a"), (2, "b")]
    assert ingest.rejected() == []
    third = AvroSerializer(client, json.dumps(GROWN), None, TOPICS_OWN)
    publish(topic, third({"id": 3, "who": "c", "amount": None, "note": ""}, context))
    ours.stop()
    stop = Event()
    run = until(2, ours.start)
    with run.observed(lambda found: stop.set() if found.step == "committed" else None):
        assert ingest.stream(topic, ours.url, stop, run, format="avro").rows == 1
    publish(topic, other({"id": 4, "who": "d", "amount": None, "note": ""}, context))
    ours.credentials = "user:secret"
    with pytest.raises(RegistryRefused, match="answered with HTTP 401"):
        ingest(topic, ours.url, format="avro")
    assert ingest(topic, ours.url.replace("//", "//user:secret@"), format="avro").rows == 1


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_killed_around_the_commit_while_the_registry_comes_and_goes(
    ours: OurRegistry,
    ingest: Ingest,
    new_topic: Callable[..., str],
    publish: Callable[..., None],
    command: Callable[..., Any],
) -> None:
    topic = new_topic(partitions=1)
    client, context = SchemaRegistryClient({"url": ours.url}), SerializationContext(topic, MessageField.VALUE)
    kinds = [AvroSerializer(client, json.dumps(each), None, TOPICS_OWN) for each in (SECOND, FIRST)]
    more: dict[str, Any] = {"who": "w", "amount": None, "note": "-"}
    values = [kinds[n % 2]({"id": n, **more}, context) for n in range(400)]
    publish(topic, *values, *[b"\0\x7f\xff\xff\xff\0"] * 20)
    arguments = [f"--topic={topic}", f"--path={ingest.path}", "--name=job", "--format=avro", "--schema-registry",
                 "--rejects", "--max-records=150"]  # fmt: skip
    options = json.dumps({"url": ours.url, "max.retries": 0})
    killed = command(*arguments, SPARK_SINK_CRASH_AT="before-commit:2", SPARK_SINK_SCHEMA_REGISTRY=options)
    assert killed.returncode == -9, killed.stderr
    ours.stop()
    threading.Timer(25, ours.start).start()  # Spark starts meanwhile; later than that is as good
    done = command(*arguments, "--json", SPARK_SINK_SCHEMA_REGISTRY=options)
    assert done.returncode == 0, done.stderr
    assert [row["id"] for row in ingest.rows()] == list(range(400))
    assert ingest.rejected() == list(range(400, 420))
    assert json.loads(done.stdout.splitlines()[-1])["rejects"] == 20
