"""Codec of a table, which converts keys and values to bytes and back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from types import NoneType
from typing import Any, Final, Literal

import msgspec
from msgspec import inspect

from kafka_ratchet.errors import SettingsError, TableError

PLAIN: Final = frozenset({int, float, str, bytes, bool, NoneType})
"""Types with immutable values, which a table returns without copying."""
KEYS: Final = frozenset({int, str})
"""Types of keys that are equal exactly if their bytes are equal.

In contrast, 1, 1.0 and True are one key to Python, but three in JSON.
"""
INT_LEAST: Final = -(2**63)
INT_MOST: Final = 2**64 - 1
"""Largest integer in MessagePack and in msgspec's JSON."""

Serializer = Literal["json", "msgpack"]


_encode_key = msgspec.json.Encoder().encode


class EncodedValue(bytes):
    """Bytes of a mutable value in a table; each reader gets an object of its own from them."""

    __slots__ = ()


class Codec:
    """Codec of one table's keys and values.

    A table stores a key as `check_key` returns it and a value as `keep` returns it: the codec's form.

    Args:
        table: name of the table, for messages.
        key_type: type of the keys; None: `str` or `int`, distinguished by their JSON.
        value_type: type of the values; None: any value that the serializer restores without a type.
        serializer: serializer of the values; keys are JSON, or raw if key_type is bytes.

    Raises:
        SettingsError: msgspec does not support a type, or the serializer is unknown.
    """

    def __init__(self, table: str, key_type: Any, value_type: Any, serializer: Serializer) -> None:
        self.table, self.key_type, self.value_type, self.serializer = table, key_type, value_type, serializer
        if serializer not in ("json", "msgpack"):
            raise SettingsError(f"table {table}: serializer is {serializer!r}. Write json or msgpack")
        module: Any = msgspec.json if serializer == "json" else msgspec.msgpack
        try:
            self._keys = msgspec.json.Decoder(str | int if key_type is None else key_type)
            self._decode = module.Decoder(Any if value_type is None else value_type).decode
        except TypeError as error:
            raise SettingsError(f"table {table}: {error}") from None
        self._encode = module.Encoder().encode
        self.is_simple = key_type is None or key_type in KEYS or key_type is bytes
        """True if the table stores keys as they are; False: as bytes."""
        self.kinds: frozenset[Any] = frozenset({key_type} if key_type else KEYS) if self.is_simple else frozenset()
        """Types of keys that the table stores as they are."""
        self._plain = PLAIN - {bytes} if value_type is None else (PLAIN - {bytes}) & frozenset({value_type})

    @property
    def form(self) -> str:
        """Return serializer and key type as text, for display and for comparison with existing entries."""
        # A type's module is left out: it may move.
        named = self.key_type.__qualname__ if isinstance(self.key_type, type) else str(self.key_type)
        return f"{self.serializer} by {'str or int' if self.key_type is None else named}"

    earlier_forms: Collection[str] = ()
    """Descriptions that earlier versions recorded for the same form, if they differ from `form`."""

    @cached_property
    def shape(self) -> str:
        """Return a digest of the keys' fields, and whether values contain bytes, as text; empty: neither.

        The text is not a part of `form`, because workers of an earlier version halt at an unknown form.
        """
        shape = "" if self.is_simple else _shape(inspect.type_info(self.key_type))
        # A class keeps its name when its fields change.
        fields = [f"fields {hashlib.sha256(shape.encode()).hexdigest()[:12]}"] if "{" in shape else []
        return ", ".join([*fields, "values with bytes"] if self._values_have_bytes else fields)

    @cached_property
    def _values_have_bytes(self) -> bool:
        """Return True if values contain bytes as base64 text, which could be read as text."""
        if self.serializer != "json" or self.value_type is None:
            return False
        return _has_bytes(inspect.type_info(self.value_type))

    def is_own(self, keys: Iterable[Any], value_of: Callable[[Any], Any]) -> bool:
        """Return True if this codec can read the entries of an earlier version, and would write the same keys.

        keys: keys of the entries; value_of: function that returns a key's value
        """
        try:
            for kept in keys:
                if not self.is_simple and self.check_key(self.key(kept)) != kept:
                    return False
                if self._values_have_bytes:
                    value_of(kept if self.is_simple else self.key(kept))
        except (msgspec.MsgspecError, TableError):
            return False
        return True

    def remedy(self, before: str) -> str:
        """Return the remedy for an error about existing entries of another form.

        before: `form` of these entries
        """
        return "Give the table a new name, so that it starts empty, or undo the change"

    def check_key(self, key: Any) -> Any:
        """Return the key as the table stores it: unchanged, or as bytes.

        Raises:
            TableError: the key has another type.
        """
        kind = type(key)
        if kind in self.kinds:
            return key
        if self.is_simple:
            wanted = "str or int" if self.key_type is None else self.key_type.__name__
            raise TableError(
                f"table {self.table}: key {key!r:.100} is {kind.__name__}, not {wanted}. Convert the "
                "key, or change key_type"
            )
        try:
            # Equal keys have equal bytes: 5 and 5.0, and a frozenset, with another order in each process.
            found = msgspec.json.encode(self._keys.decode(msgspec.json.encode(key)), order="deterministic")
        except (msgspec.MsgspecError, TypeError, OverflowError, RecursionError) as error:
            raise TableError(f"table {self.table}: key {key!r:.100} is not {self.key_type}: {error}") from None
        return found

    def key_bytes(self, kept: Any) -> bytes:
        """Return a key's bytes for the changelog and the store. kept: the key as the table stores it."""
        return kept if type(kept) is bytes else msgspec.json.encode(kept)

    def many_key_bytes(self, kept: Collection[Any]) -> list[bytes]:
        """Return the bytes of each key, see `key_bytes`."""
        if not self.is_simple or self.key_type is bytes:
            return [self.key_bytes(each) for each in kept]
        return list(map(_encode_key, kept))

    def kept_key(self, data: bytes) -> Any:
        """Return a key as the table stores it, from the key's bytes.

        Raises:
            TableError: the bytes are no key of this table.
        """
        if not self.is_simple or self.key_type is bytes:
            return data
        try:
            return self._keys.decode(data)
        except msgspec.MsgspecError as error:
            raise TableError(
                f"table {self.table}: {data!r:.100} is not a key: {error}. Was key_type changed? Give the table a "
                "new name, so that it starts empty, or undo the change"
            ) from None

    def key(self, kept: Any) -> Any:
        """Return a key as the program uses it. kept: the key as the table stores it."""
        return kept if self.is_simple else self._keys.decode(kept)

    def keep(self, value: Any) -> Any:
        """Return the value as the table stores it: unchanged if it is immutable, else as `EncodedValue`.

        Raises:
            TableError: reading would not return the same value.
        """
        kind = type(value)
        if kind in self._plain:
            if kind is int and not INT_LEAST <= value <= INT_MOST:
                raise TableError(f"table {self.table}: {value} does not fit 64 bits. Store it as text")
            if kind is float and not math.isfinite(value):
                raise TableError(f"table {self.table}: {value} cannot be kept: JSON has no such number. Store None")
            if kind is str and not value.isascii():
                self._check_text(value)
            return value
        if kind is bytes and self.value_type is None:
            raise TableError(f"table {self.table}: bytes would be read back as text. Set value_type=bytes")
        try:
            data = self._encode(value)
            again = self._decode(data)
        except (msgspec.MsgspecError, TypeError, OverflowError, RecursionError, UnicodeError) as error:
            raise TableError(
                f"table {self.table}: {value!r:.100} ({kind.__name__}) cannot be kept as {self.value_type}: {error}. "
                "Convert the value, or change value_type"
            ) from None
        if self.value_type is None and again != value and again != _with_lists(value):
            # JSON makes text of a dict's keys, null of nan, a list of a set, a dict of a Struct.
            raise TableError(
                f"table {self.table}: {value!r:.100} would be read back as {again!r:.100}. Set "
                f"value_type={_type_name(value)}, which states how it is read"
            )
        return EncodedValue(data)

    def _check_text(self, value: str) -> None:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise TableError(
                f"table {self.table}: {value!r:.100} cannot be kept: {error}. Store text that UTF-8 can encode"
            ) from None

    def is_same(self, now: EncodedValue, before: EncodedValue) -> bool:
        """Return True if two encoded values are the same value.

        Their bytes may differ: a Struct may have a new field with a default, an int may stand for a float, and the
        order of a set differs in each process.
        """
        if now == before:
            return True
        value = self.value(before)
        return bool(self._encode(value) == now or value == self.value(now))

    def are_kept_as_they_are(self, values: Collection[Any]) -> bool:
        """Return True if `keep` would return every value unchanged; False if it might not."""
        kinds = set(map(type, values))
        if not self._plain.issuperset(kinds):
            return False
        if kinds == {int}:
            return bool(INT_LEAST <= min(values) and max(values) <= INT_MOST)
        if kinds == {float}:
            return all(map(math.isfinite, values))
        return not kinds & {int, float} and all(type(value) is not str or value.isascii() for value in values)

    def value_bytes(self, kept: Any) -> bytes:
        """Return a value's bytes for the changelog and the store. kept: the value as the table stores it."""
        return bytes(kept) if type(kept) is EncodedValue else self._encode(kept)

    def many_value_bytes(self, kept: Collection[Any]) -> list[bytes | None] | None:
        """Return the bytes of each value; None if some are mutable."""
        return list(map(self._encode, kept)) if PLAIN.issuperset(map(type, kept)) else None

    def kept_value(self, data: bytes) -> Any:
        """Return a value as the table stores it, from the value's bytes.

        Raises:
            TableError: the bytes are no value of the table's type.
        """
        value = self.value(data)
        return value if type(value) in PLAIN and type(value) is not bytes else EncodedValue(data)

    def value(self, data: bytes) -> Any:
        """Return the program's value from its bytes, as a new object.

        Raises:
            TableError: the bytes are no value of the table's type.
        """
        try:
            return self._decode(data)
        except msgspec.MsgspecError as error:
            raise TableError(
                f"table {self.table}: a value cannot be read: {error}. Was value_type or serializer changed? Give the "
                "table a new name, so that it starts empty, or undo the change"
            ) from None


