"""A log that is rotated while it is followed: what is published is what was written, or it is refused."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_ratchet.errors import SourceError
from kafka_ratchet.producers import FileSet, file_set

OPERATIONS = ["append", "append", "half", "rename", "copy", "compress", "gzip begins", "remove", "late", "kill", "look"]


class Log:
    """A program that writes lines, and logrotate in one of its two ways of naming."""

    def __init__(self, folder: Path, dated: bool) -> None:
        self.folder, self.path, self.dated = folder, folder / "app.log", dated
        self.written: list[bytes] = []
        self.rotated: list[Path] = []
        """Oldest first."""
        self.removed = False
        self._half = b""
        self._gzip: Path | None = None
        self._rotations = 0
        self.path.touch()

    def append(self, path: Path | None = None) -> None:
        with (path or self.path).open("ab") as file:
            if self._half:
                file.write(b" whole\n")
                self.written.append(self._half + b" whole")
                self._half = b""
            for _ in range(3):
                line = b"line %d" % len(self.written)
                file.write(line + b"\n")
                self.written.append(line)

    def half(self) -> None:
        if not self._half:
            self._half = b"half %d" % len(self.written)
            with self.path.open("ab") as file:
                file.write(self._half)

    def rename(self) -> None:
        os.replace(self.path, self._make_room())
        self.path.touch()

    def copy(self) -> None:
        shutil.copyfile(self.path, self._make_room())
        os.truncate(self.path, 0)

    def late(self) -> None:
        """It has not opened the new file yet."""
        if self.rotated and self.path.stat().st_size == 0 and self.rotated[-1].suffix != ".gz" and not self._gzip:
            inode = self.rotated[-1]
            self.append(inode)

    def gzip_begins(self) -> None:
        plain = [path for path in self.rotated if path.suffix != ".gz"]
        if plain and self._gzip is None:
            self._gzip = plain[0]
            whole = gzip.compress(self._gzip.read_bytes())
            Path(f"{self._gzip}.gz").write_bytes(whole[: len(whole) // 2])

    def compress(self) -> None:
        self.gzip_begins()
        if self._gzip is not None:
            packed = Path(f"{self._gzip}.gz")
            packed.write_bytes(gzip.compress(self._gzip.read_bytes()))
            self._gzip.unlink()
            self.rotated[self.rotated.index(self._gzip)] = packed
            self._gzip = None

    def remove(self, published: set[bytes]) -> None:
        """Remove the oldest file, as `rotate N` does; here only a published one."""
        if len(self.rotated) > 1 and self._gzip is None:
            content = self.rotated[0].read_bytes()
            lines = (gzip.decompress(content) if self.rotated[0].suffix == ".gz" else content).splitlines()
            if set(lines) <= published:
                self.rotated.pop(0).unlink()
                self.removed = True

    def _make_room(self) -> Path:
        if self._half:
            self.append()
        if self._gzip is not None:
            self.compress()
        self._rotations += 1
        if self.dated:
            new = self.folder / f"app.log-202601{self._rotations:02}"
        else:
            for number, path in enumerate(self.rotated):
                moved = path.with_name(f"app.log.{len(self.rotated) - number + 1}{'.gz' * (path.suffix == '.gz')}")
                os.replace(path, moved)
                self.rotated[number] = moved
            new = self.folder / "app.log.1"
        self.rotated.append(new)
        return new


class Killed(Exception):
    pass


class Followed(FileSet):
    """Follower whose waits are replaced by the next operation."""

    happens: Callable[[], bool]

    def _pause(self) -> None:
        if not self.happens():
            self.stop()


def follow(log: Log, operations: list[str], together: int, lag: int) -> tuple[dict[int, bytes], bool]:
    """Follow the log through these operations, so many of them between two looks.

    Returns what was published, and whether it ended with a refusal.
    """
    left = list(operations)
    published: dict[int, bytes] = {}
    acknowledged: list[int] = []

    def happens_next(*, is_alive: bool) -> None:
        name = left.pop(0) if left else "look"
        if name == "kill" and is_alive:
            raise Killed
        if name == "remove":
            log.remove(set(published.values()))
        elif name not in ("look", "kill"):
            getattr(log, name.replace(" ", "_"))()

    def happens() -> bool:
        if not left:
            return False
        for _ in range(together):
            happens_next(is_alive=True)
        return True

    stored: tuple[int, str] | None = None
    while True:
        source = Followed([log.folder], follow=True)
        source.happens = happens
        try:
            if stored:
                source.check(*stored)
            else:
                source.mark(-1)
            for record in source.read(stored[0] + 1 if stored else 0):
                assert published.setdefault(record.sequence, record.value or b"") == record.value
                if not acknowledged or record.sequence > acknowledged[-1]:
                    acknowledged.append(record.sequence)
        except SourceError:
            # All of it was published, but what was stored is not behind it: nobody can know that it was all.
            if not log.removed:
                raise
            return published, True
        except Killed:
            reached = [sequence for sequence in acknowledged if not stored or sequence > stored[0]]
            if len(reached) > lag:
                stored = reached[-1 - lag], source.mark(reached[-1 - lag])
                acknowledged = acknowledged[: acknowledged.index(stored[0]) + 1]
            for _ in range(3):  # while nobody looks
                happens_next(is_alive=False)
            continue
        return published, False


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    st.lists(st.sampled_from(OPERATIONS), max_size=24),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 2),
)
@example(["append", "look", "append", "rename", "append", "rename", "append"], False, 1, 0)
@example(["append", "kill", "rename", "append", "rename", "compress", "append"], False, 1, 1)
@example(["append", "look", "append", "copy", "append", "append"], True, 3, 0)
@example(["append", "kill", "append", "copy", "append", "append", "look"], False, 3, 0)
def test_what_is_published_is_what_was_written(operations: list[str], dated: bool, together: int, lag: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_set, "QUIET_S", 0.0)
        patched.setattr(file_set, "UNCLEAR_FOR_S", 1e9)
        log = Log(Path(folder), dated)
        published, is_refused = follow(log, [*operations, "append", "look", "look", "look"], together, lag)
    values = [published[sequence] for sequence in sorted(published)]
    assert values == log.written[: len(values) if is_refused else None]
