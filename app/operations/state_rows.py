"""File of `ratchet state export` and `ratchet state import`: one row for each identity and partition.

    identity      the identity as text, or as bytes in Parquet; null if it is not UTF-8.
    identity_hex  the identity in hex.
    sequence      the last sequence; missing in a stream without sequences, and then read as 0.
    partition     partition of the input.
    partitions    partition count of the input at the export.
    last_seen     append time of the identity's newest entry, ISO 8601, UTC; for display only, ignored by imports.
    state         further state of the identity, in hex, if the stream keeps more than a sequence.

An NDJSON file has a JSON object with these keys in each line, a Parquet file a column for each. The import needs
`identity` or `identity_hex` alone. Rows of a later format have the format's number in `ratchet_format`; this is format
1, without a number.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, SEQUENCE_MAX

AT_ONCE: Final = 10_000
"""Rows in one row group of a Parquet file."""
MAX_LINE_BYTES: Final = 64 * 1024
MAX_STATE_BYTES: Final = 8 * 1024
PARQUET, NDJSON = ".parquet", ".ndjson"
FORMAT: Final = 1
FORMAT_COLUMN: Final = "ratchet_format"
COLUMNS: Final = ("identity", "identity_hex", "sequence", "partition", "partitions", "last_seen", "state")


class Row(NamedTuple):
    """State of an identity in a partition. None in a field: the file does not have it.

    partitions: partition count of the input at the export
    state: bytes that follow the sequence in a changelog entry
    """

    identity: bytes
    sequence: int
    partition: int | None = None
    partitions: int | None = None
    seen: int = 0
    state: bytes = b""


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write rows to a new file, and return the number of rows. The ending of its name determines the format.

    Raises:
        SettingsError: the file exists, cannot be written, or has an unknown ending.
    """
    ending = _ending(path)
    if path.exists():
        raise SettingsError(f"{path}: already exists. Name a new file")
    # Of this call alone: two that write to one name at a time would each write into the other's file.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        count = (_write_parquet if ending == PARQUET else _write_ndjson)(temporary, rows)
        if path.exists():
            raise SettingsError(f"{path}: another program created the file during the export. Name a new file")
        temporary.rename(path)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _ending(path: Path) -> str:
    if path.suffix not in (PARQUET, NDJSON):
        raise SettingsError(f"{path}: the name must end with {PARQUET} or {NDJSON}, which determines the format")
    return path.suffix


def _as_object(row: Row) -> dict[str, Any]:
    text = text_of(row.identity)
    seen = datetime.fromtimestamp(row.seen, UTC).isoformat() if row.seen else None
    state = row.state.hex() if row.state else None
    told = text, row.identity.hex(), row.sequence, row.partition, row.partitions, seen, state
    return dict(zip(COLUMNS, told, strict=True))


def text_of(identity: bytes) -> str | None:
    """Return an identity as text; None if it is not UTF-8."""
    try:
        return identity.decode()
    except UnicodeDecodeError:
        return None


def _write_ndjson(path: Path, rows: Iterable[Row]) -> int:
    count = 0
    with path.open("x", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(_as_object(row), separators=(",", ":")) + "\n")
            count += 1
    return count


def _write_parquet(path: Path, rows: Iterable[Row]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = (pa.string(), pa.string(), pa.int64(), pa.int32(), pa.int32(), pa.string(), pa.string())
    schema = pa.schema(list(zip(COLUMNS, kinds, strict=True)))
    count, waiting = 0, list[dict[str, Any]]()
    with pq.ParquetWriter(path, schema) as writer:
        for row in rows:
            waiting.append(_as_object(row))
            if len(waiting) == AT_ONCE:
                writer.write_table(pa.Table.from_pylist(waiting, schema))
                count, waiting = count + len(waiting), []
        writer.write_table(pa.Table.from_pylist(waiting, schema))
    return count + len(waiting)


def read_rows(path: Path, *, numbered: bool = False) -> Iterator[Row]:
    """Yield the rows of a file, in their order.

    Args:
        path: path of the file
        numbered: True: each row must have a sequence; False: a missing sequence is read as 0

    Raises:
        SettingsError: the file cannot be read; the message names the row.
    """
    objects = _parquet_objects(path) if _ending(path) == PARQUET else _ndjson_objects(path)
    for number, found in enumerate(objects, 1):
        try:
            yield _row(found, numbered=numbered)
        except (ValueError, TypeError) as error:
            raise SettingsError(f"{path}: row {number}: {error}") from None


def _ndjson_objects(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                if len(line) == MAX_LINE_BYTES:
                    raise SettingsError(
                        f"{path}: row {number}: is longer than {MAX_LINE_BYTES:,} bytes. Correct the row"
                    )
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    raise SettingsError(f"{path}: row {number}: is not JSON. Correct the row") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None


def _parquet_objects(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(AT_ONCE):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise SettingsError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}") from None


def _row(found: Any, *, numbered: bool) -> Row:
    if not isinstance(found, dict):
        raise ValueError("is not an object")
    if (known := found.get(FORMAT_COLUMN)) not in (None, FORMAT):
        raise ValueError(
            f"is of format {str(known)[:20]}, written by a newer Ratchet; this version reads {FORMAT}. Import with "
            "the newer version"
        )
    identity = _identity(found.get("identity"), found.get("identity_hex"))
    sequence = _number(found, "sequence", SEQUENCE_MAX)
    if numbered and sequence is None:
        # As 0 all that its identity has sent would be new once more.
        raise ValueError("has no sequence, but the records of this stream have one. Give it in the column sequence")
    state = bytes.fromhex(_text(found.get("state") or "", "state"))
    if len(state) > MAX_STATE_BYTES:
        raise ValueError(f"state has {len(state):,} bytes; the longest possible one has {MAX_STATE_BYTES:,}")
    return Row(
        identity,
        0 if sequence is None else sequence,
        _number(found, "partition", 2**31 - 1),
        _number(found, "partitions", 2**31 - 1),
        state=state,
    )


def _identity(text: object, hexadecimal: object) -> bytes:
    if text is None and hexadecimal is None:
        raise ValueError("has neither identity nor identity_hex")
    told = [] if text is None else [text if isinstance(text, bytes) else _text(text, "identity").encode()]
    if hexadecimal is not None:
        told.append(bytes.fromhex(_text(hexadecimal, "identity_hex")))
    if told[0] != told[-1]:
        raise ValueError("identity and identity_hex are different identities; remove one of the two")
    if len(told[0]) > MAX_IDENTITY_BYTES:
        raise ValueError(
            f"the identity has {len(told[0]):,} bytes; the longest possible one has {MAX_IDENTITY_BYTES:,}"
        )
    return told[0]


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is not text")
    return value


def _number(found: dict[str, Any], name: str, most: int) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} is not a whole number from 0 to {most}: {str(value)[:40]!r}")
    return value
