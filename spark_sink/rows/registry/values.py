"""Values of a schema registry: the schemas named by records, and the rows of their values.

The driver fetches each schema once, before it makes rows of the records. So an unavailable registry interrupts no
commit, one decision on a missing schema is valid for all tasks, and no executor needs the registry's address.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.extras import require_package
from kafka_ratchet.spark_sink.rows import columns as column_types
from kafka_ratchet.spark_sink.rows import decoded
from kafka_ratchet.spark_sink.rows.avro import avro, resolution
from kafka_ratchet.spark_sink.rows.avro import schema as avro_schema
from kafka_ratchet.spark_sink.rows.avro import task as avro_task
from kafka_ratchet.spark_sink.rows.registry import json_schema, json_task, protobuf, protobuf_task, task
from kafka_ratchet.spark_sink.rows.registry.client import Schema, SchemaRegistry, SchemaUnusable, as_object
from kafka_ratchet.spark_sink.spark.dialect import arrow_schema
from kafka_ratchet.spark_sink.spark.python_worker import map_batches

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger("spark_sink")

Framed = Literal["avro", "protobuf", "json"]
"""Kinds of values after the schema's key."""

HEADER = "__value_schema_id"
"""Record header in which confluent-kafka writes a schema's GUID."""

CONTEXT = ":."
"""Start of a subject's name outside the registry's default context; each context has its own ids."""

MAX_KEYS = 10_000
"""Maximum number of schemas that the records of one commit name. More names would be bytes that only look like schema
keys."""

SHOWN = 10
"""Maximum number of schemas that the log names for one commit, and of fields for one schema."""


