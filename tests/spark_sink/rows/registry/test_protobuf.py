"""Protobuf: what Google's own parser reads, and no bytes that end a task."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2, wrappers_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.ddl import read_ddl
from kafka_ratchet.spark_sink.rows.registry import protobuf
from kafka_ratchet.spark_sink.rows.registry.client import Schema, SchemaUnusable
from kafka_ratchet.spark_sink.rows.registry.protobuf_task import decode
from kafka_ratchet.spark_sink.rows.registry.task import indexes_of

F = descriptor_pb2.FieldDescriptorProto
KINDS = {
    "double": F.TYPE_DOUBLE, "float": F.TYPE_FLOAT, "int64": F.TYPE_INT64, "uint64": F.TYPE_UINT64,
    "int32": F.TYPE_INT32, "fixed64": F.TYPE_FIXED64, "fixed32": F.TYPE_FIXED32, "bool": F.TYPE_BOOL,
    "string": F.TYPE_STRING, "bytes": F.TYPE_BYTES, "uint32": F.TYPE_UINT32, "sfixed32": F.TYPE_SFIXED32,
    "sfixed64": F.TYPE_SFIXED64, "sint32": F.TYPE_SINT32, "sint64": F.TYPE_SINT64,
}  # fmt: skip


def shop() -> descriptor_pb2.FileDescriptorProto:
    """A file with each type once, and once repeated, and what Protobuf has besides."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    colour = file.enum_type.add(name="Colour")
    for number, name in enumerate(("NONE", "RED", "BLUE")):
        colour.value.add(name=name, number=number)
    all_of = file.message_type.add(name="All")
    for number, (name, kind) in enumerate(KINDS.items(), 1):
        all_of.field.add(name=f"one_{name}", number=number, type=kind, label=1)
        all_of.field.add(name=f"many_{name}", number=number + 100, type=kind, label=3)
    within = all_of.nested_type.add(name="In")
    within.field.add(name="n", number=1, type=F.TYPE_INT32, label=1)
    within.field.add(name="t", number=2, type=F.TYPE_STRING, label=3)
    all_of.field.add(name="colour", number=40, type=F.TYPE_ENUM, label=1, type_name=".shop.Colour")
    all_of.field.add(name="colours", number=41, type=F.TYPE_ENUM, label=3, type_name=".shop.Colour")
    all_of.field.add(name="inner", number=42, type=F.TYPE_MESSAGE, label=1, type_name=".shop.All.In")
    all_of.field.add(name="inners", number=43, type=F.TYPE_MESSAGE, label=3, type_name=".shop.All.In")
    all_of.oneof_decl.add(name="either")
    all_of.field.add(name="left", number=44, type=F.TYPE_INT64, label=1, oneof_index=0)
    all_of.field.add(name="right", number=45, type=F.TYPE_MESSAGE, label=1, type_name=".shop.All.In", oneof_index=0)
    entry = all_of.nested_type.add(name="ByNameEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=F.TYPE_MESSAGE, label=1, type_name=".shop.All.In")
    all_of.field.add(name="by_name", number=46, type=F.TYPE_MESSAGE, label=3, type_name=".shop.All.ByNameEntry")
    all_of.field.add(name="at", number=47, type=F.TYPE_MESSAGE, label=1, type_name=".google.protobuf.Timestamp")
    all_of.field.add(name="say", number=48, type=F.TYPE_MESSAGE, label=1, type_name=".google.protobuf.StringValue")
    loop = file.message_type.add(name="Loop")
    loop.field.add(name="next", number=1, type=F.TYPE_MESSAGE, label=1, type_name=".shop.Loop")
    loop.field.add(name="n", number=2, type=F.TYPE_INT32, label=1)
    return file


POOL = descriptor_pool.DescriptorPool()
for known in (timestamp_pb2, wrappers_pb2, duration_pb2):
    POOL.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
POOL.Add(shop())
ALL = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.All"))
COLUMNS = protobuf.columns_of(ALL.DESCRIPTOR)


def plan(columns: StructType | str, message: Any = ALL) -> protobuf.Reading:
    return protobuf.Reading(message.DESCRIPTOR, read_ddl(columns) if isinstance(columns, str) else columns)


def said(message: Any) -> dict[str, Any]:
    """A message as the columns have it, by Google's own."""
    found: dict[str, Any] = {}
    for each in message.DESCRIPTOR.fields:
        value = getattr(message, each.name)
        if each.name == "by_name":
            found[each.name] = {key: said(inner) for key, inner in value.items()}
        elif each.enum_type is not None:
            names = each.enum_type.values_by_number
            found[each.name] = [names[n].name for n in value] if each.is_repeated else names[value].name
        elif each.message_type is not None:
            single = said(value) if not each.is_repeated and message.HasField(each.name) else None
            found[each.name] = [said(inner) for inner in value] if each.is_repeated else single
        elif each.has_presence and not message.HasField(each.name):
            found[each.name] = None
        else:
            found[each.name] = list(value) if each.is_repeated else value
    return found


BOUNDS = {
    "int32": (-(2**31), 2**31 - 1), "sint32": (-(2**31), 2**31 - 1), "sfixed32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1), "sint64": (-(2**63), 2**63 - 1), "sfixed64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1), "fixed32": (0, 2**32 - 1), "uint64": (0, 2**64 - 1), "fixed64": (0, 2**64 - 1),
}  # fmt: skip
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.integers(*bounds) for name, bounds in BOUNDS.items()},
    "double": st.floats(allow_nan=False),
    "float": st.floats(allow_nan=False, width=32),
    "bool": st.booleans(),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
}
IN = st.builds(lambda n, t: {"n": n, "t": t}, VALUES["int32"], st.lists(VALUES["string"], max_size=2))
COLOURS = st.integers(0, 2)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        **{f"one_{name}": each for name, each in VALUES.items()},
        **{f"many_{name}": st.lists(each, max_size=3) for name, each in VALUES.items()},
        "colour": COLOURS,
        "colours": st.lists(COLOURS, max_size=3),
        "inner": IN,
        "inners": st.lists(IN, max_size=2),
        "left": VALUES["int64"],
        "right": IN,
        "by_name": st.dictionaries(VALUES["string"], IN, max_size=2),
        "at": st.builds(lambda s, n: {"seconds": s, "nanos": n}, st.integers(0, 9), st.integers(0, 9)),
        "say": st.builds(lambda value: {"value": value}, VALUES["string"]),
    },
)


