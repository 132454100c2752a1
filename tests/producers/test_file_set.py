from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.producers import FileSet, FileSource, Record, file_set, records_of
from kafka_ratchet.producers.beginning import ProgressCheck
from kafka_ratchet.producers.file_set import BYTE_BITS
from kafka_ratchet.producers.folder import list_folder
from kafka_ratchet.producers.progress import Progress
from kafka_ratchet.producers.topics import TopicShape


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("b.txt", "a.txt", "c.txt")]
    for path, content in zip(made, (b"one\ntwo\n", b"", b"three"), strict=True):
        path.write_bytes(content)
    return made


def test_the_sequence_is_file_and_byte_and_reading_goes_on_anywhere(paths: list[Path]) -> None:
    everything = list(FileSet(paths).read(0))
    third = 2 << BYTE_BITS
    assert everything == [Record(0, None, b"one"), Record(4, None, b"two"), Record(third, None, b"three")]
    for record in everything:
        behind = [other for other in everything if other.sequence > record.sequence]
        assert list(FileSet(paths).read(record.sequence + 1)) == behind


def test_files_are_appended_and_nothing_else(paths: list[Path], tmp_path: Path) -> None:
    third = 2 << BYTE_BITS
    mark = FileSet(paths).mark(third)
    more = tmp_path / "d.txt"
    more.write_bytes(b"four\n")

    def refused(files: list[Path], says: str) -> None:
        with pytest.raises(SourceError, match=says):
            FileSet(files).check(third, mark)

    grown = FileSet([*paths, more])
    assert grown.check(third, mark) is None
    assert grown.mark(third) == mark
    assert [record.value for record in grown.read(third + 1)] == [b"four"]
    refused([paths[1], paths[0], paths[2]], r"a\.txt is new, and its name sorts before a known one \(b\.txt\)")
    refused([paths[0], more, paths[2]], "another producer name")
    refused(paths[:2], r"3 files have been published under this producer name, and there are 2\. Put back")
    paths[0].write_bytes(b"one\ntwo\nmore\n")  # finished long ago: nobody would ever read this
    refused(paths, r"b\.txt has changed since it was read to its end")
    paths[0].write_bytes(b"one\ntwX\n")
    refused(paths, r"b\.txt has changed since it was read to its end: its bytes 0 to 8")
    paths[0].write_bytes(b"one\ntwo\n")
    assert FileSet(paths).check(third, mark) is None
    paths[2].write_bytes(b"th")
    refused(paths, "shorter than it was")
    paths[2].write_bytes(b"thref")
    refused(paths, r"c\.txt: has changed between byte 0 and byte 5")


def test_more_files_than_a_mark_names_are_known_by_one_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_set, "BEFORE", 3)
    for number in range(8):
        (tmp_path / f"{number}.txt").write_bytes(b"%d\n" % number)
    source = FileSet([tmp_path])
    source.mark(-1)
    sequences = [record.sequence for record in source.read(0)]
    mark = source.mark(sequences[-2])
    again = FileSet([tmp_path])
    assert again.check(sequences[-2], mark) is None
    assert [record.value for record in again.read(sequences[-2] + 1)] == [b"7"]
    assert again.mark(sequences[-1]) == source.mark(sequences[-1])
    (tmp_path / "1.txt").write_bytes(b"X\n")
    with pytest.raises(SourceError, match="one of the first 3 files has changed or is missing"):
        FileSet([tmp_path]).check(sequences[-2], mark)


def test_one_file_can_become_the_first_of_several(paths: list[Path]) -> None:
    for sequence in (-1, 0, 4):
        assert FileSet(paths).mark(sequence) == FileSource(paths[0]).mark(sequence)


