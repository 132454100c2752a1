"""Digest of the bytes read from a file, and its text form in a producer's progress."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, BinaryIO

from kafka_ratchet.errors import SourceError

BLOCK_BYTES = 1 << 20
CHECKPOINTS = 32
"""Maximum number of checkpoint digests, which locate a change to within a 32nd to a 16th of the file.

Each takes about 20 bytes of the progress, which is written every second.
"""

FIRST_CHECKPOINT_BYTES = 64 * 1024
DIGEST_BYTES = 16
CHECKPOINT_BYTES = 4
"""Bytes of a checkpoint digest: few suffice, because it only locates a change, and the full digest detects it."""

FORM = "file:"
"""Prefix of the text of every `FileMark`."""

PLACES = "places "
"""Prefix of the text that stands for the places of the finished files, among a mark's checkpoints."""

NO_MARK = "none"
"""Text that stands for a `FileMark` before the first record of the source is published."""

BEFORE = 256
"""Maximum number of finished files that a mark lists one by one, in about 110 bytes each. Older files share one
digest.
"""


class ContentDigest:
    """Running BLAKE2b digest of a file's uncompressed bytes.

    Its checkpoints are digests of the first bytes up to several offsets, which show where two files begin to differ.
    """

    __slots__ = ("_every", "_next", "checkpoints", "running", "size")

    def __init__(self) -> None:
        self.running = hashlib.blake2b(digest_size=DIGEST_BYTES)
        """Hash object; `copy` keeps its present state."""
        self.size = 0
        self.checkpoints: tuple[tuple[int, str], ...] = ()
        """Offset and digest of each checkpoint; the tuple is replaced and never changed, so that other threads may read
        it."""
        self._every = self._next = FIRST_CHECKPOINT_BYTES

    def update(self, data: bytes | memoryview) -> None:
        """Add the following bytes to the digest."""
        self.running.update(data)
        self.size += len(data)
        if self.size >= self._next:
            self.checkpoints += ((self.size, self.running.hexdigest()[: 2 * CHECKPOINT_BYTES]),)
            if len(self.checkpoints) > CHECKPOINTS:
                self.checkpoints = self.checkpoints[1::2]
                self._every *= 2
            self._next = self.size + self._every

    @property
    def text(self) -> str:
        """Return the digest of all bytes so far, in hexadecimal digits."""
        return self.running.hexdigest()

    def copy(self) -> ContentDigest:
        """Return an independent copy, which continues from the present state."""
        other = ContentDigest()
        other.running, other.size, other.checkpoints = self.running.copy(), self.size, self.checkpoints
        other._every, other._next = self._every, self._next
        return other


Place = tuple[int, int, int]
"""Device, inode and time of change of a file. A renamed file keeps all three; a new file may get a removed one's inode.
"""


@dataclass(frozen=True, slots=True)
class Finished:
    """Description of a file after it was read to its end."""

    name: str
    """Name of the file when it was read; used only in messages."""
    size: int
    """Size in bytes, uncompressed."""
    digest: str
    place: Place | None = None
    """Place of the file when it was read; None: an earlier version wrote the mark."""


@dataclass(frozen=True, slots=True)
class FileMark:
    """Mark of a source file: digest of its bytes up to the end of one record.

    When publishing resumes, the file is recognised by it.
    """

    sequence: int
    """Offset of the record's first byte."""
    end: int
    """Offset after the record and its line end."""
    ended: bool
    """True if the record's line has a line end; False: the file ended without one."""
    digest: str
    """Digest of all bytes before `end`."""
    at: tuple[tuple[int, str], ...]
    """Offset and digest of each checkpoint, see `ContentDigest`."""
    name: str
    device: int
    inode: int
    """Inode of the file, which distinguishes files that begin with the same bytes."""
    form: str
    """Format of the file's lines."""
    number: int = 0
    """Number of files read to their ends before this one."""
    before: tuple[Finished, ...] = ()
    """Newest of these finished files, at most `BEFORE`."""
    chain: str = ""
    """Digest of the finished files that `before` does not list."""

    def encode(self) -> str:
        """Return the mark as text."""
        fields = asdict(self) | {"before": [(each.name, each.size, each.digest) for each in self.before]}
        if any(each.place for each in self.before):
            # Earlier versions ignore a checkpoint at `end`, but refuse a field that they do not know.
            places = " ".join(":".join(map(str, each.place or ())) for each in self.before)
            fields["at"] = [*self.at, (self.end, PLACES + places)]
        return FORM + json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> FileMark | None:
        """Parse the text of a mark; None: the text has another form."""
        if not text.startswith(FORM):
            return None
        try:
            fields: dict[str, Any] = json.loads(text.removeprefix(FORM))
            at = [(int(offset), str(digest)) for offset, digest in fields["at"]]
            before = [Finished(*each) for each in fields["before"]]
            if at and at[-1][1].startswith(PLACES):
                places = at.pop()[1].removeprefix(PLACES).split(" ")
                before = [replace(each, place=_place(text)) for each, text in zip(before, places, strict=True)]
            fields["at"], fields["before"] = tuple(at), tuple(before)
            return cls(**fields)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def _place(text: str) -> Place | None:
    if not text:
        return None
    device, inode, changed_ns = map(int, text.split(":"))
    return device, inode, changed_ns


def chained(chain: str, finished: Finished) -> str:
    """Add a finished file to the digest of the files before it; return the result.

    Args:
        chain: digest of the files before it; empty: there are none.
        finished: the file to add.
    """
    text = f"{chain} {finished.size} {finished.digest}"
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def read_digest(stream: BinaryIO, digest: ContentDigest, until: int | None) -> ContentDigest:
    """Add the stream's bytes to a digest, up to the offset `until`; None: up to the stream's end.

    A shorter stream is read to its end.
    """
    while (until is None or digest.size < until) and (
        block := stream.read(BLOCK_BYTES if until is None else min(BLOCK_BYTES, until - digest.size))
    ):
        digest.update(block)
    return digest


def compare(stream: BinaryIO, mark: FileMark, refuse: Callable[[str], SourceError]) -> ContentDigest:
    """Require that a stream begins with the bytes of a mark, and return their digest.

    Args:
        stream: the file from its first byte, decompressed.
        mark: mark made when these bytes were published.
        refuse: function that returns the error for a text about the change.

    Raises:
        SourceError: the bytes differ.
    """
    digest, begins = ContentDigest(), 0
    ends = [(offset, text) for offset, text in mark.at if offset < mark.end] + [(mark.end, mark.digest)]
    for offset, text in ends:
        read_digest(stream, digest, offset)
        if digest.size < offset:
            raise refuse(f"ends at byte {digest.size}, before byte {mark.end}: it is shorter than it was")
        if not digest.running.hexdigest().startswith(text):
            raise refuse(f"has changed between byte {begins} and byte {offset}")
        begins = offset
    return digest
