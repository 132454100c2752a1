"""State file of `ratchet verify --state`: the end of a run, where the next run continues.

The file has lines of JSON. The first line names the stream. For each input partition, one line with its positions
follows, then one line for each identity: `[name, last sequence, exact]`, with the name's bytes as Latin-1. A replay
adds a line for each entry of the agents' tables: `[key, value]`, with bytes as Latin-1. The last line has a SHA-256 of
all others.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from kafka_ratchet.errors import StateFileRefused
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, SEQUENCE_MAX
from kafka_ratchet.transport.owner import RECORDS

KIND = "ratchet verify state"
VERSION = 1
MAX_LINE_BYTES = 16 * 1024 * 1024
"""Maximum length in bytes of a line to read. Lines that verify writes are far shorter.

The longest lines have an identity, an entry of a table, or input offsets of dead letters. Identity and entry fit into a
record of the changelog, and each of their bytes takes up to six bytes in JSON.
"""

Entry = tuple[bytes, bytes]
"""Key and value of a table's entry, as in the changelog."""


@dataclass(frozen=True)
class ProvenStream:
    """Stream that a state file belongs to, with its rule and topics."""

    app: str
    stream: str
    identity: str
    sequence: str
    sequence_form: str
    input: str
    input_id: str
    output: str
    output_id: str
    dead_letters: str
    dead_letters_id: str
    contents: str = RECORDS
    """Kind of records in the output, as in the changelog's owner entry. A replay needs more state than `verify`."""

    def refuse_another(self, path: Path, other: dict[str, Any]) -> None:
        """Refuse a state file of another stream, rule or topic.

        path: path of the file; other: its first line

        Raises:
            StateFileRefused: the file belongs to another stream, rule or topic; the text names the difference.
        """
        for name, here in asdict(self).items():
            if (there := other.get(name, RECORDS if name == "contents" else None)) != here:
                what = name.replace("_id", " topic id").replace("_", " ")
                raise StateFileRefused(
                    f"{path}: was written for {what} {str(there)[:200]!r}, and this run checks {what} {here!r}. Name "
                    "the file of this stream; or delete the file, to begin at the topics' first offsets"
                )


