"""Identity of records, and source of their sequences, as a stream's settings name them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, Final, Literal

PRODUCER_HEADER = "ratchet-producer"
"""Header with the producer's name in UTF-8. Producers of this package write it; any client may write it."""

SEQUENCE_HEADER = "ratchet-sequence"
"""Header with the record's sequence: an 8-byte big-endian signed integer, or decimal text."""

SEQUENCE_MAX = 2**63 - 1
"""Maximum sequence: sequences are signed 64-bit and not negative, and -1 stands for "none yet" (PIP-6,
getLastSequenceId)."""

MAX_IDENTITY_BYTES = 1024
"""Maximum bytes of an identity; longer ones are invalid, because each is kept in memory and in the changelog."""

PARTS_MOST: Final = 8
"""Maximum number of parts of an identity."""

_PLACES: Final = "header:NAME, field:PATH or function:module:name"

_BETWEEN_PARTS: Final = re.compile(r"\s*,\s*(?=key\s*(?:,|$)|(?:header|field|function):)")
"""Pattern of a comma between parts. A comma in a header's name, or between quotes in a field's path, does not match."""

_NAME: Final = re.compile(r'"([^"\\]*)"|([^."\\]+)')
"""Pattern of a field name in a path: without quotes, or between quotes."""


@dataclass(frozen=True, slots=True)
class IdentityPart:
    """Part of an identity.

    Args:
        kind: "producer", "key", "partition", "header", "field" or "function".
        name: name of a "header"; path of a "field" in the JSON value, see `path_names`; "module:function" of a
            "function"; empty for the other kinds.
    """

    kind: Literal["partition", "key", "producer", "header", "field", "function"]
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> IdentityPart:
        """Parse "producer", "key", "partition", "header:NAME", "field:a.b" or "function:module:name".

        Raises:
            ValueError: the text is no such part; the error contains the remedy.
        """
        match text.partition(":"):
            case "partition" | "key" | "producer" as word, "", "":
                return cls(word)
            case "header" | "field" | "function" as kind, _, name:
                return cls(kind, _checked_name(kind, name, text))
        raise ValueError(f"{text!r} is not an identity; write producer, key, partition, {_PLACES}, or a list of them")

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


@dataclass(frozen=True, slots=True)
class Identity:
    """Definition of a stream's identities; each identity has sequences of its own.

    A sequence is compared with the last sequence of the same identity in the same input partition.

    PARTITION  one sequence per input partition
    KEY        one sequence per record key
    PRODUCER   one sequence per producer name, from the header `ratchet-producer` (PIP-6)

    `parse` also accepts headers, fields, functions and lists of parts. An identity of several parts contains all of
    them, see `joined`.
    """

    parts: tuple[IdentityPart, ...]

    PARTITION: ClassVar[Identity]
    KEY: ClassVar[Identity]
    PRODUCER: ClassVar[Identity]

    @classmethod
    def parse(cls, given: str | Sequence[str]) -> Identity:
        """Parse one part, or several: a list, a JSON list, or parts separated by commas.

        Raises:
            ValueError: the text is no identity; the error contains the remedy.
        """
        texts = _texts(given) if isinstance(given, str) else list(given)
        if not texts:
            raise ValueError(
                f"an empty list is not an identity. Write producer, partition, or 1 to {PARTS_MOST} of these parts: "
                f"key, {_PLACES}"
            )
        parts = tuple(IdentityPart.parse(text) for text in texts)
        if len(parts) > PARTS_MOST:
            raise ValueError(
                f"the identity has {len(parts)} parts, and at most {PARTS_MOST} are possible. Use a function"
            )
        if len(parts) > 1 and (alone := next((part for part in parts if part.kind in ("partition", "producer")), None)):
            instead = (
                f"write header:{PRODUCER_HEADER} in its place"
                if alone.kind == "producer"
                else "state is kept per partition in any case. Remove it"
            )
            raise ValueError(f"{alone} cannot be one of several parts of an identity: {instead}")
        if len(set(parts)) < len(parts):
            twice = next(part for part in parts if parts.count(part) > 1)
            raise ValueError(f"the identity names {twice} twice. Remove one of the two")
        return cls(parts)

    def __repr__(self) -> str:
        return f"Identity.parse({str(self)!r})"

    def __str__(self) -> str:
        """Return the identity as in the settings.

        Several parts, or one with a comma, become a JSON list, so that `parse` returns the same identity.
        """
        texts = [str(part) for part in self.parts]
        return texts[0] if len(split_parts(texts[0])) == len(texts) == 1 else json.dumps(texts, ensure_ascii=False)

    @property
    def header(self) -> str | None:
        """Return the name of the header with the identity; None: the identity is not in a header."""
        (part, *more) = self.parts
        if more or part.kind not in ("header", "producer"):
            return None
        return part.name or PRODUCER_HEADER

    @property
    def is_computed(self) -> bool:
        """Return True if the identity is computed from each record: it is not the partition, the key or one header."""
        return len(self.parts) > 1 or self.parts[0].kind in ("field", "function")


