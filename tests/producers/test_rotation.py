"""A log that is rotated while it is followed: what is published is what was written, or it is refused."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_ratchet.errors import SourceError
from kafka_ratchet.producers import FileSet, Record, file_set
from kafka_ratchet.producers.file_mark import FORM, FileMark
from kafka_ratchet.producers.file_set import BYTE_BITS

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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_set, "QUIET_S", 0.0)
    monkeypatch.setattr(file_set, "UNCLEAR_FOR_S", 0.0)


def publish_through(
    path: Path, steps: list[Callable[[], None]], values: list[bytes | None], until: int | None = None
) -> None:
    """Follow a log or folder with one step at each look, and restart after step `until`; add what is published."""
    left, stored = list(steps), None
    for count in (len(steps),) if until is None else (until, len(steps) - until):
        source, ends = Followed([path], follow=True), len(left) - count

        def happens(ends: int = ends) -> bool:
            if len(left) <= ends:
                return False
            left.pop(0)()
            return True

        source.happens = happens
        source.check(*stored) if stored else source.mark(-1)
        for record in source.read(stored[0] + 1 if stored else 0):
            values.append(record.value)
            stored = record.sequence, source.mark(record.sequence)


def rotations(log: Path, names: list[str]) -> list[Callable[[], None]]:
    """Return the steps of a program that writes a line, then renames its log to each name in turn."""

    def rotate(number: int, name: str) -> None:
        os.replace(log, log.with_name(name))
        log.write_bytes(b"%d\n" % (number + 1))

    log.write_bytes(b"0\n")
    return [partial(rotate, number, name) for number, name in enumerate(names)]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("restart", [None, 10])
@pytest.mark.parametrize("form", ["app.log.2026-01-31.{}", "app-2026-01-31-{}.log"])
def test_the_tenth_rotated_file_of_a_day_comes_after_the_ninth(tmp_path: Path, form: str, restart: int | None) -> None:
    steps = rotations(tmp_path / "app.log", [form.format(number) for number in range(12)])
    published = list[bytes | None]()
    publish_through(tmp_path / "app.log", [*steps, lambda: None], published, restart)
    assert published == [b"%d" % number for number in range(13)]


@pytest.mark.usefixtures("impatient")
def test_a_clock_set_back_publishes_no_line_twice(tmp_path: Path) -> None:
    steps = rotations(tmp_path / "app.log", ["app.log-20261025-0250", "app.log-20261025-0210"])
    published = list[bytes | None]()
    with pytest.raises(SourceError, match=r"app\.log-20261025-0250 is already published, .* sorts after a newer file"):
        publish_through(tmp_path, [*steps, lambda: None], published)
    assert published == [b"0", b"1"]


@pytest.mark.usefixtures("impatient")
def test_a_published_file_under_a_later_name_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    source = FileSet([tmp_path], follow=True)
    (tmp_path / "app.log.1").write_bytes(b"a\n")
    log.write_bytes(b"b\n")
    reading = source.read(0)
    first = [next(reading) for _ in range(2)]
    assert [record.value for record in first] == [b"a", b"b"]
    mark = source.mark(first[1].sequence)
    (tmp_path / "app.log.1").rename(tmp_path / "keep-app.log.1")
    for publishing in (reading, resumed(tmp_path, first[1].sequence, mark)):
        with pytest.raises(SourceError, match=r"keep-app\.log\.1 is already published \(as app\.log\.1\)"):
            next(publishing)


@pytest.mark.usefixtures("impatient")
def test_a_removed_file_may_have_had_the_content_of_the_new_log(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"same\n")

    def rotate_and_remove(content: bytes) -> None:
        (tmp_path / "app.log.1").unlink(missing_ok=True)
        os.replace(log, tmp_path / "app.log.1")
        log.write_bytes(content)

    published = list[bytes | None]()
    contents = (b"other\n", b"same\n")
    publish_through(log, [*(partial(rotate_and_remove, each) for each in contents), lambda: None], published)
    assert published == [b"same", b"other", b"same"]


QUIET = b"id\n"
DAY_NS = 86_400 * 10**9


def write_day(path: Path, day: int, content: bytes) -> None:
    """Write a day's log; a file system may give it the inode of a removed one."""
    path.write_bytes(content)
    os.utime(path, ns=(day * DAY_NS, day * DAY_NS))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("restart", [None, 1, 2])
def test_a_quiet_day_is_not_taken_for_a_removed_one(tmp_path: Path, restart: int | None) -> None:
    """Two files are kept, and the program rotates twice while nobody looks."""
    log = tmp_path / "app.csv"
    write_day(log, 0, QUIET)

    def rotate(*days: tuple[int, bytes]) -> None:
        for day, content in days:
            (tmp_path / "app.csv.2").unlink(missing_ok=True)
            for name, older in (("app.csv.1", "app.csv.2"), ("app.csv", "app.csv.1")):
                if (tmp_path / name).exists():
                    os.replace(tmp_path / name, tmp_path / older)
            write_day(log, day, content)

    def rotate_twice() -> None:
        (tmp_path / "app.csv.1").unlink()
        rotate((2, QUIET), (3, QUIET + b"3\n"))

    published = list[bytes | None]()
    publish_through(log, [partial(rotate, (1, QUIET + b"1\n")), rotate_twice, lambda: None], published, restart)
    assert published == [b'{"id":"1"}', b'{"id":"3"}']


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("restart", [None, 1, 2])
def test_a_new_day_may_begin_as_a_removed_one(tmp_path: Path, restart: int | None) -> None:
    """Each day has a file of its own name, and a link leads to the current one."""
    link = tmp_path / "a.csv"

    def begin(day: int, content: bytes) -> None:
        (tmp_path / "a-20260101.csv").unlink(missing_ok=True)
        new = tmp_path / f"a-2026010{day}.csv"
        write_day(new, day, content)
        link.unlink(missing_ok=True)
        link.symlink_to(new.name)

    def write_on() -> None:
        with (tmp_path / "a-20260103.csv").open("ab") as file:
            file.write(b"3\n")

    begin(1, QUIET)
    second = tmp_path / "a-20260102.csv"
    steps: list[Callable[[], None]] = [
        partial(write_day, second, 2, QUIET + b"2\n"),
        partial(begin, 3, QUIET),
        write_on,
        lambda: None,
    ]
    published = list[bytes | None]()
    publish_through(tmp_path, steps, published, restart)
    assert published == [b'{"id":"2"}', b'{"id":"3"}']


