"""JSON encoding of documents, for commands and the page.

Separate module: packages below the page declare their documents with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar

import msgspec


class Document:
    """Base class of documents that answer an operator; a document only declares the keys of its JSON object.

    json_keys: the keys in their order; without json_keys, the names of the fields. "key" takes the value from the
    attribute of that name, or from the result of the method. "key=attribute" takes the value of another attribute;
    "key=attribute.part" takes that value's attribute or dict entry `part`. "key?" leaves the key out if the value is
    None. A key with the value `msgspec.UNSET` is left out too.
    """

    __slots__ = ()

    json_keys: ClassVar[tuple[str, ...]] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object of this document, of dicts, lists, texts, numbers and None."""
        return dict(_entries(self, self.json_keys)) if self.json_keys else _fields(self)


def encoded(value: Any) -> Any:
    """Return a value as dicts, lists, texts, numbers and None. Documents inside it are encoded by their `json_keys`."""
    match value:
        case None | bool() | int() | float():
            return value
        case Enum():
            return value.value
        case str():
            return value
        case Document():
            return value.as_dict()
        case msgspec.Struct():
            return msgspec.to_builtins(value)
        case Mapping():
            return {str(key): encoded(each) for key, each in value.items()}
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        return _fields(value)
    return [encoded(each) for each in value]


def _fields(value: Any) -> dict[str, Any]:
    names: Iterable[str] = (
        (field.name for field in dataclasses.fields(value)) if dataclasses.is_dataclass(value) else value._fields
    )
    found = ((name, getattr(value, name)) for name in names)
    return {name: encoded(each) for name, each in found if each is not msgspec.UNSET}


def _entries(document: Document, keys: Iterable[str]) -> Iterable[tuple[str, Any]]:
    for entry in keys:
        key, _, path = entry.partition("=")
        value: Any = document
        for part in (path or key.removesuffix("?")).split("."):
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        value = value() if callable(value) else value
        if value is not msgspec.UNSET and not (value is None and key.endswith("?")):
            yield key.removesuffix("?"), encoded(value)