Identity.PARTITION = Identity((IdentityPart("partition"),))
Identity.KEY = Identity((IdentityPart("key"),))
Identity.PRODUCER = Identity((IdentityPart("producer"),))


def joined(parts: Sequence[bytes]) -> bytes:
    """Join the parts of an identity, each preceded by its length as a varint.

    The varint has 7 bits per byte, lowest first. So ("a", "bc") and ("ab", "c") give different identities.
    """
    made = bytearray()
    for part in parts:
        length = len(part)
        while length > 0x7F:
            made.append(length & 0x7F | 0x80)
            length >>= 7
        made.append(length)
        made += part
    return bytes(made)


def _texts(given: str) -> list[str]:
    if not given.startswith("["):
        return split_parts(given)
    try:
        found = json.loads(given)
    except ValueError:
        raise ValueError(
            f'{given!r} starts like a list but is not a valid one; write ["header:a", "header:b"]'
        ) from None
    if not all(isinstance(text, str) for text in found):
        raise ValueError(f"{given!r} has an element other than text; write a list of texts")
    return list(found)


def split_parts(given: str) -> list[str]:
    """Split an identity's text into its parts, at the commas outside a field's quotes."""
    texts, start = [], 0
    for comma in _BETWEEN_PARTS.finditer(given):
        text = given[start : comma.start()]
        if not (text.startswith("field:") and text.count('"') % 2):
            texts.append(text)
            start = comma.end()
    return [*texts, given[start:]]


@lru_cache(256)
def path_names(path: str) -> tuple[str, ...]:
    """Return the field names of a path in a JSON value.

    Names are separated by dots. A name that contains a dot is written in quotes: `"event.id".x` has two names.

    Raises:
        ValueError: the path is invalid; the error contains the remedy.
    """
    names: list[str] = []
    at = 0
    while at < len(path) and path[at] != ".":
        found = _NAME.match(path, at)
        at = found.end() if found else at
        if found is None or path[at : at + 1] not in ("", "."):
            raise ValueError(
                f"{path!r} has a quote or a backslash in a name, and Ratchet cannot read such fields. Put quotes "
                'around a whole name only, such as one with a dot: field:"event.id".x'
            )
        names.append(found[2] if found[1] is None else found[1])
        if at == len(path):
            return tuple(names)
        at += 1
    raise ValueError(f"{path!r} has an empty part; write a path such as field:meta.sequence")


def path_of(names: Sequence[str]) -> str | None:
    """Return field names as a path; None: no path can express these names."""
    if any('"' in name or "\\" in name or not name.isprintable() for name in names):
        return None
    return ".".join(name if name and not {".", ",", " "} & set(name) else f'"{name}"' for name in names)


class SequenceForm(StrEnum):
    """Form of a sequence in a header.

    GUESS    decimal text if the bytes can be read as such, else eight bytes, big-endian
    TEXT     decimal text only
    INTEGER  eight bytes, big-endian, only
    LITTLE_ENDIAN  eight bytes, little-endian, only
    """

    GUESS = "guess"
    TEXT = "text"
    INTEGER = "integer"
    LITTLE_ENDIAN = "little-endian"


@dataclass(frozen=True, slots=True)
class SequenceSource:
    """Source of a record's sequence.

    Args:
        kind: "header", "field", "function" or "none". With "none" there is no sequence, and an identity is either seen
            or not.
        name: name of a "header"; path of a "field" in the JSON value, see `path_names`; "module:function" of a
            "function".
    """

    kind: Literal["header", "field", "function", "none"]
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> SequenceSource:
        """Parse "header:NAME", "field:a.b", "function:module:name" or "none".

        Raises:
            ValueError: the text is no source; the error contains the remedy.
        """
        if text == "none":
            return cls("none")
        kind, _, name = text.partition(":")
        if kind == "key":
            raise ValueError(
                "the record key cannot be the sequence: records of one sequence would have different keys, land on "
                "different partitions and lose their order. Put the number into a header (header:NAME) or into "
                "the value (field:PATH). If the records have no number, and each key is a unique id, write "
                'sequence = "none" and identity = "key"'
            )
        match kind:
            case "header" | "field" | "function":
                return cls(kind, _checked_name(kind, name, text))
        if not name:
            raise ValueError(f"{text!r} names no part of a record; write {_PLACES}, or none")
        raise ValueError(f"a sequence cannot be read from {kind!r}; write {_PLACES}, or none")

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


def _checked_name(kind: str, name: str, text: str) -> str:
    """Check the name of a header, field or function, and return it.

    Args:
        kind: "header", "field" or "function".
        name: the name.
        text: the setting's whole text, for messages.

    Raises:
        ValueError: the name is invalid.
    """
    if not name:
        raise ValueError(f"{text!r} names no part of a record; write {_PLACES}")
    if not name.isprintable():
        raise ValueError(f"{name!r} has characters that cannot be printed; use another name")
    if kind == "field":
        path_names(name)
    if kind == "function" and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
        raise ValueError(f"{name!r} is not a function; write function:package.module:name")
    return name
