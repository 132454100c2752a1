"""Values of a registry, bytes, and the metrics of comparisons that go on."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from kafka_ratchet.app.compare.comparison import Comparison
from kafka_ratchet.app.compare.formats import decoder
from kafka_ratchet.app.compare.watch import Gauges, watch
from kafka_ratchet.errors import BrokerUnavailable, RatchetError, SettingsError, SourceError
from kafka_ratchet.verify import compare
from tests.spark_sink.schema_registries import OurRegistry

TOPICS_OWN = {"subject.name.strategy": topic_subject_name_strategy}
EVENTS = [{"id": number, "town": f"town {number}"} for number in range(30)]


@pytest.fixture
def registry() -> Iterator[OurRegistry]:
    ours = OurRegistry()
    yield ours
    ours.stop()


def avro(client: SchemaRegistryClient) -> Any:
    fields = [{"name": "id", "type": "long"}, {"name": "town", "type": "string"}]
    schema = json.dumps({"type": "record", "name": "E", "fields": fields})
    return AvroSerializer(client, schema, conf=TOPICS_OWN)


def json_schema(client: SchemaRegistryClient) -> Any:
    return JSONSerializer(json.dumps({"type": "object", "title": "E"}), client, conf=TOPICS_OWN)


def protobuf(client: SchemaRegistryClient) -> Any:
    kinds = descriptor_pb2.FieldDescriptorProto
    name = f"event{time.time_ns()}.proto"
    file = descriptor_pb2.FileDescriptorProto(
        name=name, package=f"p{time.time_ns()}", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.message_type.add(name="Other")
    event = file.message_type.add(name="Event")
    event.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=1)
    event.field.add(name="town", number=2, type=kinds.TYPE_STRING, label=1)
    event.field.add(name="at", number=3, type=kinds.TYPE_MESSAGE, label=1, type_name=".google.protobuf.Timestamp")
    pool = descriptor_pool.Default()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindFileByName(name).message_types_by_name["Event"])
    serializer = ProtobufSerializer(kind, client, conf={"use.deprecated.format": False, **TOPICS_OWN})
    at = timestamp_pb2.Timestamp(seconds=1)
    return lambda event, context: serializer(kind(**event, at=at), context)


@pytest.mark.parametrize(("form", "made"), [("avro", avro), ("json-schema", json_schema), ("protobuf", protobuf)])
def test_values_of_a_registry(
    form: str,
    made: Callable[..., Any],
    broker: str,
    new_topic: Callable[..., str],
    registry: OurRegistry,
    tmp_path: Path,
) -> None:
    topic, producer = new_topic(1), Producer({"bootstrap.servers": broker, "log_level": 0})
    serialize = made(SchemaRegistryClient({"url": registry.url}))
    context = SerializationContext(topic, MessageField.VALUE)
    for event in EVENTS:
        producer.produce(topic, serialize(event, context))
    for value in (b"", b"\0\0\0\0\x63no such schema", b"\0\0\0\0\1\xff\xff", b"plain", None):
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    rows = "".join(f"{event['id']},{event['town']}\n" for event in EVENTS[2:])
    (tmp_path / "t.csv").write_text("id,town\n" + rows)
    options: dict[str, Any] = {"bootstrap": broker, "value_format": form, "schema_registry": registry.url}
    result = compare(f"kafka:{topic}", f"csv:{tmp_path}/t.csv", "id", "town", **options)
    assert (result.lost, result.doubled, result.altered, result.unexpected) == (2, 0, 0, 0)
    assert result.without_identity["source"] >= 4
    registry.stop()
    if form == "json-schema":
        return  # its values are read without their schema
    with pytest.raises(SourceError, match="schema registry"):
        compare(f"kafka:{topic}", f"csv:{tmp_path}/t.csv", "id", **options, registry_options={"max.retries": "0"})


def test_a_registry_that_never_answers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.app.compare.formats.TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for form in ("avro", "protobuf"):
            decode = decoder(form, "t", url, {"max.retries": "0"})
            assert decode is not None
            with pytest.raises(SourceError, match="the schema registry does not answer"):
                decode(b"\0\0\0\0\1\0\2")


def test_bytes_have_no_fields(broker: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic, producer = new_topic(1), Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in range(5):
        producer.produce(topic, b"\xff", b"k%d" % number)
    assert producer.flush(30) == 0
    (tmp_path / "t.csv").write_text("key\n" + "".join(f"k{number}\n" for number in range(1, 5)))
    result = compare(f"kafka:{topic}", f"csv:{tmp_path}/t.csv", "key", bootstrap=broker, value_format="bytes")
    assert (result.lost, result.exit_code) == (1, 1)
    with pytest.raises(SettingsError, match="--value-format"):
        compare(f"kafka:{topic}", f"csv:{tmp_path}/t.csv", "key", bootstrap=broker, value_format="xml")


@pytest.mark.matrix
def test_again_and_again_with_metrics(broker: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic, producer = new_topic(1), Producer({"bootstrap.servers": broker, "log_level": 0})

    def send(numbers: range) -> None:
        for number in numbers:
            producer.produce(topic, json.dumps({"id": number}).encode())
        assert producer.flush(30) == 0

    table = tmp_path / "t.csv"
    table.write_text("id\n" + "".join(f"{number}\n" for number in range(10)))
    send(range(10))
    command = [sys.executable, "-m", "kafka_ratchet", "verify", "--from", f"kafka:{topic}", "--to", f"csv:{table}"]
    command += ["--by", "id", "--bootstrap", broker, "--every", "1s", "--metrics-port", "0", "--json"]
    command += ["--state", str(tmp_path / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watched:
        assert watched.stdout is not None
        assert watched.stderr is not None
        address = watched.stderr.readline().split()[-1]
        assert json.loads(watched.stdout.readline())["exit_code"] == 0
        send(range(10, 13))
        while json.loads(watched.stdout.readline())["lost"] != 3:
            pass
        text = urllib.request.urlopen(address, timeout=30).read().decode()  # noqa: S310 - of 127.0.0.1
        assert f'ratchet_verify_lost{{from="kafka:{topic}",to="csv:{table}"}} 3.0' in text
        assert "ratchet_verify_complete" in text
        table.unlink()
        assert "not compared" in watched.stderr.readline()
        table.write_text("id\n" + "".join(f"{number}\n" for number in range(13)))
        while json.loads(watched.stdout.readline())["lost"]:
            pass
        watched.send_signal(signal.SIGTERM)
        assert watched.wait(60) == 0


def test_the_code_of_a_watch_whose_last_run_fails_is_that_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.app.compare.watch.EVERY_LEAST_S", 0.0)
    stop, codes, errors = threading.Event(), list[int](), list[RatchetError]()

    class Stub:
        def run(self) -> Comparison:
            if codes:
                stop.set()
                raise BrokerUnavailable("Kafka is away")
            return Comparison("s", "t", ["id"], [])

        def roll_back(self) -> None:
            """Roll nothing back."""

    comparer: Any = Stub()
    assert watch(comparer, 0.0, lambda result: codes.append(result.exit_code), errors.append, stop) == 2
    assert (codes, len(errors)) == ([0], 1)


@pytest.mark.parametrize(
    ("outcome", "complete"),
    [({}, 1), ({"without_identity": {"source": 5, "target": 0}}, 0), ({"unread": ["an open transaction"]}, 0)],
)
def test_a_comparison_that_left_rows_out_is_not_complete(outcome: dict[str, Any], complete: int) -> None:
    gauges = Gauges("s", "t", 60)
    gauges.show(Comparison("s", "t", ["id"], [], **outcome))
    assert gauges.registry.get_sample_value("ratchet_verify_complete", {"from": "s", "to": "t"}) == complete


def test_a_first_comparison_that_never_ends_grows_old() -> None:
    """The alert about an old comparison needs both figures from the start, before a run has ended."""
    began, of = time.time(), {"from": "s", "to": "t"}
    registry = Gauges("s", "t", 600).registry
    assert registry.get_sample_value("ratchet_verify_interval_seconds", of) == 600
    assert (registry.get_sample_value("ratchet_verify_last_run_timestamp_seconds", of) or 0) >= began


def test_the_time_of_the_start_stays_so_that_restarts_are_counted() -> None:
    of, name = {"from": "s", "to": "t"}, "ratchet_verify_started_timestamp_seconds"
    gauges = Gauges("s", "t", 600)
    began = gauges.registry.get_sample_value(name, of)
    gauges.show(Comparison("s", "t", ["id"], []))
    assert began is not None
    assert began <= time.time()
    assert gauges.registry.get_sample_value(name, of) == began