def test_a_folder_is_its_files_in_the_order_of_their_names(paths: list[Path], tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_bytes(b"no\n")
    (tmp_path / "folder").mkdir()
    assert [record.value for record in FileSet([tmp_path]).read(0)] == [b"one", b"two", b"three"]


def test_what_cannot_be_a_set(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no files"):
        FileSet([tmp_path])
    with pytest.raises(SourceError, match="there is no such file"):
        FileSet([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(SettingsError, match="--follow takes a single folder or a single log"):
        FileSet([tmp_path / "a", tmp_path / "b"], follow=True)


def given(reading: Iterator[Record], count: int) -> list[bytes | None]:
    return [next(reading).value for _ in range(count)]


def test_a_folder_that_grows(tmp_path: Path) -> None:
    source = FileSet([tmp_path], follow=True)
    assert source.mark(-1) == FileSource.NO_MARK
    first = tmp_path / "1.csv"
    first.write_bytes(b'id,text\na,"x\n')
    reading = source.read(0)
    with first.open("ab") as file:
        file.write(b'y"\nb,z\nc')
    assert given(reading, 2) == [b'{"id":"a","text":"x\\ny"}', b'{"id":"b","text":"z"}']
    with first.open("ab") as file:
        file.write(b",w")
    (tmp_path / "2.csv").write_bytes(b"id\nd\ne")
    assert given(reading, 2) == [b'{"id":"c","text":"w"}', b'{"id":"d"}']
    source.stop()
    assert list(reading) == []  # the last line has no end yet
    assert FileSet([tmp_path]).check(1 << BYTE_BITS | 3, source.mark(1 << BYTE_BITS | 3)) is None


def test_a_folder_that_changes_while_it_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_set, "UNCLEAR_FOR_S", 0.0)
    (tmp_path / "b.txt").write_bytes(b"one\n")
    source = FileSet([tmp_path], follow=True)
    reading = source.read(0)
    assert given(reading, 1) == [b"one"]
    (tmp_path / "a.txt").write_bytes(b"late\n")
    with pytest.raises(SourceError, match=r"a\.txt is new, and its name sorts before a known one"):
        next(reading)
    (tmp_path / "a.txt").unlink()
    reading = FileSet([tmp_path], follow=True).read(0)
    assert given(reading, 1) == [b"one"]
    (tmp_path / "b.txt").unlink()
    (tmp_path / "c.txt").write_bytes(b"next\n")
    with pytest.raises(SourceError, match=r"the 4 bytes read of b\.txt are not the beginning of c\.txt"):
        next(reading)


def test_a_bad_row_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_bytes(b'id,text\n1,nail\n2,5" pipe\n')
    source = FileSet([tmp_path], follow=True)
    read: list[bytes | None] = []
    with pytest.raises(SourceError, match=r"1\.csv: line 3 \(byte 15\): not CSV"):
        read.extend(record.value for record in source.read(0))
    assert read == [b'{"id":"1","text":"nail"}']


def test_records_of_files_are_what_is_published(paths: list[Path]) -> None:
    assert list(records_of(paths)) == list(FileSet(paths).read(0))
    assert list(records_of(paths[:1])) == list(FileSource(paths[0]).read(0))


def test_names_that_rotation_gives(tmp_path: Path) -> None:
    def ordered(*names: str) -> list[str]:
        for path in tmp_path.iterdir():
            path.unlink()
        for name in names:
            (tmp_path / name).touch()
        return [file.path.name for file in list_folder(tmp_path)]

    assert ordered("app.log", "app.log.1", "app.log.10.gz", "app.log.2.gz") == [
        "app.log.10.gz",
        "app.log.2.gz",
        "app.log.1",
        "app.log",
    ]
    assert ordered("app.log", "app-20260102.log", "app-20260101.log.gz", "app-20260101.log") == [
        "app-20260101.log",
        "app-20260102.log",
        "app.log",
    ]
    assert ordered("app.log", "app.log-20260102-17", "app.log-20260101.gz", "web.log") == [
        "app.log-20260101.gz",
        "app.log-20260102-17",
        "app.log",
        "web.log",
    ]
    assert ordered("2026-01-02.log", "2026-01-01.log", "a.csv", "a-b.csv", "b.gz") == [
        "2026-01-01.log",
        "2026-01-02.log",
        "a-b.csv",
        "a.csv",
        "b.gz",
    ]
    with pytest.raises(SourceError, match=r"the order of app\.log-01022026, app\.log-02012026 is ambiguous"):
        ordered("app.log", "app.log-01022026", "app.log-02012026")


def test_one_log_of_several_is_followed_by_its_name(tmp_path: Path) -> None:
    for name, content in (("app.log", b"new\n"), ("app.log.1", b"old\n"), ("web.log", b"other\n")):
        (tmp_path / name).write_bytes(content)
    source = FileSet([tmp_path / "app.log"], follow=True)
    reading = source.read(0)
    assert given(reading, 1) == [b"old"]
    source.stop()
    assert [record.value for record in reading] == [b"new"]


def test_what_cannot_be_followed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_set, "UNCLEAR_FOR_S", 0.0)
    log = tmp_path / "app.log"

    def after(*changes: tuple[str, bytes]) -> str:
        for path in tmp_path.iterdir():
            path.unlink()
        log.write_bytes(b"1\n2\n3\n")
        reading = FileSet([tmp_path], follow=True).read(0)
        assert given(reading, 3) == [b"1", b"2", b"3"]
        for name, content in changes:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(SourceError) as refused:
            list(reading)
        return str(refused.value)

    assert "the 6 bytes read of app.log are not the beginning of app.log" in after(("app.log", b"4\n"))
    assert "bytes read of app.log are not the beginning of app.log" in after(("app.log", b"4\n5\n6\n7\n"))
    assert "both begin with the 6 bytes already read from app.log" in after(("app.log.1", b"1\n2\n3\n"))
    assert "app.log.1 is new, and its name sorts before a known one" in after(("app.log.1", b"unheard of\n"))


def test_a_log_that_grows_after_it_was_read_to_its_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_set, "UNCLEAR_FOR_S", 0.0)
    (tmp_path / "a.log").write_bytes(b"1\n")
    (tmp_path / "b.log").write_bytes(b"2\n")
    reading = FileSet([tmp_path], follow=True).read(0)
    assert given(reading, 2) == [b"1", b"2"]
    (tmp_path / "a.log").write_bytes(b"1\n3\n")
    with pytest.raises(SourceError, match=r"a\.log has changed since it was read .*ratchet publish --follow FILE"):
        next(reading)


def test_a_table_that_is_begun_anew_names_its_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_set, "QUIET_S", 0.0)
    (tmp_path / "t.csv.1").write_bytes(b"a,b\n1,2\n")
    (tmp_path / "t.csv").write_bytes(b"3,4\n5,6\n")
    reading = FileSet([tmp_path], follow=True, format="csv").read(0)
    assert given(reading, 1) == [b'{"a":"1","b":"2"}']
    with pytest.raises(SourceError, match=r"t\.csv: line 1: does not name the columns of t\.csv\.1"):
        next(reading)


