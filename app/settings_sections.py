"""The sections of the settings: a stream, the page, the sink. `kafka_ratchet.app.settings` has the whole of them."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode

from kafka_ratchet.rule.identity import Identity, SequenceForm, SequenceSource
from kafka_ratchet.rule.settings import DEFAULTS, SETTINGS, Conflicts, Late, RuleSettings, check_window
from kafka_ratchet.spark_sink.stores.registry import STORES

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""Kafka's own rule for topic names (org.apache.kafka.common.internals.Topic)."""

Compression = Literal["input", "none", "gzip", "snappy", "lz4", "zstd"]


def is_topic_name(text: str) -> bool:
    """Return True if Kafka accepts a text as the name of a topic."""
    return TOPIC_NAME.fullmatch(text) is not None and text not in {".", ".."}


def _topic(value: object) -> object:
    if isinstance(value, str) and not is_topic_name(value):
        raise ValueError(f"{value!r} is not a Kafka topic name: 1 to 249 letters, digits, '.', '_' or '-'")
    return value


TopicName = Annotated[str, BeforeValidator(_topic)]


def _identity(value: object) -> Identity:
    if isinstance(value, Identity):
        return value
    is_list = isinstance(value, list | tuple) and all(isinstance(part, str) for part in value)
    if not isinstance(value, str) and not is_list:
        raise ValueError("write a text, or a list of texts")
    return Identity.parse(cast("str | list[str]", value))


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StreamSettings(_Section):
    """Settings of a stream: its topics, its deduplication, and its treatment of records."""

    input: TopicName
    output: TopicName
    dead_letters: TopicName
    duplicates: TopicName | None = None
    """Topic that dropped records go to, in the same transaction. None: they are counted only."""
    duplicates_keep: Literal["all", "headers"] = "all"
    """Part of a dropped record that goes there: all of it, or its key and headers (the value is null)."""
    forward: bool = True
    """False: records are judged and counted, and none goes to the output."""
    identity: Annotated[Identity, NoDecode, PlainValidator(_identity)] = DEFAULTS["identity"]
    """producer, key, partition, header:NAME, field:PATH, function:module:name, or a list of such parts."""
    sequence: str = str(DEFAULTS["sequence"])
    """header:NAME, field:PATH (in a JSON value), function:module:name or none; see `SequenceSource`."""
    sequence_form: SequenceForm = DEFAULTS["sequence_form"]
    """Form of a sequence in a header: "text", "integer" (big-endian), "little-endian", or "guess"."""
    reorder_window: Annotated[int, AfterValidator(check_window)] = DEFAULTS["reorder_window"]
    """Sequences; see `kafka_ratchet.rule.settings.RuleSettings` for this and the next three."""
    late: Late = DEFAULTS["late"]
    conflicts: Conflicts = DEFAULTS["conflicts"]
    dense: bool = DEFAULTS["dense"]
    repartition_by: Literal["identity"] | None = None
    """Key of an internal topic that gets records before their verdict; see `app.repartition`."""
    deduplicate: bool | None = None
    """True: judge records; False: forward them unjudged; None: unset here.

    `kafka_ratchet.app.worker.policy` has the order of precedence.
    """
    event_id: str | None = None
    """header:NAME of the input with an event's id, as a mirror hands it on. None: a record's own place is its id."""
    create_topics: bool | None = None
    """True: create a missing input, output or dead-letter topic. None: as the setting of all streams."""
    compression: Compression = "input"
    partitions: int = Field(default=4, ge=1, le=10_000)
    """Partitions of the topics where Ratchet has to create them; an input topic that exists keeps its own."""
    replication: int = Field(default=1, ge=1, le=32)
    max_identities: int | None = Field(default=None, ge=1, le=10**12)
    """Most identities remembered; each partition has an even share. None: all."""
    inactive_after_s: int | None = Field(default=None, ge=1, le=10**9)
    """Seconds without a record after which an identity is forgotten. None: never."""

    @property
    def judged_by(self) -> RuleSettings:
        """Return the stream's deduplication settings."""
        texts = {name: str(getattr(self, name)) for name in SETTINGS}
        return RuleSettings.parse(texts)

    @property
    def rule(self) -> dict[str, str]:
        """Return the deduplication settings that must not change while a table has state."""
        return {
            **self.judged_by.entry,
            **({} if self.forward else {"forward": "false"}),
            **({} if self.repartition_by is None else {"repartition_by": self.repartition_by}),
        }

    @property
    def writes(self) -> tuple[str, ...]:
        """Return the topics that the stream writes records to.

        They are output, dead letters, and duplicates if the stream has such a topic.
        """
        return (self.output, self.dead_letters, *([self.duplicates] if self.duplicates is not None else []))

    @property
    def judging(self) -> dict[str, str]:
        """Return the non-default deduplication settings that may change while a table has state."""
        return self.judged_by.judging

    @property
    def is_bounded(self) -> bool:
        """Return True if the stream limits its identities by number or age, so that some are forgotten."""
        return self.max_identities is not None or self.inactive_after_s is not None

    @field_validator("sequence")
    @classmethod
    def _readable_sequence(cls, value: str) -> str:
        return str(SequenceSource.parse(value))

    @field_validator("event_id")
    @classmethod
    def _id_in_a_header(cls, value: str | None) -> str | None:
        kind, _, name = (value or "").partition(":")
        if value is not None and (kind != "header" or not name):
            raise ValueError(f'{value!r}: write "header:NAME" with the header that holds the id of a record\'s event')
        return value

    @property
    def event_header(self) -> str:
        """Return the name of the header with an event's id; "" without one."""
        return (self.event_id or "").partition(":")[2]

    @model_validator(mode="after")
    def _rule_has_a_meaning(self) -> StreamSettings:
        self.judged_by  # noqa: B018 - raises
        return self

    @model_validator(mode="after")
    def _identity_has_a_partition(self) -> StreamSettings:
        if self.repartition_by is not None and self.identity == Identity.PARTITION:
            raise ValueError(
                'repartition_by = "identity" sends each identity to one partition, but with identity = "partition" '
                "the identity is the partition of arrival. Remove one of them"
            )
        if self.repartition_by is not None and self.deduplicate is False:
            raise ValueError(
                "repartition_by determines where records are deduplicated, but deduplicate = false. Remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _distinct_topics(self) -> StreamSettings:
        if len({self.input, self.output, self.dead_letters}) < 3:
            raise ValueError("input, output and dead_letters must be three different topics")
        if self.duplicates in (self.input, self.output, self.dead_letters):
            raise ValueError(
                f"duplicates is {self.duplicates!r}, which is already another topic of this stream. Name a new one"
            )
        return self

    @model_validator(mode="after")
    def _has_something_to_keep(self) -> StreamSettings:
        if self.duplicates is None and self.duplicates_keep != "all":
            raise ValueError(
                "duplicates_keep determines how much of a dropped record is kept, but no topic is set for dropped "
                'records. Add duplicates = "TOPIC", or remove duplicates_keep'
            )
        return self

    @model_validator(mode="after")
    def _bounds_have_a_meaning(self) -> StreamSettings:
        if self.is_bounded and self.identity == Identity.PARTITION:
            raise ValueError(
                'max_identities and inactive_after_s cannot be combined with identity = "partition": each '
                "partition has a single identity, and to forget it would let all its duplicates pass. Remove them"
            )
        return self


def _networks(value: object) -> object:
    """Convert addresses and networks from a list, or from a text with commas."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("write an address or a network, or a list of them")
    for part in parts:
        try:
            ipaddress.ip_network(part)
        except ValueError as error:
            raise ValueError(f"write addresses such as 10.0.0.7, or networks such as 10.0.0.0/24: {error}") from None
    return tuple(parts)


class WebSettings(_Section):
    """Settings of the web page, and of the workers' status addresses."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Never empty: servers read an empty host as every interface."""
    port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free port and prints it."""
    status_port: int = Field(default=0, ge=0, le=65535)
    """Port of a worker's status address; 0 takes a free port, published in the group."""
    token_file: str | None = Field(default=None, min_length=1)
    """File with the token that the page asks for. None: it asks for none."""
    tls_cert: str | None = Field(default=None, min_length=1)
    """PEM file of the page's certificate, with those between it and its CA. None: plain HTTP."""
    tls_key: str | None = Field(default=None, min_length=1)
    """PEM file of its key, without a password. None: it is in the certificate's file."""
    trusted_proxy: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_networks)] = ()
    """Addresses or networks of proxies with a trusted `user_header`."""
    user_header: str | None = Field(default=None, pattern=r"^[A-Za-z0-9-]{1,64}$")
    """Header with the user's name from such a proxy."""
    write: bool = False
    """True if callers with the token may make changes through the page."""

    @model_validator(mode="after")
    def _access_has_a_meaning(self) -> WebSettings:
        if self.write and self.token_file is None:
            raise ValueError(
                "write = true allows changes through the page, but no token restricts them. Set token_file, or "
                "remove write"
            )
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("tls_key is the key of a certificate, but tls_cert is not set. Set both")
        if bool(self.trusted_proxy) != (self.user_header is not None):
            raise ValueError(
                "trusted_proxy names the proxies, and user_header their header with the user's name. Set both, or "
                "remove both"
            )
        return self


