"""Extraction of sequences and identities from a header (compiled), a field of a JSON value, or a user's function.

`kafka_ratchet.rule.identities.in_columns` reads the identities that a batch has columns for.
"""

from __future__ import annotations

import importlib
import re
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule import kernels, parts
from kafka_ratchet.rule.identities import Identities, in_columns
from kafka_ratchet.rule.identity import (
    MAX_IDENTITY_BYTES,
    SEQUENCE_MAX,
    Identity,
    IdentityPart,
    SequenceForm,
    SequenceSource,
    path_names,
)
from kafka_ratchet.rule.nesting import decoded, is_too_deep
from kafka_ratchet.rule.reasons import (
    IDENTITY_MISSING,
    IDENTITY_TOO_LONG,
    NONE,
    REASONS,
    SEQUENCE_NEGATIVE,
    SEQUENCE_OUT_OF_RANGE,
    not_json,
)
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.record_batch import Header, RecordBatch

log = structlog.get_logger(__name__)

Sequences = tuple[NDArray[np.int64], NDArray[np.uint8]]
"""Sequences of the records as int64[records] (-1: missing), and reasons for missing ones as uint8[records]."""


Spans = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Start, length and number of occurrences of a header in each record, each as int64[records]."""

Found = TypeVar("Found")


class Record(NamedTuple):
    """Record as a user's extractor receives it.

    Args:
        key: key of the record.
        value: value of the record.
        headers: headers of the record.
        timestamp_ms: milliseconds since 1970.
    """

    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp_ms: int


class Reader(Protocol):
    """Reader of each record's sequence, from a header, a field of the value, or a user's function."""

    def __call__(self, batch: RecordBatch) -> Sequences:
        """Return the sequences of the batch's records, and the reasons for missing ones, in order."""


FORMS: Final = {
    SequenceForm.GUESS: parts.GUESS,
    SequenceForm.TEXT: parts.TEXT,
    SequenceForm.INTEGER: parts.INTEGER,
    SequenceForm.LITTLE_ENDIAN: parts.LITTLE,
}


def reader_for(source: SequenceSource, form: SequenceForm = SequenceForm.GUESS) -> Reader:
    """Return the reader of sequences from a source.

    Args:
        source: source of the sequences.
        form: form of a sequence in a header; ignored for other sources.

    Raises:
        SettingsError: the user's function cannot be imported.
    """
    if source.kind == "header":
        return partial(from_header, form=FORMS[form])
    if source.kind == "none":
        return all_alike
    read = _field(source.name) if source.kind == "field" else _function(source.name)
    return lambda batch: _one_by_one(batch, read)


def from_header(batch: RecordBatch, form: int) -> Sequences:
    """Read each record's sequence from a header that the batch has columns for, in one compiled pass.

    A lane's batches have columns for two headers; the first of them holds the sequence.

    Args:
        batch: batch of a lane.
        form: form of the sequences, see `kafka_ratchet.rule.parts`.
    """
    columns = batch.columns
    spans = columns[records.FIRST], columns[records.FIRST_LENGTH], columns[records.FIRST_TIMES]
    return from_spans(batch, spans, form)


def from_spans(batch: RecordBatch, spans: Spans, form: int) -> Sequences:
    """Read each record's sequence from a header value at a known position.

    Args:
        batch: the batch.
        spans: positions of the header values, from `find_headers` or from the batch's columns.
        form: form of the sequences, see `kafka_ratchet.rule.parts`.
    """
    sequences = np.empty(batch.count, np.int64)
    reasons = np.empty(batch.count, np.uint8)
    parts.read_sequences(batch.data, *spans, form, sequences, reasons)
    return sequences, reasons


def find_headers(batch: RecordBatch, names: Sequence[bytes]) -> list[Spans]:
    """Find headers by name in each record, in one pass.

    Use it for batches without columns for these headers; the batches of a lane have such columns.
    """
    starts, lengths = np.empty((2, len(names), batch.count), np.int64)
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    begins = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    parts.find_headers(
        batch.data, batch.columns, np.frombuffer(b"".join(names), np.uint8), begins, ends, starts, lengths
    )
    times = np.where(lengths == parts.REPEATED, 2, 1)
    return list(zip(starts, lengths, times, strict=True))


def all_alike(batch: RecordBatch) -> Sequences:
    """Return sequence 0 for every record, so that only the first record of each identity is fresh."""
    return np.zeros(batch.count, np.int64), np.zeros(batch.count, np.uint8)


def _one_by_one(batch: RecordBatch, read: Callable[[RecordBatch, int], int | str]) -> Sequences:
    """Read sequences with one Python call per record; a JSON field takes about a microsecond."""
    sequences = np.full(batch.count, -1, np.int64)
    reasons = np.zeros(batch.count, np.uint8)
    for i in range(batch.count):
        found = read(batch, i)
        if isinstance(found, str):
            reasons[i] = REASONS.index(found)
        elif found < 0:
            reasons[i] = SEQUENCE_NEGATIVE
        elif found > SEQUENCE_MAX:
            reasons[i] = SEQUENCE_OUT_OF_RANGE
        else:
            sequences[i] = found
    return sequences, reasons