@dataclass(frozen=True)
class RegistryValues:
    """Values that begin with the key of a registry's schema, and their options.

    Raises:
        OptionRefused: a package is missing, or the reader's schema is not a schema.
    """

    kind: Framed
    options: Mapping[str, str] = field(repr=False)
    """Options of the client, by its own names, including `url`."""
    topic: str = ""
    """Name of the topic, for messages and for the subject."""
    subject: str | None = None
    """Subject with the columns in its newest schema; None: `topic`-value. Schema ids belong to the subject's context,
    such as ".staging" of ":.staging:orders-value"."""
    record: str | None = None
    """Only accepted record (Avro), message (Protobuf) or title (JSON Schema); None: any."""
    reader: str | None = None
    """Schema that the columns come from, as the text of an .avsc file; None: they come from no such schema."""
    _reader: avro_schema.Node | None = field(init=False, repr=False, compare=False)
    _clients: dict[str, SchemaRegistry] = field(init=False, repr=False, compare=False, default_factory=dict)
    _known: dict[tuple[bytes, str], dict[Any, Any]] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Decoding plans, by the schema's key and the text of the columns."""

    def __post_init__(self) -> None:
        needs = f"values of a schema registry ({self.kind})"
        require_package("httpx2", needs)
        if self.kind != "avro":
            require_package("google.protobuf" if self.kind == "protobuf" else "jsonschema", needs)
        reader = None
        if self.reader is not None:
            try:
                reader = avro_schema.parsed(avro.schema_object(self.reader))
            except avro_schema.SchemaWrong as error:
                raise OptionRefused(f"avro schema: {error}. Correct the schema") from None
        object.__setattr__(self, "_reader", reader)

    @property
    def registry(self) -> SchemaRegistry:
        """Return the client, made at its first use."""
        if not self._clients:
            self._clients[""] = SchemaRegistry(self.options)
        return self._clients[""]

    def require_answer(self) -> str:
        """Require that the registry answers a request, and return its address; raises as `newest_columns` does."""
        self.registry.require_answer()
        return self.registry.address

    def newest_columns(self) -> StructType:
        """Return the columns of the subject's newest schema.

        Raises:
            OptionRefused: the subject is missing, or its schema has a type that no table can hold.
            RegistryUnavailable: the registry does not answer.
            RegistryRefused: the registry denies access.
        """
        subject = self.subject or f"{self.topic}-value"
        try:
            found = self._columns_of(self.registry.latest(subject, self.kind.upper()))
        except (SchemaUnusable, avro_schema.SchemaWrong, OptionRefused) as error:
            raise OptionRefused(
                f"topic {self.topic}: cannot take columns from the newest schema of subject {subject!r}: {error}. "
                "Name the columns to read, or name another subject (sink.schema_subject)"
            ) from None
        log.info("topic %s: columns of subject %s are %s", self.topic, subject, found.simpleString())
        return found

    def _columns_of(self, schema: Schema) -> StructType:
        if self.kind == "protobuf":
            return column_types.checked(protobuf.columns_of(self._message_of(schema)))
        found, named = as_object(schema), {name: as_object(each) for name, each in schema.needed()}
        if self.kind == "json":
            self._require_record(found.get("title") if isinstance(found, dict) else None)
            return column_types.checked(json_schema.columns_of(found, named))
        self._require_record(avro_schema.parsed(found, named).name)
        return avro.AvroValues(json.dumps(avro_schema.self_contained(found, named))).columns

    def _message_of(self, schema: Schema) -> Any:
        found = [each for _, each in protobuf.messages(protobuf.file_of(schema))]
        chosen = [each for each in found if self.record in {None, each.full_name}]
        if not chosen:
            raise SchemaUnusable(f"it has no message {self.record}")
        return chosen[0]

    # -- the records of one commit

    def rows(
        self, records: DataFrame, columns: StructType, *, restricted_values: int, keep_value: bool = False
    ) -> DataFrame:
        """Turn records of Spark's Kafka source into rows, as `columns.rows` does for JSON values.

        Raises:
            RegistryUnavailable: a schema is needed, and the registry does not answer.
            RegistryRefused: the registry denies access.
            OptionRefused: the records name more than `MAX_KEYS` schemas.
        """
        from pyspark import cloudpickle
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

        header = F.lit(None).cast("binary")
        if "headers" in records.columns:
            ours = F.filter("headers", lambda each: each["key"] == HEADER)
            header = F.get(ours, F.size(ours) - 1)["value"]  # the last of several, as Java's deserializers do
        plans = self._plans(_keys(records, header), columns)
        for module in (task, decoded, avro_task, protobuf_task, json_task):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        record = [F.col(name) for name in ("partition", "offset", "timestamp", "key")]
        framed = records.select(*record, header.alias("header"), "value")
        result = column_types.result_schema(columns)
        if self.kind == "json":
            names = ("partition", "offset", "timestamp", "key", "header", "original", "value")
            types = [each.dataType for each in result.fields[-5:-1]] + [BinaryType()] * 3
            schema = StructType([StructField(*each) for each in zip(names, types, strict=True)])
            made = task.payloads(json_task.validators, plans, arrow_schema(schema))
            parsed = map_batches(framed, made, schema)
            return column_types.rows(
                parsed, columns, restricted_values=restricted_values, keep_value=keep_value, original="original"
            )
        schema = StructType([*result.fields, StructField(column_types.STATE, IntegerType())])
        made = task.decoding(
            protobuf_task.decode if self.kind == "protobuf" else avro_task.decode,
            plans,
            restricted_values,
            self.kind == "protobuf",
            columns.names,
            keep_value,
            arrow_schema(schema),
        )
        return map_batches(framed, made, schema)

    def _plans(self, seen: Mapping[bytes | None, int], columns: StructType) -> dict[Any, Any]:
        """Return the decoding plan of each schema in use; log why a schema's values do not parse."""
        if len(seen) > MAX_KEYS:
            raise OptionRefused(
                f"topic {self.topic}: the records of one commit name more than {MAX_KEYS} schemas, so their values "
                "are probably not in the registry's format. Read fewer records in one commit (--max-records), "
                "or choose another format"
            )
        plans: dict[Any, Any] = {}
        lost: list[str] = []
        for key, count in seen.items():
            if key is None:
                lost.append(f"{count} without a schema's id in front")
                continue
            try:
                plans.update(self._plan(key, columns))
            except (SchemaUnusable, avro_schema.SchemaWrong) as error:
                lost.append(f"{count} of schema {shown(key)}: {error}")
        for each in lost[:SHOWN]:
            log.warning("topic %s: these values do not parse: %s", self.topic, each)
        if len(lost) > SHOWN:
            log.warning("topic %s: values of %d further schemas do not parse", self.topic, len(lost) - SHOWN)
        return plans

    def _plan(self, key: bytes, columns: StructType) -> dict[Any, Any]:
        known = self._known.get((key, columns.json()))
        if known is not None:
            return known
        in_context = self.subject if (self.subject or "").startswith(CONTEXT) else None
        schema = self.registry.schema(key, in_context, self.kind.upper())
        try:
            made = self._made(key, schema, columns)
        except RecursionError:
            raise SchemaUnusable("it has types nested too deep") from None
        if len(self._known) >= MAX_KEYS:
            self._known.clear()
        self._known[key, columns.json()] = made
        return made

    def _made(self, key: bytes, schema: Schema, columns: StructType) -> dict[Any, Any]:
        if self.kind == "protobuf":
            return self._of_messages(key, schema, columns)
        named = {name: as_object(each) for name, each in schema.needed()}
        if self.kind == "json":
            found = as_object(schema)
            json_schema.require_schema(found)
            self._require_record(found.get("title") if isinstance(found, dict) else None)
            return {key: (found, named)}
        written = avro_schema.parsed(as_object(schema), named)
        self._require_record(written.name)
        resolved = resolution.Resolution(written, columns, self._reader)
        self._say(key, resolved.refused, resolved.left_out)
        return {key: resolved.plan}

    def _of_messages(self, key: bytes, schema: Schema, columns: StructType) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        reason = f"it has no message {self.record}"
        for indexes, message in protobuf.messages(protobuf.file_of(schema)):
            if self.record in {None, message.full_name}:
                try:
                    reading = protobuf.Reading(message, columns)
                except SchemaUnusable as error:
                    reason = str(error)
                    continue
                self._say(key, reading.refused, reading.left_out)
                made[key, indexes] = reading.plan
        if not made:
            raise SchemaUnusable(reason)
        return made

    def _require_record(self, name: object) -> None:
        if self.record is not None and name != self.record:
            raise SchemaUnusable(f"it is {name!r}, not {self.record!r}")

    def _say(self, key: bytes, refused: list[str], left_out: list[str]) -> None:
        for each in refused[:SHOWN]:
            log.warning("topic %s: schema %s: values do not parse if they have %s", self.topic, shown(key), each)
        if left_out:
            log.warning(
                "topic %s: schema %s has fields without a column, so that they are NOT in the table: %s%s",
                self.topic,
                shown(key),
                ", ".join(left_out[:SHOWN]),
                f" and {len(left_out) - SHOWN} more" if len(left_out) > SHOWN else "",
            )


def _keys(records: DataFrame, header: Column) -> dict[bytes | None, int]:
    """Count the records of each schema key; the key None counts records without a schema key."""
    from pyspark import cloudpickle
    from pyspark.sql import functions as F

    frame = F.coalesce(header, F.col("value"))
    # Only the key itself: bytes that differ in every record stay out of the count.
    is_id = F.substring(frame, 1, 1) == F.lit(bytearray(b"\0"))
    key = F.when(is_id, F.substring(frame, 1, 5)).otherwise(F.substring(frame, 1, 17))
    cloudpickle.register_pickle_by_value(task)  # type: ignore[no-untyped-call]
    found: dict[bytes | None, int] = {}
    of_values = records.where(F.col("value").isNotNull()).select(key.alias("key"))
    for row in map_batches(of_values, task.keys, "key binary, seen long").collect():
        at = None if row.key is None else bytes(row.key)
        found[at] = found.get(at, 0) + row.seen
    return found


def shown(key: bytes) -> str:
    """Return an id or a GUID as text."""
    return str(UUID(bytes=key[1:])) if key[:1] == b"\1" else str(int.from_bytes(key[1:], "big"))
