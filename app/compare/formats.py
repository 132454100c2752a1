"""Formats of a topic's values: JSON, bytes, or Avro, Protobuf and JSON Schema with a registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

from kafka_ratchet.app.compare.record_columns import UNREADABLE, Decode, from_json
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.spark_sink.extras import require_package
from kafka_ratchet.spark_sink.rows.registry.client import NUMBERS, TIMEOUT_S

Format = Literal["json", "avro", "protobuf", "json-schema", "bytes"]

MAGIC: Final = 0
"""First byte of a value that names its schema in a registry."""


def decoder(name: str, topic: str, registry: str | None, options: Mapping[str, str]) -> Decode | None:
    """Return the decoder of a topic's values; None for JSON, which is read field by field.

    Args:
        name: one of `Format`.
        topic: topic of the values.
        registry: address of the schema registry.
        options: options of the registry's client, in confluent-kafka's names.

    Raises:
        SettingsError: the format is unknown, or needs a registry or a package.
    """
    if name not in get_args(Format):
        raise SettingsError(f"--value-format {name!r}: write one of {', '.join(get_args(Format))}")
    if name == "json":
        return None
    if name == "bytes":
        return lambda value: UNREADABLE
    if registry is None:
        raise SettingsError(f"--value-format {name} needs a schema registry. Give --schema-registry http://HOST:8081")
    if name == "json-schema":
        return _behind_frame
    require_package("httpx2", f"values in {name} need a schema registry's client")
    from confluent_kafka.schema_registry import SchemaRegistryClient

    try:
        client = SchemaRegistryClient(
            {"timeout": TIMEOUT_S, "url": registry, **{name: _option(name, text) for name, text in options.items()}}
        )
    except (ValueError, TypeError, OSError) as error:
        raise SettingsError(f"--schema-registry, --registry-option: {error}") from None
    return _avro(client, topic) if name == "avro" else _protobuf(client)


def _option(name: str, text: str) -> object:
    """Convert an option to the type that the registry's client expects, a number or text."""
    try:
        return (float(text) if "." in text else int(text)) if name in NUMBERS else text
    except ValueError:
        raise SettingsError(f"--registry-option {name}={text}: the value must be a number") from None


def _unframed(value: bytes) -> bytes:
    """Return a value without the five bytes that name its schema in a registry.

    Raises:
        ValueError: the value does not begin with these bytes.
    """
    if len(value) < 5 or value[0] != MAGIC:
        raise ValueError("the value does not begin with the id of a schema")
    return value[5:]


def _behind_frame(value: bytes | None) -> Any:
    try:
        return UNREADABLE if value is None else from_json(_unframed(value))
    except ValueError:
        return UNREADABLE


def _avro(client: Any, topic: str) -> Decode:
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    read, context = AvroDeserializer(client), SerializationContext(topic, MessageField.VALUE)
    return _safely(lambda value: read(value, context))


def _protobuf(client: Any) -> Decode:
    """Return a decoder of Protobuf values, which requests each schema once from the registry."""
    import base64

    from google.protobuf import (  # the last four for their files in the default pool
        any_pb2,  # noqa: F401
        descriptor_pb2,
        descriptor_pool,
        duration_pb2,  # noqa: F401
        json_format,
        message_factory,
        timestamp_pb2,  # noqa: F401
        wrappers_pb2,  # noqa: F401
    )

    known: dict[int, Any] = {}

    def classes(number: int) -> Any:
        if number not in known:
            schema = client.get_schema(number, None, "serialized")
            pool = descriptor_pool.DescriptorPool()
            for reference in schema.references or []:
                version = client.get_version(reference.subject, reference.version, True, "serialized")
                file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(version.schema.schema_str))
                file.name = reference.name
                pool.Add(file)
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.schema_str))
            file.name = file.name or "default.proto"
            for name in file.dependency:
                if name.startswith("google/protobuf/"):  # the registry has no copy of these
                    known_file = descriptor_pool.Default().FindFileByName(name)
                    pool.AddSerializedFile(known_file.serialized_pb)
            pool.Add(file)
            known[number] = (pool, pool.FindFileByName(file.name))
        return known[number]

    def read(value: bytes) -> Any:
        number = int.from_bytes(value[1:5], "big")
        indexes, rest = _indexes(_unframed(value))
        _, file = classes(number)
        found = file.message_types_by_name[list(file.message_types_by_name)[indexes[0]]]
        for index in indexes[1:]:
            found = found.nested_types[index]
        message = message_factory.GetMessageClass(found).FromString(rest)
        return json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )

    return _safely(read)


def _indexes(data: bytes) -> tuple[list[int], bytes]:
    """Read the message indexes that confluent's serializers write before a Protobuf message.

    Returns (the indexes, the bytes after them).
    """
    count, at = _varint(data, 0)
    if count == 0:
        return [0], data[at:]
    found = []
    for _ in range(count):
        index, at = _varint(data, at)
        found.append(index)
    return found, data[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at
        if shift > 63:
            raise ValueError("a varint has too many bytes")


def _safely(read: Callable[[bytes], Any]) -> Decode:
    """Return a decoder that returns `UNREADABLE` for malformed bytes, and raises errors of the registry."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    from kafka_ratchet.errors import SourceError

    def decode(value: bytes | None) -> Any:
        if value is None or len(value) < 5 or value[0] != MAGIC:
            return UNREADABLE
        try:
            return read(value)
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                return UNREADABLE
            raise SourceError(
                f"the schema registry does not answer: {error}. Check its address and that it runs"
            ) from None
        except OSError as error:
            raise SourceError(
                f"the schema registry does not answer: {error}. Check its address and that it runs"
            ) from None
        except Exception as error:
            if type(error).__module__.startswith(("httpx", "httpcore")):
                raise SourceError(
                    f"the schema registry does not answer: {error}. Check its address and that it runs"
                ) from None
            return UNREADABLE

    return decode
