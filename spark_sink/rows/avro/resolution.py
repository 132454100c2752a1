"""Plans for `task`: how to read values of a writer's schema into a table's columns.

The rule is Avro's schema resolution, with the columns as the reader. A field goes into the column of its name. A
reader's schema adds aliases, defaults and symbols. A number goes into any column that holds the number unchanged, also
where Avro's rules would not promote the type. A value that a column cannot hold unchanged does not parse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.rows.avro.schema import Node
from kafka_ratchet.spark_sink.rows.avro.task import DAYS, MICROSECONDS, MILLISECONDS
from kafka_ratchet.spark_sink.rows.ddl import MAX_DIGITS

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

Plan = tuple[Any, ...]

WHOLE = {"byte": 8, "short": 16, "integer": 32, "long": 64}
"""Number of bits of each type of whole numbers, by Spark's names of the types."""


class Resolution:
    """Plan for reading the values of one writer's schema.

    Args:
        writer: the writer's schema.
        columns: the table's columns.
        reader: the schema that the columns come from; None: they come from no schema.

    Attributes:
        plan: plan for `task.reader`.
        refused: reasons why values do not parse, each as "field a.b: why". A reason about one branch of a union
            concerns only values with that branch.
        left_out: fields without a column, as "a.b".
    """

    def __init__(self, writer: Node, columns: StructType, reader: Node | None = None) -> None:
        self.refused: list[str] = []
        self.left_out: list[str] = []
        self._skipped: dict[str, Plan] = {}
        found = self._of(writer, columns, reader, "")
        self.plan: Plan = ("with", tuple(self._skipped.items()), found)

    def _refuse(self, path: str, why: str) -> Plan:
        reason = f"field {path}: {why}" if path else why
        self.refused.append(reason)
        return ("refused", reason)

    def _of(self, writer: Node, column: DataType, reader: Node | None, path: str) -> Plan:
        optional = reader is None
        if reader is not None and reader.kind == "union":
            others = [each for each in reader.inner if each.kind != "null"]
            reader, optional = others[0], True
        if writer.kind == "union":
            wanted = reader if reader is None or not optional else Node("union", inner=[Node("null"), reader])
            return ("branches", tuple(self._of(branch, column, wanted, path) for branch in writer.inner))
        if writer.kind == "null":
            return ("null",) if optional else self._refuse(path, "null, which the job's schema does not allow")
        if reader is not None and writer.name and reader.name and not reader.is_called(writer):
            return self._refuse(path, f"{writer.kind} {writer.name}, and not {reader.name}")
        return self._plain(writer, column, reader, path)

    def _plain(self, writer: Node, column: DataType, reader: Node | None, path: str) -> Plan:
        kind, wanted = writer.kind, column.typeName()
        if kind == "record" and wanted == "struct":
            return self._record(writer, column, reader, path)  # type: ignore[arg-type]
        if kind == "array" and wanted == "array":
            within = reader.inner[0] if reader is not None else None
            return ("array", self._of(writer.inner[0], column.elementType, within, f"{path}[]"))  # type: ignore[attr-defined]
        if kind == "map" and wanted == "map" and column.keyType.typeName() == "string":  # type: ignore[attr-defined]
            within = reader.inner[0] if reader is not None else None
            return ("map", self._of(writer.inner[0], column.valueType, within, f"{path}[]"))  # type: ignore[attr-defined]
        if kind == "enum" and wanted == "string":
            return self._enum(writer, reader)
        # A reader's schema without the logical type asks for the number, or the bytes, as such.
        logical = None if reader is not None and reader.logical is None else writer.logical
        as_bytes = wanted == "binary" and writer.precision > MAX_DIGITS  # as `avro` makes the column of such a decimal
        found = _timed(writer, wanted, logical) if logical and not as_bytes else _leaf(writer, wanted)
        if logical == "decimal" and wanted == "decimal" and writer.scale <= column.scale:  # type: ignore[attr-defined]
            found = ("rescaled", writer.size or None, writer.scale, column.precision, column.scale)  # type: ignore[attr-defined]
        if found is None:
            return self._refuse(path, f"{writer.logical or kind}, and the column is {column.simpleString()}")
        return found

    def _enum(self, writer: Node, reader: Node | None) -> Plan:
        if reader is None or reader.kind != "enum":
            return ("enum", writer.symbols)
        other = reader.default if reader.default in reader.symbols else None
        return ("symbols", tuple(each if each in reader.symbols else other for each in writer.symbols))

    def _record(self, writer: Node, columns: StructType, reader: Node | None, path: str) -> Plan:
        before = f"{path}." if path else ""
        types = {column.name: column.dataType for column in columns.fields}
        target: dict[str, str] = {}
        written = {each.name for each in writer.fields}
        described = {each.name: each for each in reader.fields} if reader is not None else {}
        defaults: list[tuple[str, Any]] = []
        missing = ""
        for name in types:
            aliases = described[name].aliases & written if name in described else frozenset()
            if name in written or aliases:
                target[name if name in written else min(aliases)] = name
            elif name in described and not described[name].has_default:
                missing = (
                    missing
                    or self._refuse(
                        f"{before}{name}", f"not in schema {writer.name}, and the job's schema has no default for it"
                    )[1]
                )
            elif name in described:
                defaults.append((name, default_value(described[name].node, described[name].default)))
        if missing:
            return ("refused", missing)
        fields: list[tuple[str | None, Plan]] = []
        for each in writer.fields:
            into = target.get(each.name)
            if into is None:
                self.left_out.append(f"{before}{each.name}")
                fields.append((None, self._skip(each.node)))
                continue
            node = described[into].node if into in described else None
            fields.append((into, self._of(each.node, types[into], node, f"{before}{into}")))
        if not target and not path and types:
            return self._refuse("", f"none of the fields of {writer.name} is a column")
        return ("resolved", tuple(fields), tuple(defaults))

    def _skip(self, writer: Node) -> Plan:
        """Return a plan that skips a field without a column."""
        if writer.kind == "record":
            if writer.name not in self._skipped:
                self._skipped[writer.name] = ()  # met again inside of itself
                self._skipped[writer.name] = ("fields", tuple(self._skip(each.node) for each in writer.fields))
            return ("named", writer.name)
        if writer.kind == "union":
            return ("branches", tuple(map(self._skip, writer.inner)))
        if writer.kind == "array":
            return ("array", self._skip(writer.inner[0]))
        if writer.kind == "map":
            return ("array", ("fields", (("bytes",), self._skip(writer.inner[0]))))
        if writer.kind == "fixed":
            return ("fixed", writer.size)
        plans: dict[str, Plan] = {"string": ("bytes",), "int": ("long",), "enum": ("long",)}
        plans |= {"float": ("fixed", 4), "double": ("fixed", 8)}  # NaN matters to no column here
        return plans.get(writer.kind, (writer.kind,))


