"""Resumable publishing: after a crash, a producer continues after its last acknowledged record.

A producer has a name and every record a sequence; both are stored in headers (PIP-6). `Producer` sends records, and
stores the progress of its name in Kafka. A `Source` can be read again from any sequence. `publish` sends a source's
records with a producer. The package needs confluent-kafka, msgspec for fields of JSON, and pyarrow for zstd files; of
Ratchet it needs only the error tree.
"""

from kafka_ratchet.producers.beginning import TopicDecision
from kafka_ratchet.producers.client import (
    END_OF_PARTITION,
    LEADER_CHANGES,
    PASSING,
    RefusalCallback,
    explained,
    login_refused,
    no_broker_is_let_in,
    options_refused,
    own_certificate_refused,
    token_server,
)
from kafka_ratchet.producers.file_set import FileSet, open_files, records_of
from kafka_ratchet.producers.files import FileSource
from kafka_ratchet.producers.formats import Format
from kafka_ratchet.producers.headers import PRODUCER_HEADER, SEQUENCE_HEADER, headers_of, partition_of
from kafka_ratchet.producers.metrics import ProducerCollector, ProducerMetrics, prometheus_text
from kafka_ratchet.producers.offsets import ask_offsets, no_offset
from kafka_ratchet.producers.producer import AsyncProducer, Producer
from kafka_ratchet.producers.progress import PROGRESS_TOPIC, Progress, read_progress
from kafka_ratchet.producers.publish import Published, publish
from kafka_ratchet.producers.source import CheckedSource, Record, Source
from kafka_ratchet.producers.stream import StreamSource
from kafka_ratchet.producers.tls import certificate_refused
from kafka_ratchet.producers.topics import TopicShape, admin_client, create_topic, describe_topic, made_topic

__all__ = [
    "END_OF_PARTITION",
    "LEADER_CHANGES",
    "PASSING",
    "PRODUCER_HEADER",
    "PROGRESS_TOPIC",
    "SEQUENCE_HEADER",
    "AsyncProducer",
    "CheckedSource",
    "FileSet",
    "FileSource",
    "Format",
    "Producer",
    "ProducerCollector",
    "ProducerMetrics",
    "Progress",
    "Published",
    "Record",
    "RefusalCallback",
    "Source",
    "StreamSource",
    "TopicDecision",
    "TopicShape",
    "admin_client",
    "ask_offsets",
    "certificate_refused",
    "create_topic",
    "describe_topic",
    "explained",
    "headers_of",
    "login_refused",
    "made_topic",
    "no_broker_is_let_in",
    "no_offset",
    "open_files",
    "options_refused",
    "own_certificate_refused",
    "partition_of",
    "prometheus_text",
    "publish",
    "read_progress",
    "records_of",
    "token_server",
]
