"""Digest over the bytes read of a file, and its text form within a producer's progress."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from kafka_ratchet.errors import SourceError

BLOCK_BYTES = 1 << 20
CHECKPOINTS = 32
"""Most digests of beginnings kept, to locate a change to within a 32nd to a 16th of the file.

Each takes some 20 bytes of the progress, which is written every second.
"""

FIRST_CHECKPOINT_BYTES = 64 * 1024
DIGEST_BYTES = 16
CHECKPOINT_BYTES = 4
"""Bytes of a checkpoint: enough to find the place; the whole digest decides whether anything changed."""

FORM = "file:"
"""Beginning of every mark."""

NO_MARK = "none"
"""Mark of an unread source."""

BEFORE = 256
"""Newest finished files kept one by one in a mark, some 70 bytes each; one digest covers older ones."""


class ContentDigest:
    """Running BLAKE2b over a file's uncompressed bytes, with digests of beginnings on the way."""

    __slots__ = ("_every", "_next", "checkpoints", "running", "size")

    def __init__(self) -> None:
        self.running = hashlib.blake2b(digest_size=DIGEST_BYTES)
        """`copy` it to keep the digest up to here."""
        self.size = 0
        self.checkpoints: tuple[tuple[int, str], ...] = ()
        """Byte and digest; replaced as a whole, never changed, so that other threads may read it."""
        self._every = self._next = FIRST_CHECKPOINT_BYTES

    def update(self, data: bytes | memoryview) -> None:
        """Take the bytes that follow."""
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
        """Return the digest up to here."""
        return self.running.hexdigest()

    def copy(self) -> ContentDigest:
        """Return an independent copy that continues from here."""
        other = ContentDigest()
        other.running, other.size, other.checkpoints = self.running.copy(), self.size, self.checkpoints
        other._every, other._next = self._every, self._next
        return other


@dataclass(frozen=True, slots=True)
class Finished:
    """File read to its end."""

    name: str
    """Name at the time of reading; only for messages."""
    size: int
    """Size in bytes, uncompressed."""
    digest: str


@dataclass(frozen=True, slots=True)
class FileMark:
    """Identity of the bytes read up to the end of one record."""

    sequence: int
    """The record's first byte."""
    end: int
    """Byte after the record and its line end."""
    ended: bool
    """True if its line had an end."""
    digest: str
    """Digest of all bytes before `end`."""
    at: tuple[tuple[int, str], ...]
    """Checkpoints, see `ContentDigest`."""
    name: str
    device: int
    inode: int
    """Inode, to tell apart files that begin with the same bytes."""
    form: str
    """Format of the lines."""
    number: int = 0
    """Number of files read to their ends before this one."""
    before: tuple[Finished, ...] = ()
    """The newest of these, `BEFORE` at most."""
    chain: str = ""
    """The digest of those before them."""

    def encode(self) -> str:
        """Return the mark as a text."""
        fields = asdict(self) | {"before": [(each.name, each.size, each.digest) for each in self.before]}
        return FORM + json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> FileMark | None:
        """Read it back; None: it is not of this form."""
        if not text.startswith(FORM):
            return None
        try:
            fields: dict[str, Any] = json.loads(text.removeprefix(FORM))
            fields["at"] = tuple((int(offset), str(digest)) for offset, digest in fields["at"])
            fields["before"] = tuple(Finished(*each) for each in fields["before"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def chained(chain: str, finished: Finished) -> str:
    """Return the digest of a chain of finished files with one more."""
    text = f"{chain} {finished.size} {finished.digest}"
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def read_digest(stream: BinaryIO, digest: ContentDigest, until: int | None) -> ContentDigest:
    """Take the stream up to this byte, None: to its end. What there is of it, if it ends before."""
    while (until is None or digest.size < until) and (
        block := stream.read(BLOCK_BYTES if until is None else min(BLOCK_BYTES, until - digest.size))
    ):
        digest.update(block)
    return digest


def compare(stream: BinaryIO, mark: FileMark, refuse: Callable[[str], SourceError]) -> ContentDigest:
    """Read up to the mark's end, and find the same bytes; returns their digest.

    Raises:
        SourceError: they are others; made by `refuse` from a sentence that says which.
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