def _shape(kind: Any, within: tuple[type, ...] = ()) -> str:
    """Return as text the parts of a key's type that determine its bytes.

    These parts are tags, and the names, types and order of fields; also the defaults of fields, if the class omits
    fields with default values. A class with fields gives a text with braces. Names of classes are left out.

    Args:
        kind: the type as `msgspec.inspect` describes it.
        within: classes that contain the type, outermost first. Where one of them occurs again, the text has its index
            in this tuple.
    """
    if isinstance(kind, inspect.Metadata):
        return _shape(kind.type, within)
    if isinstance(kind, inspect.UnionType):
        return " | ".join(sorted(_shape(each, within) for each in kind.types))
    name = type(kind).__name__
    fields = getattr(kind, "fields", None)
    if fields is None:
        inner = [_shape(each, within) for each in _inner(kind)]
        return f"{name}[{', '.join(inner)}]" if inner else name
    if kind.cls in within:
        return f"{name} {within.index(kind.cls)}"
    within = *within, kind.cls
    form, omits = "", False
    if isinstance(kind, inspect.StructType):
        # A generic class with its types, such as Pair[int], does not pass this name on.
        config = getattr(kind.cls, "__origin__", kind.cls).__struct_config__
        form = f" {kind.array_like} {config.omit_defaults} {kind.tag_field!r} {kind.tag!r}"
        omits = config.omit_defaults
    each = (f"{at.encode_name}: {_shape(at.type, within)}{_default(at) if omits else ''}" for at in fields)
    return f"{name}{form} {{{', '.join(each)}}}"