class SavedState:
    """Reader of an earlier run's state file. Partitions are read in rising order.

    Raises:
        StateFileRefused: the file is damaged, or belongs to another stream, rule or topic.
    """

    def __init__(self, path: Path, file: BinaryIO, proven: ProvenStream) -> None:
        self._path, self._file = path, file
        self._check_sum()
        header = self._object(self._line())
        if header.get("kind") != KIND:
            raise self._damaged("it is not a state file of ratchet verify")
        if header.get("version") != VERSION:
            raise StateFileRefused(
                f"{path}: has the format {str(header.get('version'))[:40]}, and this Ratchet reads format {VERSION}. "
                "Use the version of Ratchet that wrote the file; or delete the file, to begin at the topics' first "
                "offsets"
            )
        proven.refuse_another(path, header)
        letters = header.get("dead_letters_from")
        if not isinstance(letters, list):
            raise self._damaged("it has no positions of the dead letters")
        self.dead_letters_from = [self._number(offset) for offset in letters]
        self._next = self._line()

    @classmethod
    def open(cls, path: Path, proven: ProvenStream) -> SavedState | None:
        """Open a state file; return None if it does not exist.

        Raises:
            StateFileRefused: the file is damaged, belongs to another stream, rule or topic, or cannot be read.
        """
        try:
            with ExitStack() as opened:
                saved = cls(path, opened.enter_context(path.open("rb")), proven)
                opened.pop_all()
                return saved
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateFileRefused(f"{path}: cannot be read: {error.strerror}") from None

    def partition(self, number: int, put: Callable[[Iterable[Entry]], None] | None = None) -> Baseline | None:
        """Return a partition's state at the end of the last run; None if the file lacks it.

        Call it in rising order of partitions.

        put: function that receives the entries of the partition's tables; None: there are no tables
        """
        if self._next is None:
            return None
        said = self._object(self._next)
        if "sha256" in said:
            return None
        if said.get("partition") != number or not isinstance(said.get("complete"), bool):
            raise self._damaged(f"the line for partition {number} does not contain its positions")
        letters = said.get("letters")
        if not isinstance(letters, list):
            raise self._damaged(f"partition {number} has no list of dead letters")
        input_from = self._number(said.get("input"))
        baseline = Baseline(
            input_from,
            self._number(said.get("output")),
            dict(self._identities()),
            said["complete"],
            lettered=frozenset(self._number(offset) for offset in letters),
            saved_from=input_from,
            decided=str(said.get("decided", "")),
        )
        if put is not None:
            put(self._entries())
        return baseline

    def refuse_more(self, count: int) -> None:
        """Refuse a file with more partitions than the input. Call it after reading all partitions.

        Raises:
            StateFileRefused: the file has more than `count` partitions.
        """
        if self._next is not None and "sha256" not in self._object(self._next):
            raise self._damaged(f"it has more than the {count} partitions of the input")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _entries(self) -> Iterator[Entry]:
        """Yield the saved entries of the partition's tables."""
        while self._next is not None and self._next.startswith(b"["):
            match self._parsed(self._next):
                case [str(key), str(value)]:
                    try:
                        yield key.encode("latin-1"), value.encode("latin-1")
                    except UnicodeEncodeError:
                        raise self._damaged("an entry of a table is not bytes") from None
                case _:
                    raise self._damaged(f"{self._next[:80]!r} is not an entry of a table")
            self._next = self._line()

    def _identities(self) -> Iterator[tuple[bytes, KnownSequence]]:
        while (line := self._line()) is not None and line.startswith(b"["):
            match self._parsed(line):
                case [str(), str()]:
                    break
                case [str(name), int(sequence), bool(exact)] if len(name) <= MAX_IDENTITY_BYTES:
                    try:
                        yield name.encode("latin-1"), KnownSequence(self._number(sequence), exact)
                    except UnicodeEncodeError:
                        raise self._damaged("an identity is not bytes") from None
                case _:
                    raise self._damaged(f"{line[:80]!r} is not an identity with its last sequence")
        self._next = line

    def _check_sum(self) -> None:
        digest, before = hashlib.sha256(), b""
        while (line := self._line()) is not None:
            digest.update(before)
            before = line
        if not before or self._object(before) != {"sha256": digest.hexdigest()}:
            raise self._damaged("its last line is not the checksum of those before it")
        self._file.seek(0)

    def _line(self) -> bytes | None:
        line = self._file.readline(MAX_LINE_BYTES)
        if len(line) == MAX_LINE_BYTES:
            raise self._damaged("it has an overlong line")
        return line or None

    def _object(self, line: bytes | None) -> dict[str, Any]:
        found = self._parsed(line or b"")
        if not isinstance(found, dict):
            raise self._damaged(f"the line {(line or b'')[:80]!r} is not a JSON object")
        return found

    def _parsed(self, line: bytes) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise self._damaged(f"{line[:80]!r} is not JSON") from None

    def _number(self, found: object) -> int:
        if type(found) is not int or not 0 <= found <= SEQUENCE_MAX:
            raise self._damaged(f"{str(found)[:40]!r} is neither an offset nor a sequence")
        return found

    def _damaged(self, what: str) -> StateFileRefused:
        return StateFileRefused(
            f"{self._path}: is damaged, or was not written by ratchet verify: {what}. Restore a copy of it; or "
            "delete it, to begin at the topics' first offsets"
        )


