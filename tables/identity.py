"""What a stream judges by: whose sequence it is (identity) and where the number stands (sequence source)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

PRODUCER_HEADER = "ratchet-producer"
"""Header with the producer's name, UTF-8. Set by producers/; any client may set it."""

SEQUENCE_HEADER = "ratchet-sequence"
"""Header with the record's sequence: 8-byte big-endian signed integer, or decimal text."""

SEQUENCE_MAX = 2**63 - 1
"""Sequences are signed 64-bit and not negative: -1 stands for "nothing yet" (PIP-6, getLastSequenceId)."""

MAX_IDENTITY_BYTES = 1024
"""Longer identities are invalid: each one is kept in memory and in the changelog for as long as it lives."""


class Identity(StrEnum):
    """Whose sequence it is. State is always kept per input partition.

    PARTITION  one sequence per partition (the ValueTransformer approach)
    KEY        one per record key
    PRODUCER   one per producer name, from the header `ratchet-producer` (PIP-6)
    """

    PARTITION = "partition"
    KEY = "key"
    PRODUCER = "producer"


class SequenceForm(StrEnum):
    """How a sequence is written in a header.

    GUESS    decimal text where it reads as that, else eight bytes, big-endian
    TEXT     decimal text only
    INTEGER  eight bytes, big-endian, only
    """

    GUESS = "guess"
    TEXT = "text"
    INTEGER = "integer"


@dataclass(frozen=True, slots=True)
class SequenceSource:
    """Where the sequence of a record stands.

    kind      "header": name is the header's name; "field": name is a path in the JSON value, parts joined
              by dots; "function": name is "module:function", called with each record
    """

    kind: Literal["header", "field", "function"]
    name: str

    @classmethod
    def parse(cls, text: str) -> SequenceSource:
        """Read "header:NAME", "field:a.b" or "function:module:name".

        Raises:
            ValueError: with a sentence that says what to write instead.
        """
        kind, _, name = text.partition(":")
        if kind == "key" or text == "key":
            raise ValueError(
                "the record key cannot be the sequence: records of one sequence would have different keys, land on "
                "different partitions and lose their order. Put the number into a header (header:NAME) or into "
                "the value (field:PATH)"
            )
        if not name:
            raise ValueError(f"{text!r} names no place; write header:NAME, field:PATH or function:module:name")
        if not name.isprintable():
            raise ValueError(f"{name!r} has characters that cannot be printed; use another name")
        if kind == "header":
            return cls("header", name)
        if kind == "field":
            if '"' in name or "\\" in name:
                raise ValueError(f"{name!r} has a quote or a backslash in it; Ratchet cannot read such fields")
            if not all(name.split(".")):
                raise ValueError(f"{name!r} has an empty part; write a path such as field:meta.sequence")
            return cls("field", name)
        if kind == "function":
            if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
                raise ValueError(f"{name!r} is no function; write function:package.module:name")
            return cls("function", name)
        raise ValueError(f"{kind!r} is no place for a sequence; write header:NAME, field:PATH or function:module:name")

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"
