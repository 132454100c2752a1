"""Models of the settings' sections: a stream, the page, a sink. `kafka_ratchet.app.settings` has the whole model."""

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
"""Pattern of topic names that Kafka accepts (org.apache.kafka.common.internals.Topic)."""

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
    """Topic that the worker copies dropped records to, in the same transaction. None: it only counts them."""
    duplicates_keep: Literal["all", "headers"] = "all"
    """"all": copy dropped records whole; "headers": copy key and headers, with a null value."""
    forward: bool = True
    """True: new records go to the output; False: records are judged and counted, and none goes to the output."""
    identity: Annotated[Identity, NoDecode, PlainValidator(_identity)] = DEFAULTS["identity"]
    """Source of a record's identity; in the file, the text of one source, or a list of several.

    Sources are producer, key, partition, header:NAME, field:PATH (in a JSON value) and function:module:name.
    """
    sequence: str = str(DEFAULTS["sequence"])
    """Source of a record's sequence: header:NAME, field:PATH (in a JSON value), function:module:name, or none.

    See `SequenceSource`.
    """
    sequence_form: SequenceForm = DEFAULTS["sequence_form"]
    """Form of a sequence in a header: "text", "integer" (big-endian), "little-endian", or "guess"."""
    reorder_window: Annotated[int, AfterValidator(check_window)] = DEFAULTS["reorder_window"]
    """Number of sequences below the last one that a worker still recognises one by one; 0: none.

    `kafka_ratchet.rule.settings.RuleSettings` describes it, and `late`, `conflicts` and `dense`.
    """
    late: Late = DEFAULTS["late"]
    conflicts: Conflicts = DEFAULTS["conflicts"]
    dense: bool = DEFAULTS["dense"]
    repartition_by: Literal["identity"] | None = None
    """"identity": copy records to the partition of their identity before judging them; see `app.repartition`."""
    deduplicate: bool | None = None
    """True: judge records; False: forward them unjudged; None: as the setting for all streams.

    A policy that an operator sets for the stream takes precedence; see `kafka_ratchet.app.worker.policy`.
    """
    event_id: str | None = None
    """Header with the event's id in records that a mirror has copied to the input, as header:NAME.

    None: the id of a record is its topic, partition and offset.
    """
    create_topics: bool | None = None
    """True: create missing topics of the stream; False: refuse to run. None: as the setting for all streams."""
    compression: Compression = "input"
    partitions: int = Field(default=4, ge=1, le=10_000)
    """Partition count of topics that Ratchet creates for the stream, if the input does not exist yet."""
    replication: int = Field(default=1, ge=1, le=32)
    max_identities: int | None = Field(default=None, ge=1, le=10**12)
    """Maximum number of identities that the stream remembers, an equal share in each partition. None: no limit."""
    inactive_after_s: int | None = Field(default=None, ge=1, le=10**9)
    """Seconds without a record after which an identity is forgotten. None: never."""

    @property
    def judged_by(self) -> RuleSettings:
        """Return the stream's deduplication settings."""
        texts = {name: str(getattr(self, name)) for name in SETTINGS}
        return RuleSettings.parse(texts)

    @property
    def rule(self) -> dict[str, str]:
        """Return the deduplication settings, as texts, that must not change while the stream has state."""
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
        """Return the non-default deduplication settings, as texts, that may change while the stream has state."""
        return self.judged_by.judging

    @property
    def is_bounded(self) -> bool:
        """Return True if the stream forgets identities, because a setting limits their number or age."""
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
        """Return the name of the header with an event's id; "" if `event_id` is not set."""
        return (self.event_id or "").partition(":")[2]

    @model_validator(mode="after")
    def _rule_has_a_meaning(self) -> StreamSettings:
        self.judged_by  # noqa: B018 - raises
        return self

    @model_validator(mode="after")
    def _identity_has_a_partition(self) -> StreamSettings:
        if self.repartition_by is not None and self.identity == Identity.PARTITION:
            raise ValueError(
                'repartition_by = "identity" moves each record to the partition of its identity, but with identity = '
                '"partition" the identity is the partition in which the record arrived. Remove one of the two settings'
            )
        if self.repartition_by is not None and self.deduplicate is False:
            raise ValueError(
                "repartition_by determines in which partition records are deduplicated, but deduplicate = false. "
                "Remove one of the two settings"
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
                "duplicates_keep determines how much of a dropped record is kept, but the stream has no topic for "
                'dropped records. Add duplicates = "TOPIC", or remove duplicates_keep'
            )
        return self

    @model_validator(mode="after")
    def _bounds_have_a_meaning(self) -> StreamSettings:
        if self.is_bounded and self.identity == Identity.PARTITION:
            raise ValueError(
                'max_identities and inactive_after_s cannot be combined with identity = "partition": each '
                "partition has a single identity, and to forget it would let all its duplicates pass. Remove the "
                "limits"
            )
        return self