class StateWriter:
    """Writer of the next state file: a temporary file, which replaces the old one in one step.

    Args:
        path: path of the state file; a symbolic link is followed.
        proven: stream, rule and topics.
        dead_letters_from: first offset for the next run, by partition of the dead-letter topic.

    Raises:
        StateFileRefused: the file cannot be written there.
    """

    def __init__(self, path: Path, proven: ProvenStream, dead_letters_from: dict[int, int]) -> None:
        self._path = path.resolve()
        if self._path.is_dir():
            raise StateFileRefused(f"{path}: is a folder; name a file in it")
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name[:100]}.", dir=self._path.parent)
        except OSError as error:
            raise self._refusal(error) from None
        self._temporary, self._file, self._digest = Path(name), os.fdopen(descriptor, "wb"), hashlib.sha256()
        offsets = [dead_letters_from[partition] for partition in sorted(dead_letters_from)]
        header = {"kind": KIND, "version": VERSION, "written_at": datetime.now(UTC).isoformat(timespec="seconds")}
        self._write({**header, **asdict(proven), "dead_letters_from": offsets})

    def add(
        self,
        partition: int,
        *,
        input_from: int,
        output_from: int,
        complete: bool,
        letters: Iterable[int],
        known: Iterable[tuple[bytes, KnownSequence]],
        entries: Iterable[Entry] = (),
        decided: str = "",
    ) -> None:
        """Write the next partition.

        complete: True if `known` has all identities before `input_from`; letters: input offsets of dead letters;
        entries: entries of the partition's tables; decided: see `Baseline`
        """
        positions = {"input": input_from, "output": output_from, "complete": complete, "letters": sorted(letters)}
        self._write({"partition": partition, **positions, **({"decided": decided} if decided else {})})
        for identity, (sequence, exact) in known:
            self._write([identity.decode("latin-1"), sequence, exact])
        for key, value in entries:
            self._write([key.decode("latin-1"), value.decode("latin-1")])

    def finish(self) -> None:
        """Replace the old state file by the new one, and synchronise it to the disk.

        Raises:
            StateFileRefused: the file cannot be written, as when the disk is full.
        """
        try:
            self._file.write(json.dumps({"sha256": self._digest.hexdigest()}).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._refusal(error) from None

    def discard(self) -> None:
        """Remove the temporary file, if `finish` has not put it in place."""
        with suppress(OSError):  # closing writes the rest of the buffer again
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _write(self, said: object) -> None:
        line = json.dumps(said, separators=(",", ":")).encode() + b"\n"
        self._digest.update(line)
        try:
            self._file.write(line)
        except OSError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: OSError) -> StateFileRefused:
        return StateFileRefused(f"{self._path}: the state cannot be written there: {error.strerror}")


class KnownSequence(NamedTuple):
    """Known last sequence of an identity. exact: False if the real last sequence may be higher."""

    sequence: int
    exact: bool


@dataclass
class Baseline:
    """Known state of one input partition before the first record read."""

    input_from: int = 0
    """First input offset read."""
    output_from: int = 0
    """First output offset read."""
    last: dict[bytes, KnownSequence] = field(default_factory=dict)
    """Last sequence by identity."""
    complete: bool = True
    """True if `last` has all identities of the input before `input_from`."""
    aligned: bool = True
    """True if all output from `output_from` on comes from input at or after `input_from`."""
    output_whole: bool = True
    """True if retention has deleted nothing of the output from `output_from` on."""
    lettered: frozenset[int] = frozenset()
    """Input offsets from `input_from` on that already have their dead letter."""
    saved_from: int | None = None
    """Input offset where the last run of `--state` ended; None: there was none."""
    decided: str = ""
    """Time of the newest operator's decision that an earlier run has processed, ISO 8601; "": no decision."""

    @classmethod
    def after_retention(cls, input_begin: int, output_begin: int) -> Baseline:
        """Return the state before a first run, at the first offsets that Kafka still has."""
        whole = input_begin == 0
        return cls(input_begin, output_begin, complete=whole, aligned=whole, output_whole=output_begin == 0)

    def moved_to(self, input_begin: int, output_begin: int) -> Baseline:
        """Move the end of the last run past records that retention has deleted since; return this object.

        input_begin, output_begin: first offsets that Kafka still has
        """
        self.output_whole = output_begin <= self.output_from
        self.output_from = max(self.output_from, output_begin)
        if input_begin > self.input_from:
            self.last = {identity: KnownSequence(known.sequence, exact=False) for identity, known in self.last.items()}
            self.complete = self.aligned = False
            self.lettered = frozenset(offset for offset in self.lettered if offset >= input_begin)
            self.input_from = input_begin
        return self
