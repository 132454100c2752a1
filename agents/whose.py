"""Whose a record is, where that is read from it: a field of a JSON value, a function of one's own, several parts.

What stands in the batch's columns is `kafka_ratchet.tables.identities.in_columns`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.agents import kernels
from kafka_ratchet.agents.extraction import called, field_reader, imported
from kafka_ratchet.tables.identities import Identities, in_columns
from kafka_ratchet.tables.identity import MAX_IDENTITY_BYTES, Identity, IdentityPart
from kafka_ratchet.tables.map import kernels as map_kernels
from kafka_ratchet.tables.reasons import IDENTITY_MISSING, IDENTITY_TOO_LONG, NONE, REASONS
from kafka_ratchet.transport.batch.record_batch import RecordBatch


class Whose(Protocol):
    """What reads the identities of a batch."""

    def __call__(self, batch: RecordBatch, reasons: NDArray[np.uint8]) -> Identities:
        """Whose its records are. reasons: uint8[records]; where it is NONE, why a record has no identity is put in."""


def whose(identity: Identity) -> Whose | None:
    """What reads such identities; None where they stand in the batch's columns.

    Raises:
        SettingsError: the user's function cannot be imported.
    """
    if not identity.is_computed:
        return None
    parts = [_part(part) for part in identity.parts]
    return parts[0] if len(parts) == 1 else partial(_joined, parts)


def reads(identity: Identity) -> Whose:
    """What reads such identities wherever they stand, with the reason of each record that has none.

    Raises:
        SettingsError: the user's function cannot be imported.
    """
    return whose(identity) or partial(_in_columns, identity)


def _part(part: IdentityPart) -> Whose:
    match part.kind:
        case "field":
            return partial(_one_by_one, _field(part.name))
        case "function":
            return partial(_one_by_one, _function(part.name))
        case "header":
            return partial(_header, np.frombuffer(part.name.encode(), np.uint8))
    return partial(_in_columns, Identity.KEY)


def _in_columns(identity: Identity, batch: RecordBatch, reasons: NDArray[np.uint8]) -> Identities:
    found = in_columns(batch, identity)
    _note(reasons, found)
    return found


def _header(name: NDArray[np.uint8], batch: RecordBatch, reasons: NDArray[np.uint8]) -> Identities:
    begins, lengths, times = (np.empty(batch.count, np.int64) for _ in range(3))
    kernels.find_header(batch.data, batch.columns, name, begins, lengths, times)
    found = Identities(batch.data, begins, lengths, times, least=1)
    _note(reasons, found)
    return found


def _note(reasons: NDArray[np.uint8], found: Identities) -> None:
    map_kernels.note(found.lengths, found.times, found.least, MAX_IDENTITY_BYTES, reasons)


def _one_by_one(
    read: Callable[[RecordBatch, int], bytes | str], batch: RecordBatch, reasons: NDArray[np.uint8]
) -> Identities:
    """One Python call per record that is good so far. read: returns the identity, or the reason why there is none."""
    lengths = np.full(batch.count, -1, np.int64)
    found = []
    for i in np.flatnonzero(reasons == NONE).tolist():
        one = read(batch, i)
        if isinstance(one, str):
            reasons[i] = REASONS.index(one)
        elif not one:
            reasons[i] = IDENTITY_MISSING
        elif len(one) > MAX_IDENTITY_BYTES:
            reasons[i] = IDENTITY_TOO_LONG
        else:
            lengths[i] = len(one)
            found.append(one)
    ends = np.cumsum(np.maximum(lengths, 0))
    return Identities(np.frombuffer(b"".join(found), np.uint8), ends - np.maximum(lengths, 0), lengths)


def _joined(parts: Sequence[Whose], batch: RecordBatch, reasons: NDArray[np.uint8]) -> Identities:
    """All parts of each record, as `kafka_ratchet.tables.identity.joined` writes them."""
    found = [part(batch, reasons) for part in parts]
    lengths = np.zeros(batch.count, np.int64)
    for each in found:
        lengths += each.lengths + np.where(each.lengths > kernels.VARINT_BYTE_MOST, 2, 1)
    is_good = reasons == NONE
    lengths[~is_good] = 0
    begins = np.cumsum(lengths) - lengths
    data, at = np.empty(int(lengths.sum()), np.uint8), begins.copy()
    for each in found:
        kernels.append_part(each.data, each.begins, each.lengths, is_good, data, at)
    data.flags.writeable = False  # the passes are compiled for one kind of array
    return Identities(data, begins, np.where(is_good, lengths, -1))


_WHOLE: Final = re.compile(rb"-?[0-9]+")


def _field(path: str) -> Callable[[RecordBatch, int], bytes | str]:
    find = field_reader(path, "identity-missing")

    def read(batch: RecordBatch, index: int) -> bytes | str:
        found = find(batch.value(index))
        return found if isinstance(found, str) else parse_id(found)

    return read


def parse_id(text: bytes) -> bytes | str:
    """The identity that a JSON text or whole number is; otherwise the reason why it is none."""
    if text.startswith(b'"'):
        try:
            return msgspec.json.decode(text, type=str).encode()
        except (msgspec.DecodeError, UnicodeError):
            return "identity-not-text"
    if text == b"null":
        return "identity-missing"
    if not _WHOLE.fullmatch(text):
        return "identity-not-text"
    return b"0" if text == b"-0" else text


def _function(name: str) -> Callable[[RecordBatch, int], bytes | str]:
    extract = imported(name, "identity")

    def made(record: Any) -> bytes | str | None:
        found = extract(record)
        if found is None:
            return None
        if isinstance(found, str):
            try:
                return str.encode(found)  # a subclass may do what it likes
            except UnicodeEncodeError:
                return "identity-not-text"
        if isinstance(found, bytes):
            return b"".join((found,))
        raise TypeError(f"returned a {type(found).__name__}")

    return lambda batch, index: called(made, name, batch, index) or "identity-missing"