def _default(field: inspect.Field) -> str:
    """Return the value that a class leaves out of its bytes, as text; empty: there is none."""
    if field.default_factory in (list, dict, set):  # msgspec calls no others
        return f" = {field.default_factory.__name__}"
    if field.default in (msgspec.NODEFAULT, msgspec.UNSET):
        return ""
    value = msgspec.json.encode(field.default, enc_hook=lambda each: type(each).__name__, order="deterministic")
    return f" = {value.decode()}"


def _inner(kind: Any) -> list[Any]:
    """Return the types that a type contains, without those of fields."""
    parts = [getattr(kind, part, None) for part in ("type", "key_type", "value_type", "item_type")]
    parts += [*getattr(kind, "types", ()), *getattr(kind, "item_types", ())]
    return [each for each in parts if each is not None]


def _has_bytes(kind: Any, within: tuple[type, ...] = ()) -> bool:
    """Return True if a type is, or contains, one that JSON stores as base64 text.

    Optional fields do not count, because a version of the program may add or remove them.

    Args:
        kind: the type as `msgspec.inspect` describes it.
        within: classes that contain it.
    """
    if isinstance(kind, inspect.BytesType | inspect.ByteArrayType | inspect.MemoryViewType):
        return True
    inner = _inner(kind)
    if fields := getattr(kind, "fields", None):
        if kind.cls in within:
            return False
        within = *within, kind.cls
        inner = [field.type for field in fields if field.required]
    return any(_has_bytes(each, within) for each in inner)


def _with_lists(value: Any) -> Any:
    """Return a value with lists in place of tuples, as JSON and MessagePack return it.

    `keep` accepts this difference.
    """
    if isinstance(value, list | tuple):
        return [_with_lists(each) for each in value]
    return {key: _with_lists(each) for key, each in value.items()} if isinstance(value, dict) else value


def _type_name(value: Any) -> str:
    """Return the type to declare for values such as this one: `Decimal`, `set[int]`, `dict[str, Any]`, ..."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return f"{kind}[{_common(value.keys())}, {_common(value.values())}]"
    if isinstance(value, (list, set, frozenset)):
        return f"{kind}[{_common(value)}]"
    return kind


def _common(values: Collection[Any]) -> str:
    names = {_type_name(each) for each in values}
    return names.pop() if len(names) == 1 else "Any"
