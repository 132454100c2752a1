"""Protobuf: the columns of a message, and the plans that read messages into the columns of a table."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.registry.client import Schema, SchemaUnusable

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
    from pyspark.sql.types import DataType, StructType

Plan = tuple[Any, ...]

MAX_MESSAGES = 1_000
"""Maximum number of messages in one file."""

MAX_DEPTH = 32
"""Maximum depth of nested messages. Each message is a level of Python's stack while values are read."""

TYPES = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    10: "group",
    11: "message",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
"""Names of field types, by the numbers of descriptor.proto."""

RANGES = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), (-(2**31), 2**31 - 1)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), (-(2**63), 2**63 - 1)),
    **dict.fromkeys(("uint32", "fixed32"), (0, 2**32 - 1)),
    **dict.fromkeys(("uint64", "fixed64"), (0, 2**64 - 1)),
}

WHOLE = {"byte": 8, "short": 16, "integer": 32, "long": 64}
"""Number of bits of each type of whole numbers, by Spark's names of the types."""

WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def file_of(schema: Schema) -> FileDescriptor:
    """Return the Protobuf file descriptor of a schema.

    Raises:
        SchemaUnusable: the registry returned no descriptor, or one without an import.
    """
    from confluent_kafka.schema_registry.common.protobuf import _init_pool
    from google.protobuf import descriptor_pb2
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    pool = DescriptorPool()
    _init_pool(pool)  # files that the deserializer takes for known: Google's and Confluent's own
    try:
        name = ""
        for name, each in [*schema.needed(), ("value.proto", schema)]:
            found = descriptor_pb2.FileDescriptorProto()
            found.ParseFromString(base64.standard_b64decode(each.text.encode("ascii")))
            found.name = name
            pool.Add(found)
        return pool.FindFileByName(name)
    except (DecodeError, ValueError, TypeError, KeyError):
        raise SchemaUnusable(
            "the registry returned no Protobuf descriptor, or one without an import. Use a registry that supports "
            "format=serialized"
        ) from None


def messages(file: FileDescriptor) -> Iterator[tuple[tuple[int, ...], Descriptor]]:
    """Yield each message of a file, nested ones too, with its list of message indexes.

    Raises:
        SchemaUnusable: the file has more than `MAX_MESSAGES` messages.
    """
    left: list[tuple[tuple[int, ...], Descriptor]] = [
        ((n,), each) for n, each in enumerate(file.message_types_by_name.values())
    ]
    for count, (indexes, each) in enumerate(_walk(left)):
        if count >= MAX_MESSAGES:
            raise SchemaUnusable(f"it has more than {MAX_MESSAGES} messages")
        yield indexes, each


def _walk(left: list[tuple[tuple[int, ...], Descriptor]]) -> Iterator[tuple[tuple[int, ...], Descriptor]]:
    while left:
        indexes, each = left.pop(0)
        yield indexes, each
        left += [((*indexes, n), within) for n, within in enumerate(each.nested_types)]


class Reading:
    """Plan for reading one kind of Protobuf message into columns.

    Attributes:
        plan: plan for `protobuf_task.decode`.
        refused: fields that make a value unparsable if set, each as "field a.b: why".
        left_out: fields without a column, as "a.b".
    """

    def __init__(self, descriptor: Descriptor, columns: StructType) -> None:
        self.refused: list[str] = []
        self.left_out: list[str] = []
        if not {field.name for field in columns.fields} & {field.name for field in descriptor.fields}:
            raise SchemaUnusable(f"none of the fields of {descriptor.full_name} is a column")
        self.plan = self._message(descriptor, columns, "")

    def _message(self, descriptor: Descriptor, columns: StructType, before: str) -> Plan:
        types = {column.name: column.dataType for column in columns.fields}
        fields: dict[int, Plan] = {}
        absent: dict[str, Any] = {}
        for each in descriptor.fields:
            path = f"{before}{each.name}"
            if each.name not in types:
                self.left_out.append(path)
                continue
            kind, many = self._field(each, types[each.name], path)
            oneof = each.containing_oneof
            others = () if oneof is None else tuple(f.name for f in oneof.fields if f is not each and f.name in types)
            fields[each.number] = (each.name, many, others, kind)
            if many:
                absent[each.name] = {} if many == "map" else []
            elif not each.has_presence and kind[0] != "refused":
                absent[each.name] = _absent(each, kind)
        for each in descriptor.fields:  # a field without a column clears the other fields of its oneof as well
            oneof = each.containing_oneof
            others = () if oneof is None else tuple(f.name for f in oneof.fields if f is not each and f.name in types)
            if each.name not in types and others:
                fields[each.number] = (f"\0{each.name}", False, others, _skip_plan(each))
        return ("message", fields, absent)

    def _field(self, field: FieldDescriptor, column: DataType, path: str) -> tuple[Plan, bool | str]:
        wanted = column.typeName()
        if _is_map(field):
            if wanted != "map":
                return self._refuse(path, "a map", column), False
            entry = field.message_type.fields_by_name
            key = self._one(entry["key"], column.keyType, f"{path}[]")  # type: ignore[attr-defined]
            value = self._one(entry["value"], column.valueType, f"{path}[]")  # type: ignore[attr-defined]
            if key[0] == "refused":
                return key, "map"
            absent = {"key": _absent(entry["key"], key), "value": _absent(entry["value"], value)}
            return (
                "message",
                "entry",
                ("message", {1: ("key", False, (), key), 2: ("value", False, (), value)}, absent),
            ), "map"
        if field.is_repeated:
            if wanted != "array":
                return self._refuse(path, "repeated", column), False
            return self._one(field, column.elementType, f"{path}[]"), True  # type: ignore[attr-defined]
        return self._one(field, column, path), False

    def _one(self, field: FieldDescriptor, column: DataType, path: str) -> Plan:
        kind, wanted = TYPES[field.type], column.typeName()
        if kind == "message":
            return self._within(field.message_type, column, path)
        if kind == "enum" and wanted == "string":
            names: dict[int, str] = {}
            for value in field.enum_type.values:
                names.setdefault(value.number, value.name)  # the first of several aliases
            return ("enum", wanted, names)
        if kind == "bool" and wanted == "boolean":
            return (kind, wanted)
        if kind in {"string", "bytes"} and wanted == {"string": "string", "bytes": "binary"}[kind]:
            return (kind, wanted)
        if kind in {"float", "double", *RANGES} and wanted in {"float", "double"}:
            return (kind, wanted)
        low, high = RANGES.get(kind, (1, 0))
        if kind in RANGES and wanted in WHOLE:
            bits = WHOLE[wanted] - 1
            return (kind, wanted, max(low, -(2**bits)), min(high, 2**bits - 1))
        if kind in RANGES and wanted == "decimal" and column.scale == 0:  # type: ignore[attr-defined]
            bound = 10**column.precision - 1  # type: ignore[attr-defined]
            return (kind, wanted, max(low, -bound), min(high, bound))
        return self._refuse(path, kind, column)

    def _within(self, descriptor: Descriptor, column: DataType, path: str) -> Plan:
        from pyspark.sql.types import LongType, StructField, StructType

        wanted = column.typeName()
        if isinstance(column, StructType):
            return ("message", "struct", self._message(descriptor, column, f"{path}."))
        if wanted == "timestamp" and descriptor.full_name == "google.protobuf.Timestamp":
            parts = StructType([StructField(name, LongType()) for name in ("seconds", "nanos")])
            return ("message", "time", self._message(descriptor, parts, f"{path}."))
        if descriptor.full_name in WRAPPERS:
            inner = self._message(descriptor, StructType([StructField("value", column)]), f"{path}.")
            *_, kind = inner[1][1]  # field 1 is `value`, the only one
            return kind if kind[0] == "refused" else ("message", "wrapped", inner)
        return self._refuse(path, f"message {descriptor.full_name}", column)

    def _refuse(self, path: str, kind: str, column: DataType) -> Plan:
        reason = f"field {path}: {kind}, and the column is {column.simpleString()}"
        self.refused.append(reason)
        return ("refused", reason)


