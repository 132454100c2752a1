"""JSON library that writes the keys of Faust's tables: Faust writes other bytes with orjson than without it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from faust.exceptions import KeyDecodeError
from faust.stores.base import SerializedStore
from faust.types.models import ModelT
from faust.utils import json as faust_json

HERE, OTHER, EITHER = "here", "other", "either"
"""Possible writers of a key: Faust with the JSON library of this environment, Faust with another library, or any Faust.
"""

TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.e+-]*')
MIDNIGHT: Final = re.compile(rb'"\d{4}-\d\d-\d\dT00:00:00"')
"""Pattern of a date as Faust writes it without orjson. With orjson, only a time at midnight has this form."""


def library() -> str:
    """Return the JSON library that Faust uses in this environment; Faust chooses it at import."""
    return "json" if faust_json.orjson is None else "orjson"


def named(serializer: Any, name: str) -> str:
    """Return a serializer's name with `name`, the JSON library, in place of Faust's codec json."""
    return "|".join(name if each == "json" else each for each in str(serializer).split("|"))


def writer(store: SerializedStore, data: bytes) -> str:
    """Return which Faust has written a JSON key: HERE, OTHER or EITHER.

    Bytes that neither library writes, as b"1.50", come from the program, because Faust writes a key of bytes unchanged.
    Dates are no evidence. Each library writes a date differently, but Faust's decoder returns the date as a text, and
    both libraries write that text alike.
    """
    try:
        key = store._decode_key(data)
        here = store._encode_key(key)
        plain = key.to_representation() if isinstance(key, ModelT) else key
        texts = {"json": json.dumps(plain, separators=(",", ":"), default=faust_json.on_default)}
        texts["orjson"] = json.dumps(plain, separators=(",", ":"), default=faust_json.on_default, ensure_ascii=False)
        text = data.decode()
    except (KeyDecodeError, TypeError, ValueError):
        return EITHER
    if data == here:
        return EITHER if text == texts["json" if library() == "orjson" else "orjson"] else HERE
    return OTHER if _folded(text) in map(_folded, texts.values()) else EITHER


def may_be_of_orjson(store: SerializedStore, keys: Iterable[bytes]) -> bool:
    """Return True if Faust would find all keys of a table with orjson, which is installed here.

    Version 0.1.0 did not record the library. A key with a time at midnight counts as a date that Faust wrote without
    orjson, unless another key shows that orjson has written the table.
    """
    found = set[str]()
    has_midnight = False
    for key in keys:
        found.add(writer(store, key))
        has_midnight = has_midnight or MIDNIGHT.search(key) is not None
    return OTHER not in found and (HERE in found or not has_midnight)


def _folded(text: str) -> str:
    """Return JSON with its numbers as Python writes them; a version of orjson may write 1e+16 as 1e16."""
    return TOKEN.sub(_number, text)


def _number(found: re.Match[str]) -> str:
    token = found[0]
    if token[0] == '"':
        return token
    number = repr(float(token))
    return number if "e" in number else token