_INTEGER: Final = re.compile(rb'(")?(-?[0-9]+)(?(1)"|)')
_DIGITS_MOST: Final = 20
"""Maximum digits of a text to convert to a number: 2^63 - 1 has 19, and converting a megabyte of digits takes
seconds."""


def _field(path: str) -> Callable[[RecordBatch, int], int | str]:
    find = field_reader(path, "sequence-missing")

    def read(batch: RecordBatch, index: int) -> int | str:
        found = find(batch.value(index))
        return found if isinstance(found, str) else parse_integer(found)

    return read


def field_reader(path: str, missing: str) -> Callable[[bytes | None], bytes | str]:
    """Return a function that reads the JSON text at a path of a value.

    The function decodes only the levels on the path, and returns the text undecoded: 1.0 does not count as an integer.
    If the value has nothing at the path, the function returns `missing`. If the value is not JSON, or nested too deep,
    the function returns the reason of `not_json`.
    """
    decoders: list[Callable[[bytes], Any]] = [
        # Fields of a Struct have to be identifiers; the name in the JSON text is given by `rename`.
        msgspec.json.Decoder(
            msgspec.defstruct(
                "Level", [("inner", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET)], rename={"inner": part}
            )
        ).decode
        for part in path_names(path)
    ]

    def read(value: bytes | None) -> bytes | str:
        found: Any = value
        if value is None:
            return missing
        if is_too_deep(value):
            return not_json(value)
        for decode in decoders:
            try:
                found = decoded(decode, found).inner
            except msgspec.ValidationError:
                return missing  # no object
            except (msgspec.DecodeError, UnicodeDecodeError):
                return not_json(value)
            if found is msgspec.UNSET:
                return missing
        return bytes(found)

    return read


def parse_integer(text: bytes) -> int | str:
    """Return the number in a JSON integer or string of digits; for other text, return the reason for its refusal."""
    if text.startswith(b'"') and b"\\" in text:  # digits may be written as escapes
        try:
            text = b'"' + msgspec.json.decode(text, type=str).encode() + b'"'
        except (msgspec.DecodeError, UnicodeDecodeError):
            return "sequence-not-a-number"
    match = _INTEGER.fullmatch(text)
    if not match:
        return "sequence-missing" if text == b"null" else "sequence-not-a-number"
    negative = match[2].startswith(b"-")
    digits = match[2].lstrip(b"-").lstrip(b"0")  # Python refuses to convert thousands of zeros, too
    if len(digits) > _DIGITS_MOST:
        return "sequence-negative" if negative else "sequence-out-of-range"
    number = int(digits or b"0")
    return -number if negative else number


def _function(name: str) -> Callable[[RecordBatch, int], int | str]:
    extract = imported(name, "sequence")

    def number(record: Record) -> int | None:
        found = extract(record)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int):
            raise TypeError(f"the extractor returned a {type(found).__name__} instead of an int or None")
        return int.__int__(found)  # a subclass may compare as it likes

    def read(batch: RecordBatch, index: int) -> int | str:
        found = call_extractor(number, name, batch, index)
        return "sequence-missing" if found is None else found

    return read


def imported(name: str, setting: str) -> Callable[[Record], Any]:
    """Import a user's function from "module:function".

    Args:
        name: the function, as module:function.
        setting: setting that names the function, for messages.

    Raises:
        SettingsError: the function cannot be imported, or is not callable.
    """
    module, _, function = name.partition(":")
    try:
        found: Callable[[Record], Any] = getattr(importlib.import_module(module), function)
    except Exception as error:
        # The user's module is run here, and may raise anything.
        raise SettingsError(
            f"{setting} function:{name}: cannot be imported: {error!r}. Correct the name, or install the module"
        ) from error
    if not callable(found):
        raise SettingsError(
            f"{setting} function:{name}: is a {type(found).__name__}, not a function. Name a function of the module"
        )
    return found


def call_extractor(extract: Callable[[Record], Found], name: str, batch: RecordBatch, index: int) -> Found | str:
    """Call a user's extractor on a record, and return the result.

    If the extractor raises an error, log it, and return "extractor-failed".

    Args:
        extract: the extractor.
        name: name of the extractor, for the log.
        batch: batch with the record.
        index: index of the record.
    """
    record = Record(batch.key(index), batch.value(index), batch.headers(index), int(batch.timestamps[index]))
    try:
        return extract(record)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Whatever the user's code raises, sys.exit() included, this record is dead-lettered and the partition moves
        # on. Even printing the error may run the user's code.
        reason = "".join(traceback.format_exception_only(error)).strip()
        log.warning(
            "the extractor of the settings failed on a record",
            function=name,
            offset=int(batch.offsets[index]),
            reason=reason,
        )
        return "extractor-failed"


