"""Columns of a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.registry.client import SchemaUnusable

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

MAX_DEPTH = 32
"""Maximum depth of nested objects."""


def columns_of(schema: Any, named: Mapping[str, Any]) -> StructType:
    """Return the columns of a JSON Schema: one for each property of the described object.

    A property is `boolean`, `bigint` (integer), `double` (number), `string`, a struct (object with properties) or an
    array. A property that may be of several types, or contains itself, is a string, which keeps objects and arrays as
    JSON text.

    Args:
        schema: as JSON.
        named: schemas that `schema` may refer to, as JSON, by name.

    Raises:
        OptionRefused: the schema declares no property.
    """
    from pyspark.sql.types import StructType

    found = _type(schema, schema, named, ())
    if not isinstance(found, StructType):
        raise OptionRefused("the JSON Schema has no properties that could be columns")
    return found


def _type(schema: Any, root: Any, named: Mapping[str, Any], within: tuple[int, ...]) -> DataType:
    from pyspark.sql import types as T

    schema, root = _referred(schema, root, named)
    if len(within) > MAX_DEPTH or not isinstance(schema, dict) or id(schema) in within:
        return T.StringType()  # a type that contains itself is kept as text
    inner = (*within, id(schema))
    for several in ("oneOf", "anyOf"):  # the spelling of generators for a value that may be null
        if isinstance(schema.get(several), list):
            others = [each for each in schema[several] if each != {"type": "null"}]
            return _type(others[0], root, named, inner) if len(others) == 1 else T.StringType()
    kind = schema.get("type")
    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        kind = others[0] if len(others) == 1 else "string"
    properties = schema.get("properties")
    if isinstance(properties, dict) and properties and kind in {"object", None}:
        fields = [T.StructField(name, _type(each, root, named, inner)) for name, each in properties.items()]
        return T.StructType(fields)
    if kind == "array" and isinstance(schema.get("items"), dict):
        return T.ArrayType(_type(schema["items"], root, named, inner))
    plain = {"boolean": T.BooleanType, "integer": T.LongType, "number": T.DoubleType}
    return plain.get(kind, T.StringType)() if isinstance(kind, str) else T.StringType()


def _referred(schema: Any, root: Any, named: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the schema that `schema` refers to, and its document; without a reference, `schema` and `root`."""
    for _ in range(MAX_DEPTH):
        target = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(target, str):
            break
        document, _, pointer = target.partition("#")
        if document:
            if document not in named:
                return None, root
            root = named[document]
        schema = root
        for part in unquote(pointer).strip("/").split("/") if pointer.strip("/") else ():
            schema = schema.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(schema, dict) else None
    return schema, root


def require_schema(schema: Any) -> None:
    """Check that an object is a JSON Schema.

    Raises:
        SchemaUnusable: the object is not a JSON Schema.
    """
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema).check_schema(schema)
    except SchemaError:
        raise SchemaUnusable("it is not a JSON Schema") from None