def filled(values: dict[str, Any]) -> Any:
    message = ALL()
    for name, value in values.items():
        if name == "by_name":
            for key, inner in value.items():
                message.by_name[key].MergeFrom(type(message.inner)(**inner))
        else:
            message.MergeFrom(ALL(**{name: value}))
    return message


@settings(max_examples=200, deadline=None)
@given(st.lists(FIELDS, min_size=1, max_size=3))
def test_what_is_read_is_what_googles_parser_reads(several: list[dict[str, Any]]) -> None:
    data = b"".join(filled(each).SerializeToString() for each in several)  # of a message that comes twice, both count
    wanted = ALL()
    wanted.ParseFromString(data)
    made = plan(COLUMNS)
    assert (made.refused, made.left_out) == ([], [])
    found = decode(made.plan, False)(data, 0)
    found["by_name"] = dict(found["by_name"])
    assert {field.name: found.get(field.name) for field in COLUMNS.fields} == said(wanted)
    assert decode(made.plan, False)(b"frame" + data, 5) is not None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
@example(b"\x80\x80\x80\x80\x10\x00")  # a field's number of 30 bits
@example(b"\x88\x80\x80\x80\x80\x00\x01")  # a small one in six bytes
def test_no_bytes_raise_and_what_is_read_is_what_google_takes(data: bytes) -> None:
    found = decode(plan(COLUMNS).plan, True)(data, 0)
    if found is not None:
        ALL().ParseFromString(data)