def test_a_mark_of_an_earlier_version_refuses_no_file(tmp_path: Path) -> None:
    """It does not have the places of the finished files, and that version reads a mark with them."""
    write_day(tmp_path / "1.txt", 1, b"a\n")
    write_day(tmp_path / "2.txt", 2, b"b\n")
    source = FileSet([tmp_path])
    sequence = [record.sequence for record in source.read(0)][-1]
    now = FileMark.decode(source.mark(sequence))
    assert now is not None
    assert [each.place for each in now.before] == [found_place(tmp_path / "1.txt")]
    fields = json.loads(source.mark(sequence).removeprefix(FORM))
    assert [len(each) for each in fields["before"]] == [3]
    assert [offset >= now.end for offset, _ in fields["at"]] == [True]
    earlier = FileMark.decode(FORM + json.dumps(fields | {"at": []}))
    assert earlier == replace(now, before=tuple(replace(each, place=None) for each in now.before))


def found_place(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns


def resumed(path: Path, sequence: int, mark: str) -> Iterator[Record]:
    source = FileSet([path], follow=True)
    source.check(sequence, mark)
    yield from source.read(sequence + 1)


def rotate(log: Path, content: bytes, *, keep: int) -> None:
    """Rotate a log as logrotate does with `rotate keep`, and begin a new one."""
    names = [log, *(log.with_name(f"{log.name}.{number}") for number in range(1, keep + 1))]
    for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
        if newer.exists():
            os.replace(newer, older)
    log.write_bytes(content)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("keep", [2, 3])
def test_a_rotation_before_files_are_sent_again_does_not_renumber_them(tmp_path: Path, keep: int) -> None:
    log = tmp_path / "app.log"
    for content in (b"a\n", b"b\n", b"c\n"):
        if log.exists():
            rotate(log, content, keep=2)
        else:
            log.write_bytes(content)
    before = FileSet([log], follow=True)
    before.stop()
    last = list(before.read(0))[-1].sequence
    source = FileSet([log], follow=True)
    source.require_all_files(last, before.mark(last))
    rotate(log, b"d\n", keep=keep)
    source.stop()
    if keep == 2:
        with pytest.raises(SourceError, match=r"app\.log\.2 was published and is missing"):
            list(source.read(0))
    else:
        again = [(record.sequence >> BYTE_BITS, record.value) for record in source.read(0)]
        assert again == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


@pytest.mark.usefixtures("impatient")
def test_a_file_may_be_removed_before_its_records_are_acknowledged(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"a\n")
    source = FileSet([log], follow=True)
    source.mark(-1)
    reading = source.read(0)
    records = [next(reading)]
    for content in (b"b\n", b"c\n"):
        rotate(log, content, keep=1)
        records.append(next(reading))
    assert [record.value for record in records] == [b"a", b"b", b"c"]
    for record in (records[0], *records):
        made = FileMark.decode(source.mark(record.sequence))
        assert made is not None
        assert made.number == record.sequence >> BYTE_BITS
    rotate(log, b"d\n", keep=1)
    assert next(reading).value == b"d"
    assert source.size_bytes == 4


@pytest.mark.usefixtures("impatient")
def test_a_quiet_log_may_be_rotated_until_its_last_lines_are_removed(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"a\n")
    published = list[bytes | None]()
    steps = [partial(rotate, log, content, keep=3) for content in [b""] * 8 + [b"b\n"]]
    publish_through(log, [*steps, lambda: None], published)
    assert published == [b"a", b"b"]


def test_the_clock_of_a_file_server_ends_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, renamed = tmp_path / "app.log", tmp_path / "app.log.1"
    renamed.write_bytes(b"a\nhalf")
    os.utime(renamed, (0, 0))
    log.write_bytes(b"b\n")

    def write_on() -> None:
        with renamed.open("ab") as file:
            file.write(b" whole\n")
        monkeypatch.setattr(file_set, "QUIET_S", 0.0)

    monkeypatch.setattr(file_set, "QUIET_S", 1e9)
    published = list[bytes | None]()
    publish_through(log, [lambda: None, write_on, lambda: None], published)
    assert published == [b"a", b"half whole", b"b"]


@pytest.mark.usefixtures("impatient")
def test_a_log_may_be_renamed_between_listing_and_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"a\n")
    whole_list = FileSet._find_changes

    def list_then_rename(self: FileSet, number: int, stopped: bool) -> bool:
        listed = whole_list(self, number, stopped)
        if not log.with_name("app.log.1").exists():
            os.replace(log, log.with_name("app.log.1"))
        return listed

    monkeypatch.setattr(FileSet, "_find_changes", list_then_rename)
    monkeypatch.setattr(file_set, "UNCLEAR_FOR_S", 1e9)
    published = list[bytes | None]()
    publish_through(log, [partial(write_day, log, 1, b"b\n"), lambda: None], published)
    assert published == [b"a", b"b"]