def _skip_plan(field: FieldDescriptor) -> Plan:
    """Return a decoding plan that skips a field's value, by its wire type."""
    kind = TYPES[field.type]
    if kind in {"double", "float"}:
        return (kind, kind)
    if kind in {"string", "bytes", "message"}:
        return ("bytes", "binary")
    return (
        ("fixed64" if kind == "sfixed64" else "fixed32" if kind == "sfixed32" else kind, "boolean")
        if kind in {"fixed64", "sfixed64", "fixed32", "sfixed32"}
        else ("bool", "boolean")
    )


def _absent(field: FieldDescriptor, kind: Plan) -> Any:
    """Return the value of an absent field: 0, empty, or the first name of its enum; None for messages."""
    if kind[0] == "refused":
        return None
    if kind[0] == "enum":
        return kind[2].get(0, field.enum_type.values[0].name)
    if kind[0] == "message":
        return None
    if kind[1] == "decimal":
        from decimal import Decimal

        return Decimal(0)
    return {"string": "", "binary": b"", "boolean": False, "float": 0.0, "double": 0.0}.get(kind[1], 0)


def _is_map(field: FieldDescriptor) -> bool:
    return bool(TYPES[field.type] == "message" and field.is_repeated and field.message_type.GetOptions().map_entry)


def columns_of(descriptor: Descriptor) -> StructType:
    """Return the columns of a message.

    Raises:
        OptionRefused: a field has a type that a table cannot hold; the caller adds the remedy.
    """
    return _struct(descriptor, ())


def _struct(descriptor: Descriptor, within: tuple[str, ...]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    if descriptor.full_name in within:
        raise OptionRefused(f"message {descriptor.full_name} contains itself, so a table cannot hold it")
    if len(within) > MAX_DEPTH:
        raise OptionRefused(f"message {within[0]} has messages nested more than {MAX_DEPTH} deep")
    if not descriptor.fields:
        raise OptionRefused(f"message {descriptor.full_name} has no fields, so a table cannot hold it")
    inner = (*within, descriptor.full_name)
    return StructType([StructField(each.name, _column(each, inner)) for each in descriptor.fields])


def _column(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    from pyspark.sql.types import ArrayType, MapType

    if _is_map(field):
        entry = field.message_type.fields_by_name
        return MapType(_value(entry["key"], within), _value(entry["value"], within))
    found = _value(field, within)
    return ArrayType(found) if field.is_repeated else found


def _value(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    from pyspark.sql import types as T

    kind = TYPES[field.type]
    if kind == "message":
        return _struct(field.message_type, within)
    if kind == "group":
        raise OptionRefused(f"field {field.full_name} is a group, which is not supported")
    if kind in {"uint64", "fixed64"}:
        return T.DecimalType(20, 0)
    plain: dict[str, type[DataType]] = {
        "double": T.DoubleType,
        "float": T.FloatType,
        "bool": T.BooleanType,
        "bytes": T.BinaryType,
        "string": T.StringType,
        "enum": T.StringType,
    }
    if kind in plain:
        return plain[kind]()
    return T.IntegerType() if kind in {"int32", "sint32", "sfixed32"} else T.LongType()
