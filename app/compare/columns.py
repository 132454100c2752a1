"""Identity and values to compare, as pairs of places: one in the source, and one in the target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kafka_ratchet.app.compare.address import Address
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.identity import path_names

PARTS: Final = re.compile(r"\s*,\s*(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)")
"""Pattern of a comma outside of double quotes."""

EQUALS: Final = re.compile(r"=(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)")
"""Pattern of an equals sign outside of double quotes."""

OF_RECORD: Final = ("key", "value", "partition", "offset", "timestamp")
"""Parts of a record that need no name."""


@dataclass(frozen=True, slots=True)
class ValueLocation:
    """Place of a value in a topic's record or a table's row.

    kind: "column" is a column of a table; "field" is a path in a record's value; any other kind is a part of the record
        itself.
    name: column, header, or path.
    path: names of the path, outermost first
    """

    kind: Literal["column", "field", "header", "key", "value", "partition", "offset", "timestamp"]
    name: str = ""
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, side: Address) -> ValueLocation:
        """Parse `field:PATH`, `header:NAME`, `key`, `partition`, `offset`, `timestamp`, or a column's name.

        Raises:
            SettingsError: this side, a topic or a table, has no such place.
        """
        kind, colon, name = text.partition(":")
        if not side.is_topic:
            name = name if colon and kind in ("field", "column") else text
            return cls("column", _unquoted(name), _path(name))
        if text in OF_RECORD:
            return cls(text)  # type: ignore[arg-type] # one of the words above
        if kind == "header" and name:
            return cls("header", _unquoted(name))
        return cls("field", name if colon and kind == "field" else text, _path(name if kind == "field" else text))

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.kind in ("field", "header") else self.name or self.kind


@dataclass(frozen=True, slots=True)
class ValuePair:
    """Places of one value on both sides of a comparison."""

    source: ValueLocation
    target: ValueLocation

    @property
    def name(self) -> str:
        """Return the name of the value in messages and JSON."""
        return self.target.name or str(self.target)


def pairs(given: str | Sequence[str], source: Address, target: Address, option: str) -> list[ValuePair]:
    """Parse `LEFT=RIGHT` pairs of places; a single name stands for both sides.

    Args:
        given: one text with commas, or several texts.
        source: address of the left side.
        target: address of the right side.
        option: name of the option, for messages.

    Raises:
        SettingsError: a part is empty or given twice.
    """
    texts = [given] if isinstance(given, str) else list(given)
    found: list[ValuePair] = []
    for part in (part for text in texts for part in PARTS.split(text)):
        left, *right = EQUALS.split(part.strip(), maxsplit=1)
        if not left or (right and not right[0]):
            raise SettingsError(f"{option} {part!r}: write NAME for both sides, or SOURCE=TARGET such as field:id=id")
        bare = left.partition(":")[2] if left.startswith(("field:", "header:")) and not target.is_topic else left
        found.append(
            ValuePair(ValueLocation.parse(left, source), ValueLocation.parse(right[0] if right else bare, target))
        )
    if (twice := next((pair for pair in found if found.count(pair) > 1), None)) is not None:
        raise SettingsError(f"{option}: {twice.name} is given twice. Give it once")
    return found


def _path(name: str) -> tuple[str, ...]:
    try:
        return tuple(path_names(name))
    except ValueError as error:
        raise SettingsError(f"{name!r} is not a path of fields: {error}") from None


def _unquoted(name: str) -> str:
    return name[1:-1] if len(name) > 2 and name[0] == name[-1] == '"' and '"' not in name[1:-1] else name