def _known_store(name: str) -> str:
    if name not in STORES:
        *most, last = map(repr, STORES)
        raise PydanticCustomError("unknown_store", "Input should be {known}", {"known": f"{', '.join(most)} or {last}"})
    return name


class SinkSettings(_Section):
    """Settings of a sink, the Spark job's result: stream, store and table."""

    stream: str | None = None
    """Name of the stream with the output to read; may be left out where there is only one."""
    from_input: bool = False
    """The stream's input is read in place of its output, and judged by Spark; no worker is needed."""
    format: Literal["json", "avro", "protobuf", "bytes"] | None = None
    """Format of values; None: json where columns are given, avro where a schema is, else bytes."""
    columns: str | None = Field(default=None, min_length=1)
    """Columns of the JSON values, as Spark DDL ("user string, amount double"), or "infer"."""
    avro_schema: str | None = Field(default=None, min_length=1)
    """Schema of Avro values: the path of an .avsc file, or its text."""
    avro_id: int | None = Field(default=None, ge=0, le=2**32 - 1)
    """The schema's id in a registry, where values begin with a zero byte and it."""
    schema_registry: SecretStr | None = None
    """Address of the schema registry of the values; it may contain a password."""
    schema_registry_options: dict[str, SecretStr] = Field(default_factory=dict)
    """Options of its client, in confluent-kafka's names; keys may be in it."""
    schema_subject: str | None = Field(default=None, min_length=1)
    """Subject with the newest schema for the columns; None: the stream's input and -value."""
    schema_record: str | None = Field(default=None, min_length=1)
    """Name of the only record (Avro), message (Protobuf) or title (JSON Schema) to take."""
    store: Annotated[str, AfterValidator(_known_store)] = "delta"
    """A name in `kafka_ratchet.spark_sink.stores.registry.STORES`."""
    path: str = Field(default="ratchet-results", min_length=1)
    """Folder of the result table (delta, iceberg), or its file (duckdb)."""
    table: str = Field(default="results", min_length=1)
    """Name of the result table; Delta's is its folder."""
    url: SecretStr | None = None
    """The database of store postgres or mysql; it may have a password in it."""
    password: SecretStr | None = None
    storage_options: dict[str, SecretStr] = Field(default_factory=dict)
    """Options for access to a bucket (path = "s3://bucket/folder"), perhaps with keys."""
    catalog: dict[str, SecretStr] = Field(default_factory=dict)
    """Properties of the catalog of store iceberg, in pyiceberg's names; empty: a SQLite file in the folder."""
    evolve: Literal["add"] | None = None
    """Columns that the table lacks are added, and types widen. None: it has to have these columns."""
    partition_by: tuple[str, ...] = ()
    """Partitioning of the table's files: columns, day(column), hour(column)."""
    kind: Literal["append", "upsert", "totals"] = "append"
    """A row for each record, the last row of each key, or counts and sums of each key."""
    key: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    averages: tuple[str, ...] = ()
    mins: tuple[str, ...] = ()
    maxes: tuple[str, ...] = ()
    distinct: tuple[str, ...] = ()
    """Columns with counts of distinct values."""
    window: str | None = Field(default=None, min_length=1)
    """Length of the windows of event time that totals are of, such as "1 hour"."""
    slide: str | None = Field(default=None, min_length=1)
    """Time from the beginning of one window to that of the next, likewise. None: they do not overlap."""
    time: str = Field(default="_kafka_timestamp", min_length=1)
    """Column of the rows with the event time."""
    rejects: bool = False
    """True: write unparsable values to a table of their own."""
    keep_value: bool = False
    """True: keep `_kafka_value` of every record, and not only of unparsable ones."""
    sql: str | None = Field(default=None, min_length=1)
    """A query of the view `records` that makes the rows of the result."""
    transform: str | None = Field(default=None, min_length=1)
    """module:function, from DataFrame to DataFrame, for the same."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the job's metrics while it runs; 0 takes a free port and logs it. None: no metrics."""
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    metrics_file: str | None = Field(default=None, min_length=1)
    """A file that a run writes its metrics to at its end, for node_exporter's textfile collector."""
    name: str = Field(default="results", pattern=r"^[a-z][a-z0-9_-]{0,62}$")
    """The job's name: two jobs of one name fence each other, jobs of different names share the table."""

    def __repr__(self) -> str:
        """Return a text without any value, because queries and paths may be private."""
        return "SinkSettings(...)"

    __str__ = __repr__