def _leaf(writer: Node, wanted: str) -> Plan | None:
    kind = writer.kind
    if kind in {"int", "long"} and wanted in WHOLE:
        bits = WHOLE[wanted]
        return ("long",) if bits == 64 else ("within", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 1)
    if kind in {"int", "long", "float", "double"} and wanted in {"float", "double"}:
        read = ("long",) if kind in {"int", "long"} else (kind,)
        return read if kind == wanted or (kind, wanted) == ("float", "double") else ("real", read, wanted)
    if kind in {"bytes", "string"} and wanted in {"binary", "string"}:
        return ("bytes",) if wanted == "binary" else ("string",)
    if kind == "fixed" and wanted == "binary":
        return ("fixed", writer.size)
    return ("boolean",) if kind == wanted == "boolean" else None


def _timed(writer: Node, wanted: str, logical: str) -> Plan | None:
    if logical == "date" and wanted == "date":
        return ("within", *DAYS, 1)
    before, kind, _ = logical.rpartition("timestamp-")
    if kind and (before, wanted) in {("", "timestamp"), ("local-", "timestamp_ntz")}:
        return ("within", *MICROSECONDS, MILLISECONDS if logical.endswith("millis") else 1)
    return None


def default_value(node: Node, default: Any) -> Any:
    """Convert a default of the reader's schema into a value, as `task.reader` returns it.

    Raises:
        ValueError: the default is not of the field's type.
    """
    kind = node.kind
    if kind == "union":  # by the specification a default belongs to the first branch; later releases take any
        if default is None:
            return None
        return default_value(next(each for each in node.inner if each.kind != "null"), default)
    if kind == "record" and isinstance(default, dict):
        return {each.name: default_value(each.node, default.get(each.name, each.default)) for each in node.fields}
    if kind == "array" and isinstance(default, list):
        return [default_value(node.inner[0], each) for each in default]
    if kind == "map" and isinstance(default, dict):
        return [(key, default_value(node.inner[0], each)) for key, each in default.items()]
    if kind in {"bytes", "fixed"} and isinstance(default, str):
        found = default.encode("latin-1")
        if node.logical != "decimal" or node.precision > MAX_DIGITS:
            return found
        from decimal import Decimal

        from kafka_ratchet.spark_sink.rows.avro.task import EXACT

        return EXACT.scaleb(Decimal(int.from_bytes(found, "big", signed=True)), -node.scale)
    if kind in {"int", "long"} and type(default) is int:
        return default * (MILLISECONDS if (node.logical or "").endswith("millis") else 1)
    if kind in {"float", "double"} and isinstance(default, int | float) and not isinstance(default, bool):
        return float(default)
    if (kind in {"string", "enum"} and isinstance(default, str)) or (kind == "boolean" and isinstance(default, bool)):
        return default
    if kind == "null" and default is None:
        return None
    raise ValueError(f"default {default!r} is not of type {kind}")
