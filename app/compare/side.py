"""Interface of one side of a comparison: rows with their identities, contents and places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka_ratchet.app.compare.columns import ValueLocation
from kafka_ratchet.app.compare.values import Kind, content_of, converter, identity_of

UNKNOWN_MS = -1
"""Timestamp of a row without one."""


@dataclass(slots=True)
class Rows:
    """Rows of one side, as columns for the engine.

    identities: str or None for each row; None if a part is null or unreadable.
    contents: str for each row; empty if no contents are compared.
    parts: int, number of the partition, file or block.
    positions: int, offset or number of the row in its part.
    times: int, ms since 1970; `UNKNOWN_MS` without a time.

    Each column is a list, or an Arrow array of the same values.

    unreadable: numbers of the rows without fields to compare
    """

    identities: Any = field(default_factory=list)
    contents: Any = field(default_factory=list)
    parts: Any = field(default_factory=list)
    positions: Any = field(default_factory=list)
    times: Any = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.identities)


@dataclass(frozen=True, slots=True)
class RequestedValues:
    """Values to read from each row, with the types that determine their texts.

    by: places of the identity's parts, each with the type to use for the texts of both sides
    compared: places of the content's parts, each with such a type
    """

    by: Sequence[tuple[ValueLocation, Kind]]
    compared: Sequence[tuple[ValueLocation, Kind]] = ()

    @property
    def parts(self) -> list[tuple[ValueLocation, Kind]]:
        """Return all places with their types: first those of the identity, then those of the content."""
        return [*self.by, *self.compared]

    @property
    def places(self) -> list[ValueLocation]:
        """Return all places: first those of the identity, then those of the content."""
        return [place for place, _ in self.parts]

    def texts(self) -> Callable[[Sequence[Any]], tuple[str | None, str]]:
        """Return a function from the values of all places to identity and content."""
        by = [converter(kind) for _, kind in self.by]
        compared = [converter(kind) for _, kind in self.compared]
        count = len(by)

        def both(values: Sequence[Any]) -> tuple[str | None, str]:
            identity = identity_of([text(value) for text, value in zip(by, values[:count], strict=True)])
            if not compared:
                return identity, ""
            return identity, content_of([text(value) for text, value in zip(compared, values[count:], strict=True)])

        return both


class Side(Protocol):
    """Interface of one side of a comparison: a topic or table, never written."""

    unread: list[str]
    """Reasons why this side was not read to its end."""

    present: set[int]
    """Indexes of the wanted places that any row has, even with null there; complete once `rows` was read."""

    def kinds(self, places: Sequence[ValueLocation]) -> list[Kind]:
        """Return the type that this side declares for each place.

        Raises:
            SettingsError: the table lacks a column.
        """

    def rows(self, wanted: RequestedValues) -> Iterator[Rows]:
        """Read all rows once.

        Raises:
            SourceError: the rows cannot be read.
            BrokerUnavailable: Kafka does not answer.
        """

    def where(self, part: int, position: int) -> dict[str, Any]:
        """Return the place of a row, for messages and JSON."""

    def close(self) -> None:
        """Close the side's connections."""