def test_what_a_column_does_not_hold_unchanged_does_not_parse() -> None:
    def read(columns: str, **values: Any) -> Any:
        return decode(plan(columns).plan, True)(ALL(**values).SerializeToString(), 0)

    assert read("one_int64 int", one_int64=2**31 - 1) == {"one_int64": 2**31 - 1}
    assert read("one_int64 int", one_int64=2**31) is None
    assert read("one_uint64 bigint", one_uint64=2**63) is None
    assert read("one_uint64 decimal(20,0)", one_uint64=2**63) == {"one_uint64": Decimal(2**63)}
    assert read("one_int64 double", one_int64=2**53 + 1) is None
    assert read("one_string string", one_string="a\0b") is None
    assert read("colour string", colour=7) is None
    assert read("at timestamp", at={"seconds": 1, "nanos": 2_000}) == {"at": 1_000_002}
    assert read("at timestamp", at={"seconds": 1, "nanos": 2_001}) is None
    assert read("at struct<seconds:bigint,nanos:int>", at={"nanos": 1}) == {"at": {"seconds": 0, "nanos": 1}}
    assert read("say string", say={"value": "x"}) == {"say": "x"}
    assert read("say string") == {}
    # The other one of a oneof counts, whether it has a column or not.
    assert decode(plan("left bigint").plan, False)(
        (ALL(left=1).SerializeToString() + ALL(right={}).SerializeToString()), 0
    ) in ({"left": None, "\0right": b""},)
    made = plan("one_string int, one_int64 bigint")
    assert made.refused == ["field one_string: string, and the column is int"]
    assert decode(made.plan, False)(ALL(one_int64=3).SerializeToString(), 0) == {"one_int64": 3}
    assert decode(made.plan, False)(ALL(one_string="x").SerializeToString(), 0) is None
    # Also of a wrapper, and as the key of a map: unset ones have no value to refuse.
    made = plan("say bigint, one_int64 bigint")
    assert made.refused == ["field say.value: string, and the column is bigint"]
    for say in ("", "x"):
        assert decode(made.plan, 0)(filled({"say": {"value": say}}).SerializeToString(), 0) is None
    assert decode(made.plan, 0)(ALL(one_int64=3).SerializeToString(), 0) == {"one_int64": 3}
    made = plan("by_name map<int,struct<n:int>>, one_int64 bigint")
    assert made.refused == ["field by_name[]: string, and the column is int"]
    assert decode(made.plan, 0)(b"\xf2\x02\x00", 0) is None
    assert decode(made.plan, 0)(ALL(one_int64=3).SerializeToString(), 0) == {"one_int64": 3, "by_name": []}
    with pytest.raises(SchemaUnusable, match=r"none of the fields of shop.All is a column"):
        plan("elsewhere int")


def test_files_and_their_messages() -> None:
    def text(file: descriptor_pb2.FileDescriptorProto) -> str:
        return base64.b64encode(file.SerializeToString()).decode()

    file = protobuf.file_of(Schema("PROTOBUF", text(shop())))
    assert [(indexes, each.name) for indexes, each in protobuf.messages(file)] == [
        ((0,), "All"),
        ((1,), "Loop"),
        ((0, 0), "In"),
        ((0, 1), "ByNameEntry"),
    ]
    with pytest.raises(OptionRefused, match=r"shop\.Loop contains itself"):
        protobuf.columns_of(file.message_types_by_name["Loop"])
    user = descriptor_pb2.FileDescriptorProto(name="u.proto", syntax="proto3", dependency=["shop.proto"])
    user.message_type.add(name="U").field.add(name="l", number=1, type=11, label=1, type_name=".shop.Loop")
    assert protobuf.file_of(Schema("PROTOBUF", text(user), {"shop.proto": Schema("PROTOBUF", text(shop()))})).name
    for wrong in ("message Loop {}", "//8=", text(user)):
        with pytest.raises(SchemaUnusable, match="format=serialized"):
            protobuf.file_of(Schema("PROTOBUF", wrong))


@pytest.mark.parametrize(
    ("frame", "indexes", "end"),
    [(b"\0", (0,), 1), (b"\2\2", (1,), 2), (b"\4\0\2", (0, 1), 3), (b"\x01", None, 1), (b"\xc8\x01", None, 2)],
)
def test_message_indexes(frame: bytes, indexes: Any, end: int) -> None:
    assert indexes_of(frame, 0) == (indexes, end)
    assert indexes_of(b"\4\0", 0)[1] > 2  # cut off
