"""Spans of transactions: what they say, where they link to, and that hostile headers change nothing."""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.worker.tracing import (
    HEADERS_MOST,
    LINKS_MOST,
    RECORDS_LOOKED_AT,
    Tracing,
    TransactionSpans,
    make_provider,
)
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.transport.lane_spec import LaneSpec
from tests.app.worker.test_worker import site
from tests.app.worker_process import WorkerProcess
from tests.tables.fetched_records import Sent, fetched

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01".encode()
HOSTILE = [
    b"",
    b"00",
    b"\xff" * 55,
    GOOD + b"-more",
    b"ff" + GOOD[2:],
    f"00-{'0' * 32}-{SPAN}-01".encode(),
    f"00-{TRACE}-{'0' * 16}-01".encode(),
    GOOD.replace(b"f", "٥".encode()),
    b"x" * 100_000,
    None,
]

SPEC = LaneSpec("orders.raw", 3, "out", "dead", "shop", "shop-orders.raw-3", stream="orders")


def carrying(value: bytes | None) -> Sent:
    return Sent(headers=(("other", b"traceparent"), ("traceparent", value)))


@pytest.fixture
def spans() -> Iterator[tuple[TransactionSpans, InMemorySpanExporter, dict[str, int]]]:
    exporter, totals = InMemorySpanExporter(), {"fresh": 10, "duplicate": 5}
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made = Tracing(provider).of(SPEC, totals.copy)
    assert made is not None
    yield made, exporter, totals
    provider.shutdown()


def test_a_span_says_what_became_of_a_transaction(
    spans: tuple[TransactionSpans, InMemorySpanExporter, dict[str, int]],
) -> None:
    assert Tracing(None).of(SPEC, dict) is None
    lane, exporter, totals = spans
    lane.begun(100)
    lane.read(fetched([carrying(GOOD), Sent(), carrying(GOOD)], start=100))
    totals.update(fresh=12, duplicate=6)
    lane.ended(103, is_committed=True)
    lane.ended(103, is_committed=False)  # a lane that ends says so where none is open
    lane.begun(103)
    lane.ended(107, is_committed=False)
    committed, aborted = exporter.get_finished_spans()
    assert committed.name == "process orders.raw"
    found = dict(committed.attributes or {})
    assert (found["ratchet.stream"], found["messaging.destination.partition.id"]) == ("orders", "3")
    assert (found["ratchet.offset.from"], found["ratchet.offset.to"], found["ratchet.outcome"]) == (
        100,
        103,
        "committed",
    )
    assert (found["ratchet.records.fresh"], found["ratchet.records.duplicate"]) == (2, 1)
    assert found["messaging.batch.message_count"] == 3
    assert [(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in committed.links] == [
        (TRACE, SPAN)
    ]
    assert committed.start_time is not None
    assert committed.end_time is not None
    assert committed.start_time <= committed.end_time
    found = dict(aborted.attributes or {})
    assert (found["ratchet.outcome"], aborted.status.is_ok) == ("aborted", False)
    assert not [name for name in found if name.startswith("ratchet.records")]
    assert not aborted.links


def test_hostile_headers_link_to_nothing_and_links_are_bounded(
    spans: tuple[TransactionSpans, InMemorySpanExporter, dict[str, int]],
) -> None:
    lane, exporter, _ = spans
    lane.begun(0)
    lane.read(fetched([carrying(value) for value in HOSTILE]))
    large = (("traceparent", GOOD), ("large", b"x" * HEADERS_MOST))
    lane.read(fetched([Sent(headers=large)]))
    lane.ended(11, is_committed=True)
    lane.begun(11)
    lane.read(fetched([carrying(f"00-{TRACE}-{number + 1:016x}-00".encode()) for number in range(LINKS_MOST + 9)]))
    lane.ended(60, is_committed=True)
    lane.begun(60)
    lane.read(fetched([Sent()] * (RECORDS_LOOKED_AT - 1)))
    lane.read(fetched([carrying(GOOD), carrying(GOOD[:-4] + b"3-01")]))
    lane.ended(900, is_committed=True)
    assert [len(span.links) for span in exporter.get_finished_spans()] == [0, LINKS_MOST, 1]


def test_without_the_extra_it_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "ratchet.toml"
    config.write_text('telemetry = "otel"\n[streams.s]\ninput = "a"\noutput = "b"\ndead_letters = "c"\n')
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert run(["worker", "--config", str(config)]) == 2
    assert "pip install 'kafka-ratchet[otel]'" in capsys.readouterr().err


def test_a_variable_that_opentelemetry_cannot_read_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    with pytest.raises(SettingsError, match=r"OTEL_.*max_queue_size must be a positive integer\. Correct the variable"):
        make_provider("shop")


class Receiver(ThreadingHTTPServer):
    """Takes spans over OTLP, as a collector does."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        super().__init__(("127.0.0.1", 0), Taking)


class Taking(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_worker_sends_a_span_for_each_transaction(
    broker: str, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.server_port}")
    place = site(tmp_path, broker, 'session_timeout_ms = 6000\ntelemetry = "otel"\n')
    worker, source = WorkerProcess(place), f"{place.app}.in"
    worker.start()
    try:
        worker.wait_for(lambda: worker.text().count("lane runs") == 4, "the lanes")
        producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
        for sequence in (1, 2, 2, 3):
            headers = [("ratchet-producer", b"me"), ("ratchet-sequence", b"%d" % sequence), ("traceparent", GOOD)]
            producer.produce(source, b"v", partition=2, headers=headers)
        assert producer.flush(30) == 0
        worker.wait_for(lambda: place.position(source) == 4, "the commit")
        worker.stop()
    finally:
        worker.end()
    judged = [{each.key: each.value for each in span.attributes} for span in receiver.spans if span.links]
    assert sum(found["ratchet.records.fresh"].int_value for found in judged) == 3
    assert sum(found["ratchet.records.duplicate"].int_value for found in judged) == 1
    assert {found["messaging.destination.partition.id"].string_value for found in judged} == {"2"}
    assert judged[0]["ratchet.offset.from"].int_value == 0
    assert judged[-1]["ratchet.offset.to"].int_value == 4
    assert {link.trace_id.hex() for span in receiver.spans for link in span.links} == {TRACE}