class IdentityReader(Protocol):
    """Reader of the identity of each record in a batch."""

    def __call__(self, batch: RecordBatch, reasons: NDArray[np.uint8]) -> Identities:
        """Return the records' identities.

        Args:
            batch: the batch.
            reasons: uint8[records]; NONE is replaced by the reason if an identity is missing.
        """


def computed_identity_reader(identity: Identity) -> IdentityReader | None:
    """Return the reader of computed identities; None: the batch has columns for the identities.

    Raises:
        SettingsError: the user's function cannot be imported.
    """
    if not identity.is_computed:
        return None
    readers = [_part(part) for part in identity.parts]
    return readers[0] if len(readers) == 1 else partial(_joined, readers)


def identity_reader(identity: Identity) -> IdentityReader:
    """Return the reader of identities, which also fills in the reason for each missing identity.

    Raises:
        SettingsError: the user's function cannot be imported.
    """
    return computed_identity_reader(identity) or partial(_in_columns, identity)


def identity_reader_by_name(identity: Identity) -> IdentityReader:
    """Return the reader of identities for batches without header columns.

    This reader searches each record for the header by name.

    Raises:
        SettingsError: the user's function cannot be imported.
    """
    return identity_reader(identity) if identity.header is None else partial(_header, identity.header.encode())


def _part(part: IdentityPart) -> IdentityReader:
    match part.kind:
        case "field":
            return partial(_identities, _identity_field(part.name))
        case "function":
            return partial(_identities, _identity_function(part.name))
        case "header":
            return partial(_header, part.name.encode())
    return partial(_in_columns, Identity.KEY)


def _in_columns(identity: Identity, batch: RecordBatch, reasons: NDArray[np.uint8]) -> Identities:
    found = in_columns(batch, identity)
    _note(reasons, found)
    return found


def _header(name: bytes, batch: RecordBatch, reasons: NDArray[np.uint8]) -> Identities:
    (spans,) = find_headers(batch, [name])
    return identities_of(batch, spans, reasons)


def identities_of(batch: RecordBatch, spans: Spans, reasons: NDArray[np.uint8]) -> Identities:
    """Return the identities in header values that `find_headers` has located.

    Args:
        batch: the batch.
        spans: location of the header in each record, as `find_headers` returns it.
        reasons: uint8[records]; NONE is replaced by the reason if an identity is missing.
    """
    found = Identities(batch.data, *spans, least=1)
    _note(reasons, found)
    return found


def _note(reasons: NDArray[np.uint8], found: Identities) -> None:
    kernels.note(found.lengths, found.times, found.least, MAX_IDENTITY_BYTES, reasons)


def _identities(
    read: Callable[[RecordBatch, int], bytes | str], batch: RecordBatch, reasons: NDArray[np.uint8]
) -> Identities:
    """Extract identities with one Python call per valid record.

    Args:
        read: function that returns a record's identity as bytes, or as str the reason why it is missing.
        batch: the batch.
        reasons: uint8[records]; NONE is replaced by the reason if an identity is missing.
    """
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


def _joined(readers: Sequence[IdentityReader], batch: RecordBatch, reasons: NDArray[np.uint8]) -> Identities:
    """Join the parts of each record's identity, as `kafka_ratchet.rule.identity.joined` does."""
    found = [read(batch, reasons) for read in readers]
    lengths = np.zeros(batch.count, np.int64)
    for each in found:
        lengths += each.lengths + np.where(each.lengths > parts.VARINT_BYTE_MOST, 2, 1)
    is_good = reasons == NONE
    lengths[~is_good] = 0
    begins = np.cumsum(lengths) - lengths
    data, at = np.empty(int(lengths.sum()), np.uint8), begins.copy()
    for each in found:
        parts.append_part(each.data, each.begins, each.lengths, is_good, data, at)
    data.flags.writeable = False  # the passes are compiled for one kind of array
    return Identities(data, begins, np.where(is_good, lengths, -1))


_WHOLE: Final = re.compile(rb"-?[0-9]+")


def _identity_field(path: str) -> Callable[[RecordBatch, int], bytes | str]:
    find = field_reader(path, "identity-missing")

    def read(batch: RecordBatch, index: int) -> bytes | str:
        found = find(batch.value(index))
        return found if isinstance(found, str) else parse_id(found)

    return read


def parse_id(text: bytes) -> bytes | str:
    """Return the identity in a JSON string or integer; for other JSON, return the reason for its refusal."""
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


def _identity_function(name: str) -> Callable[[RecordBatch, int], bytes | str]:
    extract = imported(name, "identity")

    def made(record: Any) -> bytes | str | None:
        found = extract(record)
        if found is None:
            return None
        if isinstance(found, str):
            try:
                return str.encode(found)  # a subclass may override methods
            except UnicodeEncodeError:
                return "identity-not-text"
        if isinstance(found, bytes):
            return b"".join((found,))
        raise TypeError(f"the extractor returned a {type(found).__name__} instead of a str, bytes or None")

    return lambda batch, index: call_extractor(made, name, batch, index) or "identity-missing"
