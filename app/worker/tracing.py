"""OpenTelemetry spans, one for each transaction, with links to the traces of its records.

OpenTelemetry's own variables set the destination (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, ...).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from kafka_ratchet.app.version import ratchet_version
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.verdicts import COUNTERS, UNJUDGED
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.totals import Progress
from kafka_ratchet.transport.batch.record_batch import RecordBatch, unpack_headers
from kafka_ratchet.transport.lane_spec import LaneSpec

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import SpanContext, Tracer

TRACEPARENT: Final = "traceparent"
LINKS_MOST: Final = 32
"""Maximum number of links of one span."""
RECORDS_LOOKED_AT: Final = 256
"""Number of records at the beginning of a transaction to search for trace headers.

A transaction may have 500,000 records, and the search is slow Python code.
"""
HEADERS_MOST: Final = 8_192
"""Maximum number of bytes of a record's headers; larger ones are not read."""
TRACEPARENT_MOST: Final = 512
"""Maximum number of bytes of a traceparent header. Version 00 of the format has 55."""
STOP_WITHIN_S: Final = 5.0
"""Seconds that a stopping worker waits for the export of its last spans."""

Totals = Mapping[str, int]
"""Number of a partition's records by verdict, since the changelog began."""


def totals_of(partition: SequencePartition) -> Totals:
    """Return the totals of a partition at its last commit."""
    found = partition.progress or Progress(0, 0, 0, 0)
    judged = {name: getattr(found, name) for name, verdict in COUNTERS.items() if verdict != UNJUDGED}
    return judged | {UNJUDGED: partition.intervals.unjudged}


def make_provider(app: str) -> TracerProvider:
    """Create OpenTelemetry's provider, which exports spans in a thread of its own.

    The service name is the application's, unless OTEL_SERVICE_NAME is set.

    Raises:
        ModuleNotFoundError: the extra `otel` is not installed.
        SettingsError: a variable of OpenTelemetry has an invalid value.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.environment_variables import OTEL_SERVICE_NAME
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = {} if os.environ.get(OTEL_SERVICE_NAME) else {SERVICE_NAME: app}
    try:
        provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise SettingsError(
            f"telemetry: OpenTelemetry refuses one of its variables OTEL_...: {str(error).rstrip('.')}. Correct the "
            "variable"
        ) from error
    return provider


def require_package() -> None:
    """Import OpenTelemetry to check that the extra `otel` is installed.

    Raises:
        ModuleNotFoundError: the extra is not installed.
    """
    import opentelemetry.exporter.otlp.proto.http.trace_exporter
    import opentelemetry.sdk.trace  # noqa: F401


class Tracing:
    """Tracing of a worker. provider: destination of the spans; None: no spans are made."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider
        self._tracer = None if provider is None else provider.get_tracer("kafka_ratchet", ratchet_version())

    def of(self, spec: LaneSpec, totals: Callable[[], Totals]) -> TransactionSpans | None:
        """Return the tracer of one lane's transactions; None without tracing.

        spec: the lane's topic, partition and ids; totals: function that returns the partition's totals
        """
        return None if self._tracer is None else TransactionSpans(self._tracer, spec, totals)

    def close(self) -> None:
        """Export the remaining spans, and wait at most `STOP_WITHIN_S` for the collector."""
        if self._provider is not None:
            ending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
            ending.start()
            ending.join(STOP_WITHIN_S)


class TransactionSpans:
    """Maker of the spans of one lane; implements `kafka_ratchet.transport.lane.TransactionTrace`."""

    def __init__(self, tracer: Tracer, spec: LaneSpec, totals: Callable[[], Totals]) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer, self._totals, self._headers = tracer, totals, TraceContextTextMapPropagator()
        self._name = f"process {spec.topic}"
        self._attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": spec.topic,
            "messaging.destination.partition.id": str(spec.partition),
            "messaging.consumer.group.name": spec.group,
            "ratchet.stream": spec.stream,
            "ratchet.transactional_id": spec.transactional_id,
        }
        self._began_ns: int | None = None
        self._start = self._records = self._looked_at = 0
        self._before: Totals = {}
        self._links: dict[tuple[int, int], SpanContext] = {}

    def begun(self, position: int) -> None:
        """Record the start of a transaction. position: next input offset."""
        self._began_ns, self._start, self._before = time.time_ns(), position, self._totals()
        self._records = self._looked_at = 0
        self._links = {}

    def read(self, batch: RecordBatch) -> None:
        """Count a batch's records to the open transaction, and keep links to the traces in their headers.

        At most `RECORDS_LOOKED_AT` records of a transaction are searched, and `LINKS_MOST` links are kept.
        """
        look = min(batch.count, RECORDS_LOOKED_AT - self._looked_at)
        for index in range(look):
            if len(self._links) >= LINKS_MOST:
                break
            if (context := self._context(batch, index)) is not None:
                self._links[context.trace_id, context.span_id] = context
        self._records += batch.count
        self._looked_at += look

    def ended(self, position: int, *, is_committed: bool) -> None:
        """Export the span of a transaction after its end.

        position: next input offset; is_committed: False after a rollback
        """
        from opentelemetry.trace import Link, SpanKind, StatusCode

        if self._began_ns is None:
            return
        attributes = {
            **self._attributes,
            "messaging.batch.message_count": self._records,
            "ratchet.offset.from": self._start,
            "ratchet.offset.to": position,
            "ratchet.outcome": "committed" if is_committed else "aborted",
        }
        # The outcome of an aborted transaction is unknown. Unmoved totals are not those after the commit: the
        # local store has failed, or nothing was judged.
        if is_committed and (after := self._totals()) != self._before:
            attributes |= {f"ratchet.records.{name}": after[name] - self._before.get(name, 0) for name in after}
        span = self._tracer.start_span(
            self._name,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(context) for context in self._links.values()],
            start_time=self._began_ns,
        )
        if not is_committed:
            span.set_status(StatusCode.ERROR)
        span.end()
        self._began_ns = None

    def _context(self, batch: RecordBatch, index: int) -> SpanContext | None:
        """Return the span context of a record's traceparent header; None without a valid one."""
        from opentelemetry.trace import get_current_span

        body = batch.header_bytes(index)
        if len(body) > HEADERS_MOST or TRACEPARENT.encode() not in body:
            return None
        value = next((header.value for header in unpack_headers(body) if header.name == TRACEPARENT), None)
        if value is None or len(value) > TRACEPARENT_MOST or not value.isascii():
            return None
        found = get_current_span(self._headers.extract({TRACEPARENT: value.decode("ascii")})).get_span_context()
        return found if found.is_valid else None