def test_a_table_without_column_names_is_refused_at_its_second_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its only row is taken for the names, and the next row is written after a look."""
    monkeypatch.setattr(file_set, "QUIET_S", 0.0)
    log = tmp_path / "app.csv"
    log.write_bytes(b"id,town\n1,ulm\n")
    source = FileSet([log], follow=True)
    writes = [b"2,bonn\n", b"3,koeln\n"]

    def write() -> None:
        if len(writes) == 2:
            log.rename(tmp_path / "app.csv.1")
        if writes:
            with log.open("ab") as file:
                file.write(writes.pop(0))
        else:
            source.stop()

    monkeypatch.setattr(source, "_pause", write)
    reading = source.read(0)
    assert given(reading, 1) == [b'{"id":"1","town":"ulm"}']
    with pytest.raises(SourceError, match=r"app\.csv: line 1: does not name the columns of app\.csv\.1"):
        list(reading)


@pytest.mark.parametrize("rotated", ["orders.csv.1", "orders.csv-20260131", "orders-20260131.csv"])
def test_a_rotated_file_has_the_format_of_its_log(tmp_path: Path, rotated: str) -> None:
    log = tmp_path / "orders.csv"
    log.write_bytes(b"id,amount\n1,5\n2,6\n")
    before = FileSet([log], follow=True, key="id")
    before.stop()
    first = next(before.read(0))
    mark = before.mark(first.sequence)
    log.rename(tmp_path / rotated)
    log.write_bytes(b"id,amount\n3,7\n")
    resumed = FileSet([log], follow=True, key="id")
    resumed.stop()
    assert resumed.check(first.sequence, mark) is None
    assert [record.key for record in resumed.read(first.sequence + 1)] == [b"2", b"3"]
    new = FileSet([log], follow=True)
    new.stop()
    assert [record.value for record in new.read(0)] == [
        b'{"id":"1","amount":"5"}',
        b'{"id":"2","amount":"6"}',
        b'{"id":"3","amount":"7"}',
    ]


def test_a_log_without_its_oldest_files_cannot_be_sent_again(tmp_path: Path) -> None:
    log, oldest = tmp_path / "app.log", tmp_path / "app.log.2"
    for path, line in ((oldest, b"a\n"), (tmp_path / "app.log.1", b"b\n"), (log, b"c\n")):
        path.write_bytes(line)
    before = FileSet([log], follow=True)
    before.stop()
    last = list(before.read(0))[-1].sequence
    mark = before.mark(last)
    assert last == 2 << BYTE_BITS
    decide = ProgressCheck("events", "app", "session", FileSet([log]), "resend")
    stored = Progress(last, 3, 1, "A" * 22, mark, last, "former", None)
    shape = TopicShape("events", "B" * 22, 1)

    def resend() -> Progress:
        source = FileSet([log], follow=True)
        source.stop()
        return replace(decide, source=source).after(stored, shape)[0]

    assert resend().sequence == -1
    oldest.unlink()
    with pytest.raises(SourceError, match=r"1 of the files published .* are missing \(app\.log\.2\)"):
        resend()


@pytest.mark.parametrize("name", ["app.log", "latest"])
@pytest.mark.parametrize("follow", [False, True])
def test_a_file_and_a_link_to_it_are_one_file(tmp_path: Path, name: str, follow: bool) -> None:
    today, link = tmp_path / "app-20260131.log", tmp_path / name
    today.write_bytes(b"1\n2\n")
    link.symlink_to(today.name)

    def published(sequence: int = -1, mark: str = "") -> tuple[list[bytes | None], tuple[int, str]]:
        source = FileSet([tmp_path], follow=follow)
        source.check(sequence, mark) if sequence >= 0 else source.mark(-1)
        source.stop()
        records = list(source.read(sequence + 1))
        last = records[-1].sequence
        return [record.value for record in records], (last, source.mark(last))

    values, stored = published()
    assert values == [b"1", b"2"]
    with today.open("ab") as file:
        file.write(b"3\n")
    values, stored = published(*stored)
    assert values == [b"3"]
    link.unlink()
    tomorrow = tmp_path / "app-20260201.log"
    tomorrow.write_bytes(b"4\n")
    link.symlink_to(tomorrow.name)
    assert published(*stored)[0] == [b"4"]


def test_a_file_with_two_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_set, "UNCLEAR_FOR_S", 0.0)
    today, link = tmp_path / "app-20260131.log", tmp_path / "app.log"
    today.write_bytes(b"1\n")
    reading = FileSet([tmp_path], follow=True).read(0)
    assert given(reading, 1) == [b"1"]
    link.hardlink_to(today)
    refusal = r"app-20260131\.log, app\.log are one file under two names.*Remove all but one"
    with pytest.raises(SourceError, match=refusal):
        next(reading)
    with pytest.raises(SourceError, match=refusal):
        FileSet([tmp_path])
    with pytest.raises(SourceError, match=refusal):
        FileSet([today, link])
    link.unlink()
    link.symlink_to(today)
    with pytest.raises(SourceError, match=r"Remove all but one of the names$"):
        FileSet([today, link])


def regrown(log: Path, size: int) -> list[bytes]:
    """Truncate a log, write it longer than `size` bytes, and return its lines."""
    log.write_bytes(b"")
    lines = [b"a new line, longer than each old one, number %d" % number for number in range(size // 40)]
    log.write_bytes(b"".join(line + b"\n" for line in lines))
    assert log.stat().st_size > size
    return lines


def test_a_log_truncated_while_a_record_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_set, "QUIET_S", 0.0)
    monkeypatch.setattr(file_set, "UNCLEAR_FOR_S", 0.0)
    log = tmp_path / "app.log"
    old = [b"an old line, number %d" % number for number in range(20_000)]

    def begin() -> tuple[FileSet, Iterator[Record], list[bytes | None]]:
        log.write_bytes(b"".join(line + b"\n" for line in old))
        source = FileSet([log], follow=True)
        reading = source.read(0)
        return source, reading, given(reading, 100)

    source, reading, values = begin()
    new = regrown(log, log.stat().st_size)
    with pytest.raises(SourceError, match=r"bytes read of app\.log are not the beginning of app\.log"):
        values += (record.value for record in reading)
    assert values == old[: len(values)]

    source, reading, values = begin()
    (tmp_path / "app.log.1").write_bytes(log.read_bytes())
    new = regrown(log, log.stat().st_size)
    values += given(reading, len(old) + len(new) - 100)
    source.stop()
    values += (record.value for record in reading)
    assert values == old + new


def test_a_file_rewritten_while_it_is_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    old = [b"an old line, number %d" % number for number in range(20_000)]
    other = file.with_name("b.txt")
    for path in (file, other):
        path.touch()
    for source in (FileSource(file), FileSet([file, other])):
        file.write_bytes(b"".join(line + b"\n" for line in old))
        reading = source.read(0)
        values = given(reading, 100)
        regrown(file, file.stat().st_size)
        with pytest.raises(SourceError, match=r"a\.txt: has changed before byte \d+ while it was read"):
            values += (record.value for record in reading)
        assert values == old[: len(values)]
    blocks = FileSource(file).read_blocks(0, 50_000)
    first = next(blocks)[1]
    file.write_bytes(b"x" * 50 + b"\n" + first * 20)
    with pytest.raises(SourceError, match=r"a\.txt: has changed before byte \d+ while it was read"):
        list(blocks)


def test_after_a_long_wait_the_files_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_set, "QUIET_S", 0.0)
    log = tmp_path / "app.log"
    log.write_bytes(b"first\n" + b"same\n" * 4000)
    source = FileSet([log], follow=True)
    reading = source.read(0)
    values = given(reading, 100)
    (tmp_path / "app.log.1").write_bytes(log.read_bytes())
    log.write_bytes(b"other\n" + b"same\n" * 6000)  # the bytes before the next ones to read look unchanged
    with monkeypatch.context() as patched:
        patched.setattr(file_set, "LOOK_EVERY_S", -1.0)
        values += given(reading, 1)
    values += given(reading, 9901)
    source.stop()
    assert values == [b"first", *[b"same"] * 4000, b"other", *[b"same"] * 6000]
    assert list(reading) == []


def test_a_bad_row_is_refused_in_a_later_pass_too(tmp_path: Path) -> None:
    log = tmp_path / "1.csv"
    log.write_bytes(b"id,text\n1,nail\n")
    reading = FileSet([tmp_path], follow=True).read(0)
    assert given(reading, 1) == [b'{"id":"1","text":"nail"}']
    with log.open("ab") as file:
        file.write(b"2,hammer\n3\n")
    assert given(reading, 1) == [b'{"id":"2","text":"hammer"}']
    with pytest.raises(SourceError, match=r"1\.csv: line 4 .*has 1 fields"):
        next(reading)


@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
def test_a_last_line_ends_the_reading(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"id\n1")
    source = FileSource(file)
    source.mark(-1)
    records = list[Record]()
    for record in source.read(0):
        records.append(record)
        if record.sequence == 3:
            with file.open("ab") as raw:
                raw.write(b"23\n4\n")
    assert records[-1].sequence == 3
    with pytest.raises(SourceError, match="has a longer line at byte 3"):
        FileSource(file).check(3, source.mark(3))
