"""Tree of an Avro schema, for comparing a writer's schema with a reader's.

Unlike module `avro`, this module takes every schema of Avro's specification: unions of any types, and types that
contain themselves. Module `resolution` finds out if a column can hold the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_DEPTH = 64
"""Maximum depth of nested types in the text of the schema."""

PRIMITIVE = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


class SchemaWrong(Exception):
    """Error for a text other than an Avro schema; its message is the reason."""


@dataclass
class Field:
    """Field of an Avro record, with its default."""

    name: str
    node: Node
    aliases: frozenset[str]
    has_default: bool
    default: Any


@dataclass
class Node:
    """Type in an Avro schema. A type that contains itself is a cycle of nodes."""

    kind: str
    """Name of a primitive type, or record, enum, fixed, array, map, union."""
    name: str = ""
    """Full name of a record, enum or fixed."""
    aliases: frozenset[str] = frozenset()
    """Full names of the aliases."""
    fields: list[Field] = field(default_factory=list)
    inner: list[Node] = field(default_factory=list)
    """Branches of a union, or the type of an array's items or of a map's values."""
    symbols: tuple[str, ...] = ()
    default: str | None = None
    """Default of an enum for unknown symbols."""
    size: int = 0
    logical: str | None = None
    precision: int = 0
    scale: int = 0

    def is_called(self, other: Node) -> bool:
        """Return True if both types have the same short name, or this type has an alias for `other`."""
        return other.name.rpartition(".")[2] == self.name.rpartition(".")[2] or other.name in self.aliases


def parsed(schema: object, named: Mapping[str, object] | None = None) -> Node:
    """Parse a schema into its tree.

    Args:
        schema: as JSON.
        named: schemas that `schema` may refer to, as JSON, by name.

    Raises:
        SchemaWrong: the schema is not an Avro schema.
    """
    return _Parser(named or {}).node(schema, "", 0)


def self_contained(schema: object, named: Mapping[str, object]) -> object:
    """Return the schema as JSON, with each referenced type in full at its first use."""
    return _written_out(schema, dict(named), "")


class _Parser:
    def __init__(self, named: Mapping[str, object]) -> None:
        self._named, self._known = named, dict[str, Node]()

    def node(self, schema: object, namespace: str, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise SchemaWrong(f"types are nested more than {MAX_DEPTH} deep")
        if isinstance(schema, str):
            return self._by_name(schema, namespace, depth)
        if isinstance(schema, list):
            return Node("union", inner=[self.node(each, namespace, depth + 1) for each in schema])
        if not isinstance(schema, dict) or "type" not in schema:
            raise SchemaWrong("a part of the schema is not a type")
        kind = schema["type"]
        if kind in {"record", "error", "enum", "fixed"}:
            return self._definition(schema, namespace, depth)
        if kind in {"array", "map"}:
            return Node(
                kind, inner=[self.node(schema.get("items" if kind == "array" else "values"), namespace, depth + 1)]
            )
        found = self.node(kind, namespace, depth + 1)
        return _annotated(Node(found.kind), schema) if found.kind in PRIMITIVE else found

    def _by_name(self, name: str, namespace: str, depth: int) -> Node:
        if name in PRIMITIVE:
            return Node(name)
        for full in _names(name, namespace):
            if full in self._known:
                return self._known[full]
        for full in _names(name, namespace):
            if full in self._named:
                found = self.node(self._named[full], "", depth + 1)
                return self._known.setdefault(full, found)
        raise SchemaWrong(f"type {name!r} is not defined")

    def _definition(self, schema: Mapping[str, Any], namespace: str, depth: int) -> Node:
        full, namespace = _full_name(schema, namespace)
        aliases = frozenset(
            _qualified(each, namespace) for each in schema.get("aliases") or [] if isinstance(each, str)
        )
        node = self._known[full] = Node("record" if schema["type"] == "error" else schema["type"], full, aliases)
        if node.kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
                raise SchemaWrong(f"enum {full!r} has no symbols")
            node.symbols, node.default = tuple(symbols), schema.get("default")
        elif node.kind == "fixed":
            if type(schema.get("size")) is not int or schema["size"] < 0:
                raise SchemaWrong(f"fixed {full!r} has no size")
            node.size = schema["size"]
            _annotated(node, schema)
        else:
            described = schema.get("fields")
            if not isinstance(described, list):
                raise SchemaWrong(f"record {full!r} has no fields")
            for each in described:
                if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                    raise SchemaWrong(f"record {full!r}: an entry of its fields is not an object with a name")
                node.fields.append(
                    Field(
                        each["name"],
                        self.node(each.get("type"), namespace, depth + 1),
                        frozenset(name for name in each.get("aliases") or [] if isinstance(name, str)),
                        "default" in each,
                        each.get("default"),
                    )
                )
        return node


def _annotated(node: Node, schema: Mapping[str, Any]) -> Node:
    logical, precision, scale = schema.get("logicalType"), schema.get("precision"), schema.get("scale", 0)
    if logical == "decimal" and node.kind in {"bytes", "fixed"}:
        if type(precision) is int and type(scale) is int and 0 <= scale <= precision and precision > 0:
            node.logical, node.precision, node.scale = logical, precision, scale
    elif (node.kind, logical) in LOGICAL:
        node.logical = logical
    return node


LOGICAL = frozenset(
    {("int", "date")}
    | {("long", f"{local}timestamp-{unit}") for local in ("", "local-") for unit in ("millis", "micros")}
)
"""Logical types of columns, without decimal. Any other logical type is ignored, and its underlying type counts."""


def _full_name(schema: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name and namespace of a definition."""
    name, given = schema.get("name"), schema.get("namespace", namespace)
    if not isinstance(name, str) or not name:
        raise SchemaWrong("a type has no name")
    if "." in name:
        return name, name.rpartition(".")[0]
    given = given if isinstance(given, str) else ""
    return _qualified(name, given), given


def _qualified(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _names(name: str, namespace: str) -> Iterator[str]:
    yield _qualified(name, namespace)
    if namespace:
        yield name


def _written_out(schema: object, left: dict[str, object], namespace: str) -> object:
    if isinstance(schema, str):
        for full in _names(schema, namespace):
            if full in left:
                return _written_out(left.pop(full), left, "")
        return schema
    if isinstance(schema, list):
        return [_written_out(each, left, namespace) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind in {"record", "error", "enum", "fixed"}:
        full, namespace = _full_name(schema, namespace)
        left.pop(full, None)
        found = {**schema, "name": full, "type": "record" if kind == "error" else kind}
        if isinstance(schema.get("fields"), list):
            found["fields"] = [
                {**each, "type": _written_out(each.get("type"), left, namespace)} if isinstance(each, dict) else each
                for each in schema["fields"]
            ]
        return found
    inner = {name: _written_out(schema[name], left, namespace) for name in ("items", "values") if name in schema}
    return {**schema, **inner} if kind in {"array", "map"} else {**schema, "type": _written_out(kind, left, namespace)}
