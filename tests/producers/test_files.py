import gzip
import re
from pathlib import Path

import pytest

from kafka_ratchet.errors import SourceError
from kafka_ratchet.producers import FileSet, FileSource
from kafka_ratchet.producers.file_mark import FIRST_CHECKPOINT_BYTES, FileMark
from tests.producers.written_files import Write, refused


def test_a_small_gzip_cut_off_can_still_be_marked(tmp_path: Path) -> None:
    path = tmp_path / "f.txt.gz"
    whole = gzip.compress(b"one\n" * 3)
    path.write_bytes(whole[:-4])
    source = FileSource(path)
    given, message = refused(source)
    assert "ends in the middle" in message
    source.mark(given[-1].sequence if given else -1)


def test_what_was_published_is_known_by_all_its_bytes(write: Write) -> None:
    lines = [b"line %d\n" % i for i in range(40_000)]
    content = b"".join(lines)
    source = FileSource(write("f.txt", content))
    assert source.mark(-1) == FileSource.NO_MARK
    reading = source.read(0)
    given = [next(reading).sequence for _ in range(30_000)]
    last, end = given[-1], given[-1] + len(lines[len(given) - 1])
    mark = source.mark(last)
    assert end > 3 * FIRST_CHECKPOINT_BYTES
    assert len(mark) < 2000
    for grown in (content, content + b"more\n", content[:end]):
        resumed = FileSource(write("f.txt", grown))
        assert resumed.check(last, mark) is None
        assert resumed.mark(last) == mark
        assert b"".join((record.value or b"") + b"\n" for record in resumed.read(last + 1)) == grown[end:]
        made, again = FileMark.decode(resumed.mark(last)), FileMark.decode(FileSource(resumed.path).mark(last))
        assert made
        assert again
        assert (made.end, made.digest) == (again.end, again.digest)
    for place in (0, 100, 5000, FIRST_CHECKPOINT_BYTES, end - 2, end - 1):
        changed = FileSource(write("f.txt", content[:place] + b"X" + content[place + 1 :]))
        with pytest.raises(
            SourceError, match=r"has changed between byte \d+ and byte \d+\. .*another producer"
        ) as failure:
            changed.check(last, mark)
        found = re.search(r"between byte (\d+) and byte (\d+)", str(failure.value))
        assert found
        assert int(found[1]) <= place < int(found[2])
        assert int(found[2]) - int(found[1]) < 2 * FIRST_CHECKPOINT_BYTES
    with pytest.raises(SourceError, match=f"ends at byte {end - 1}, before byte {end}: it is shorter than it was"):
        FileSource(write("f.txt", content[: end - 1])).check(last, mark)
    behind = FileSource(write("f.txt", content[:end] + b"X" + content[end + 1 :]))
    assert behind.check(last, mark) is None


def test_each_records_digest_is_there_until_a_later_one_is_asked_for(write: Write) -> None:
    content = b"".join(b"%d\n" % (i * i) for i in range(500))
    path = write("f.txt", content)
    source = FileSource(path)
    source.mark(-1)
    sequences = [record.sequence for record in source.read(0)]
    for sequence in sequences[::7]:
        assert source.mark(sequence) == FileSource(path).mark(sequence)
        assert FileSource(path).check(sequence, source.mark(sequence)) is None


def test_a_file_may_be_compressed_afterwards(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_bytes(b"one\ntwo\n")
    mark = FileSource(tmp_path / "f.txt").mark(0)
    (tmp_path / "f.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    source = FileSource(tmp_path / "f.txt.gz")
    assert source.check(0, mark) is None
    assert [record.value for record in source.read(1)] == [b"two"]


def test_a_line_without_an_end_must_not_be_added_to(write: Write) -> None:
    mark = FileSource(write("f.txt", b"one\ntwo")).mark(4)
    for good in (b"one\ntwo", b"one\ntwo\n", b"one\ntwo\r\nthree", b"one\ntwo\nthree"):
        FileSource(write("f.txt", good)).check(4, mark)
    with pytest.raises(SourceError, match="has a longer line at byte 4 than when it was published"):
        FileSource(write("f.txt", b"one\ntwo and\n")).check(4, mark)


def test_a_name_that_went_on_without_the_file_is_refused(write: Write) -> None:
    source = FileSource(write("f.txt", b"one\ntwo\n"))
    with pytest.raises(
        SourceError, match="byte 0; since then another source has used the same producer name, up to sequence 4"
    ):
        source.check(4, source.mark(0))


def test_another_key_or_format_is_another_source(write: Write) -> None:
    path = write("f.ndjson", b'{"a":1,"b":2}\n')
    mark = FileSource(path, key="a").mark(0)
    for other in (FileSource(path, key="b"), FileSource(path), FileSource(path, format="lines")):
        with pytest.raises(SourceError, match="with another --format or --key"):
            other.check(0, mark)
    with pytest.raises(SourceError, match="with other sequences"):
        FileSource(path, sequence_field="a").check(0, mark)


def test_a_mark_of_another_form_is_refused(write: Write) -> None:
    source = FileSource(write("f.txt", b"one\ntwo\n"))
    for mark in ("", "none", "file2:{}", "file:[]", "sha256:00:4096"):
        with pytest.raises(SourceError, match="has a stored position that this version cannot read"):
            source.check(4, mark)
        with pytest.raises(SourceError, match="has a stored position that this version cannot read"):
            FileSet([source.path, source.path]).check(4, mark)


def test_a_file_shorter_than_what_was_published(write: Write) -> None:
    source = FileSource(write("f.txt", b"one\ntwo\n"))
    with pytest.raises(SourceError, match="another producer name"):
        source.mark(5000)
    with pytest.raises(SourceError, match="another producer name"):
        list(source.read(5000))


def test_a_file_that_is_gone_is_named_without_a_line(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(b"one\ntwo\n")
    source = FileSource(path)
    records = source.read(0)
    next(records)
    path.unlink()
    with pytest.raises(SourceError, match=r"f\.txt: byte 0: cannot be read: .*No such file"):
        list(source.read(4))
    assert source.origin() == f"{path}: before byte 4"
