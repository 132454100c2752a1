from collections.abc import Iterator
from pathlib import Path

import pytest

from errors import SettingsError, SourceError
from producers import FileSet, FileSource, Record, records_of
from producers._file_set import BYTE_BITS


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
    third = 2 << BYTE_BITS | 3
    mark = FileSet(paths).mark(third)
    more = tmp_path / "d.txt"
    more.write_bytes(b"four\n")
    assert FileSet([*paths, more]).mark(third) == mark
    assert FileSet([paths[1], paths[0], paths[2]]).mark(third) != mark
    assert FileSet([paths[0], more, paths[2]]).mark(third) != mark
    with pytest.raises(SourceError, match=r"3 files have been published from, and there are 2\. Put back"):
        FileSet(paths[:2]).mark(third)
    paths[0].write_bytes(b"one\ntwo\nmore\n")  # finished long ago: nobody would ever read this
    assert FileSet(paths).mark(third) != mark
    paths[0].write_bytes(b"one\ntwo\n")
    assert FileSet(paths).mark(third) == mark
    paths[2].write_bytes(b"th")
    with pytest.raises(SourceError, match="shorter than it was"):
        FileSet(paths).mark(third)


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
    with pytest.raises(SettingsError, match="only a folder can be followed"):
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
    assert source.mark(1 << BYTE_BITS | 3) == FileSet([tmp_path]).mark(1 << BYTE_BITS | 3)


def test_a_folder_that_changes_while_it_is_followed(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"one\n")
    source = FileSet([tmp_path], follow=True)
    reading = source.read(0)
    assert given(reading, 1) == [b"one"]
    (tmp_path / "a.txt").write_bytes(b"late\n")
    with pytest.raises(SourceError, match=r"a\.txt has come, and its name stands before one that is known"):
        next(reading)
    (tmp_path / "a.txt").unlink()
    (tmp_path / "b.txt").unlink()
    with pytest.raises(SourceError, match=r"b\.txt is gone: .* Put back what is missing"):
        next(source.read(0))


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
