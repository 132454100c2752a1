"""Places in a record, headers and fields, and the candidates made of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.app.survey.kernels import DEPTH_MOST
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.identity import Identity, path_names, split_parts

PLACES_MOST: Final = 60
"""Maximum number of headers, and of fields, of all candidates: the compiled pass has one bit for each field in a 64-bit
word."""


class RecordPart(NamedTuple):
    """Part of a record. name: name of the header, or path of the field in the JSON value."""

    kind: Literal["whole", "partition", "key", "header", "field"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind

    @property
    def words(self) -> str:
        """Return the name, without the quotes of a path."""
        return self.name.replace('"', "") if self.kind == "field" else self.name


WHOLE: Final = RecordPart("whole")
PARTITION: Final = RecordPart("partition")
KEY: Final = RecordPart("key")
PRODUCER: Final = RecordPart("header", "ratchet-producer")
SEQUENCE: Final = RecordPart("header", "ratchet-sequence")


@dataclass(frozen=True, slots=True)
class Candidate:
    """Candidate for recognising duplicates: an identity and, if it has one, its rising number.

    With a number, a record is a duplicate if its identity and number were seen before. Without a number, the identity
    alone decides.
    """

    identity: tuple[RecordPart, ...]
    sequence: RecordPart | None = None

    def __str__(self) -> str:
        names = " + ".join(map(str, self.identity))
        return names if self.sequence is None else f"{names}, number {self.sequence}"

    @property
    def setting(self) -> str | list[str]:
        """Return the value for the setting `identity` of a stream."""
        if self.identity == (PRODUCER,):
            return "producer"
        names = [str(place) for place in self.identity]
        return names[0] if len(names) == 1 == len(split_parts(names[0])) else names


def candidate_of(text: str) -> Candidate:
    """Parse an identity, written as in a stream's settings.

    Raises:
        SettingsError: the text is no identity, or an identity that a survey cannot read.
    """
    try:
        parts = Identity.parse(text).parts
    except ValueError as error:
        raise SettingsError(f"--identity {text!r}: {error}") from None
    places = []
    for part in parts:
        if part.kind == "function":
            raise SettingsError(f"--identity {text!r}: a survey runs no functions; name headers, fields or the key")
        if part.kind == "field" and len(path_names(part.name)) > DEPTH_MOST:
            raise SettingsError(
                f"--identity {text!r}: a survey reads fields at most {DEPTH_MOST} levels deep. Name a shorter path"
            )
        places.append(PRODUCER if part.kind == "producer" else RecordPart(part.kind, part.name))
    return Candidate(tuple(places))


@dataclass(frozen=True)
class Candidates:
    """Candidates that a survey counts in all records.

    left_out: headers and fields of the sample that are no candidates, each with the reason
    """

    chosen: tuple[Candidate, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    @cached_property
    def headers(self) -> tuple[str, ...]:
        """Return the names of all headers of the candidates, to find in each record."""
        return self._names("header")

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Return the paths of all JSON fields of the candidates, to find in each record."""
        return self._names("field")

    def _names(self, kind: str) -> tuple[str, ...]:
        places = (place for each in self.chosen for place in (*each.identity, each.sequence) if place is not None)
        return tuple(dict.fromkeys(place.name for place in places if place.kind == kind))[:PLACES_MOST]


class HeaderNames(NamedTuple):
    """Names of headers for the compiled pass: the bytes of all, and start and end of each name."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def joined(names: tuple[str, ...]) -> HeaderNames:
    """Return names in the form that the compiled pass needs."""
    parts = [name.encode() for name in names]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    starts = ends - np.array([len(part) for part in parts], np.int64)
    return HeaderNames(np.frombuffer(b"".join(parts), np.uint8), starts, ends)


class Paths(NamedTuple):
    """Paths of fields for the compiled pass. A path has several parts, such as `user.id`.

    data: names of all parts, one after the other
    starts, ends: int64[places, DEPTH_MOST], begin and end of each part in `data`
    parts: int64[places], number of parts of each path
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    parts: NDArray[np.int64]


def joined_paths(paths: tuple[str, ...]) -> Paths:
    """Return paths in the form that the compiled pass needs."""
    split = [path_names(path) for path in paths]
    flat = joined(tuple(part for parts in split for part in parts))
    counts = np.array([len(parts) for parts in split], np.int64)
    starts, ends = np.zeros((2, len(paths), DEPTH_MOST), np.int64)
    at = 0
    for place, count in enumerate(counts):
        starts[place, :count], ends[place, :count] = flat.starts[at : at + count], flat.ends[at : at + count]
        at += int(count)
    return Paths(flat.data, starts, ends, counts)