def _networks(value: object) -> object:
    """Return addresses and networks as a tuple of texts, from a list or a text with commas."""
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
    """Host or address that the page listens on. It may not be empty, because servers take that for all interfaces."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of the page; 0: a free port, which `ratchet web` prints."""
    status_port: int = Field(default=0, ge=0, le=65535)
    """Port of a worker's status address; 0: a free port. Commands find it in the consumer group's metadata."""
    token_file: str | None = Field(default=None, min_length=1)
    """File with the token that users of the page must give. None: the page needs no token."""
    tls_cert: str | None = Field(default=None, min_length=1)
    """PEM file with the page's certificate and the intermediate certificates. None: the page is plain HTTP."""
    tls_key: str | None = Field(default=None, min_length=1)
    """PEM file with the certificate's key, without a password. None: the key is in the certificate's file."""
    trusted_proxy: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_networks)] = ()
    """Addresses or networks of proxies; the page believes their `user_header`, and that of no other client."""
    user_header: str | None = Field(default=None, pattern=r"^[A-Za-z0-9-]{1,64}$")
    """Header with the user's name, as set by a trusted proxy."""
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
            raise ValueError(
                "tls_key names the key of a certificate, but tls_cert, the certificate, is not set. Set both"
            )
        if bool(self.trusted_proxy) != (self.user_header is not None):
            raise ValueError(
                "only one of trusted_proxy (the proxies) and user_header (the header that they set to the user's "
                "name) is set. Set both, or remove both"
            )
        return self


def _known_store(name: str) -> str:
    if name not in STORES:
        *most, last = map(repr, STORES)
        raise PydanticCustomError("unknown_store", "Input should be {known}", {"known": f"{', '.join(most)} or {last}"})
    return name


class SinkSettings(_Section):
    """Settings of a sink: the stream that its Spark job reads, and the result table that the job writes."""

    stream: str | None = None
    """Name of the stream with the output to read; None: the only stream of the settings."""
    from_input: bool = False
    """True: the job reads and deduplicates the stream's input; no worker is needed. False: it reads the output."""
    format: Literal["json", "avro", "protobuf", "bytes"] | None = None
    """Format of record values; None: json if `columns` is set, avro if a schema is set, else bytes."""
    columns: str | None = Field(default=None, min_length=1)
    """Columns of the JSON values, as Spark DDL ("user string, amount double"), or "infer"."""
    avro_schema: str | None = Field(default=None, min_length=1)
    """Schema of Avro values: the path of an .avsc file, or its text."""
    avro_id: int | None = Field(default=None, ge=0, le=2**32 - 1)
    """Id of `avro_schema` in a registry, if each value begins with a zero byte and this id."""
    schema_registry: SecretStr | None = None
    """Address of the schema registry for the values; it may contain a password."""
    schema_registry_options: dict[str, SecretStr] = Field(default_factory=dict)
    """Options of the registry's client, by confluent-kafka's names; they may include keys."""
    schema_subject: str | None = Field(default=None, min_length=1)
    """Registry subject; its newest schema gives the columns. None: INPUT-value, for the stream's input."""
    schema_record: str | None = Field(default=None, min_length=1)
    """Only record (Avro), message (Protobuf) or title (JSON Schema) to accept; None: any."""
    store: Annotated[str, AfterValidator(_known_store)] = "delta"
    """Kind of store, a name in `kafka_ratchet.spark_sink.stores.registry.STORES`."""
    path: str = Field(default="ratchet-results", min_length=1)
    """Folder of the result table (delta, iceberg), or its file (duckdb)."""
    table: str = Field(default="results", min_length=1)
    """Name of the result table; not used with Delta, where `path` is the table."""
    url: SecretStr | None = None
    """Address of the database, for store postgres or mysql; it may contain a password."""
    password: SecretStr | None = None
    storage_options: dict[str, SecretStr] = Field(default_factory=dict)
    """Options for access to a bucket (path = "s3://bucket/folder"); they may include keys."""
    catalog: dict[str, SecretStr] = Field(default_factory=dict)
    """Properties of the catalog for store iceberg, by pyiceberg's names; empty: a SQLite file in `path`."""
    evolve: Literal["add"] | None = None
    """"add": the job adds columns that the table lacks, and widens types. None: it refuses a table that differs."""
    partition_by: tuple[str, ...] = ()
    """Partitioning of the table's files; each entry is a column, day(column) or hour(column)."""
    kind: Literal["append", "upsert", "totals"] = "append"
    """Rows of the table: one for each record, the last one of each key, or counts and sums of each key."""
    key: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    averages: tuple[str, ...] = ()
    mins: tuple[str, ...] = ()
    maxes: tuple[str, ...] = ()
    distinct: tuple[str, ...] = ()
    """Columns with distinct values to be counted in the totals."""
    window: str | None = Field(default=None, min_length=1)
    """Length of the event-time windows of the totals, such as "1 hour". None: totals over all time."""
    slide: str | None = Field(default=None, min_length=1)
    """Time from the start of one window to the start of the next, such as "5 minutes". None: `window`, no overlap."""
    time: str = Field(default="_kafka_timestamp", min_length=1)
    """Column with the event time of a row."""
    rejects: bool = False
    """True: write unparsable values to a separate table, the rejects."""
    keep_value: bool = False
    """True: store `_kafka_value` of every record; False: only of records with unparsable values."""
    sql: str | None = Field(default=None, min_length=1)
    """Query over the view `records` that returns the rows of the table."""
    transform: str | None = Field(default=None, min_length=1)
    """module:function that takes the records as a DataFrame, and returns the rows of the table as another."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port on which the running job serves its metrics; 0: a free port, which the job logs. None: no metrics."""
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    metrics_file: str | None = Field(default=None, min_length=1)
    """File for the metrics of a successful batch run, for node_exporter's textfile collector."""
    name: str = Field(default="results", pattern=r"^[a-z][a-z0-9_-]{0,62}$")
    """Name of the job. A job fences an older one of the same name; jobs of different names may share a table."""

    def __repr__(self) -> str:
        """Return a text that shows no setting, because queries and paths may be private."""
        return "SinkSettings(...)"

    __str__ = __repr__
