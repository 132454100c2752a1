import gzip
import hashlib
import re
from pathlib import Path

import cramjam
import pytest

from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.producers import FileSource, Record
from kafka_ratchet.producers.file_mark import FIRST_CHECKPOINT_BYTES, FileMark

LINES = [b'{"id":"a"}', b'{"id":2}', b'{"id":true}', b'{"id":1.50}', '{"id":"é","x":[1]}'.encode()]


def zstd(content: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(content))


WAYS = {"plain": ("", bytes), "gzip": (".gz", gzip.compress), "zstd": (".zst", zstd)}


@pytest.fixture(params=WAYS)
def write(request: pytest.FixtureRequest, tmp_path: Path):
    suffix, compressed = WAYS[request.param]

    def to(name: str, content: bytes) -> Path:
        path = tmp_path / (name + suffix)
        path.write_bytes(compressed(content))
        return path

    return to


def refused(source: FileSource) -> tuple[list[Record], str]:
    given: list[Record] = []
    with pytest.raises(SourceError) as failure:
        given.extend(source.read(0))
    return given, str(failure.value)


def test_sequence_is_the_byte_offset_and_the_key_the_fields_text(write) -> None:
    content = b"\n".join(LINES)
    records = list(FileSource(write("f.ndjson", content), key="id").read(0))
    assert [record.value for record in records] == LINES
    assert [content[record.sequence :][: len(record.value)] for record in records] == LINES
    assert [record.key for record in records] == [b"a", b"2", b"true", b"1.50", "é".encode()]


def test_reading_from_any_byte_gives_the_lines_that_begin_there_or_later(write) -> None:
    content = b"one\n\nthree\r\nfour"
    source = FileSource(write("f.txt", content))
    everything = list(source.read(0))
    assert everything == [
        Record(0, None, b"one"),
        Record(4, None, b""),
        Record(5, None, b"three"),
        Record(12, None, b"four"),
    ]
    for start in range(len(content) + 1):
        assert list(source.read(start)) == [record for record in everything if record.sequence >= start]


def test_white_space_between_json_lines_is_no_record(write) -> None:
    records = list(FileSource(write("f.jsonl", b'{"a":1}\r\n \n\n{"a":2}\n\n')).read(0))
    assert [(record.sequence, record.value) for record in records] == [(0, b'{"a":1}'), (12, b'{"a":2}')]


def test_half_a_character_is_valid_json_and_passes_untouched(write) -> None:
    lines = [rb'{"text":"cut \ud83d","id":1.50}', rb'{"text":"whole \ud83d\ude00 \\ud83d","id":"\udc00"}']
    records = list(FileSource(write("f.ndjson", b"\n".join(lines)), key="id").read(0))
    assert [record.value for record in records] == lines
    assert [record.key for record in records] == [b"1.50", "\ufffd".encode()]


def test_empty_file_has_no_records(write) -> None:
    assert list(FileSource(write("f.ndjson", b"")).read(0)) == []


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(gzip.compress(b'{"a":1}\n'))
    assert [record.value for record in FileSource(path).read(0)] == [b'{"a":1}']


def test_several_gzip_members_are_one_stream(tmp_path: Path) -> None:
    path = tmp_path / "f.txt.gz"
    path.write_bytes(gzip.compress(b"a\nb") + gzip.compress(b"c\nd"))
    assert [record.value for record in FileSource(path).read(0)] == [b"a", b"bc", b"d"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"\xff\xfe{}", "not UTF-8: invalid start byte at its byte 0"),
        (b'{"id":', "not JSON: "),
        (b'{"id":NaN}', "not JSON: "),
        (b'{"other":1}', "has no field 'id', which is to be the record's key. It has: other"),
        (b'{"id":null}', "field 'id' is null"),
        (b'{"id":{}}', "field 'id' is an object"),
        (b'{"id":[1]}', "field 'id' is an array"),
        (b"[1,2]", "is no JSON object"),
        (b'{"id":' + b"[" * 100_000, "not JSON: "),
        (b'{"id":"\\ud83d', "not JSON: "),
    ],
)
def test_a_bad_line_is_named_after_everything_before_it_was_given(write, bad: bytes, says: str) -> None:
    path = write("f.ndjson", b'{"id":1}\n' + bad + b'\n{"id":3}\n')
    given, message = refused(FileSource(path, key="id"))
    assert [record.value for record in given] == [b'{"id":1}']
    assert f"{path}: line 2 (byte 9): " in message
    assert says in message


def test_lines_must_be_utf8_too(write) -> None:
    given, message = refused(FileSource(write("f.txt", b"fine\n\xe9t\xe9\n")))
    assert len(given) == 1
    assert "line 2 (byte 5): not UTF-8" in message


def test_gzip_cut_off_gives_the_whole_lines_before(tmp_path: Path) -> None:
    content = b"".join(b'{"id":%d,"noise":"%d"}\n' % (i, i * i * 7919) for i in range(20_000))
    path = tmp_path / "f.ndjson.gz"
    path.write_bytes(gzip.compress(content)[:-20_000])
    given, message = refused(FileSource(path))
    assert given
    assert content.startswith(b"\n".join(record.value for record in given) + b"\n")
    named = re.search(r"line (\d+) \(byte (\d+)\): the gzip stream ends in the middle", message)
    assert named
    assert int(named[1]) == len(given) + 1
    assert int(named[2]) == given[-1].sequence + len(given[-1].value) + 1


def test_a_small_gzip_cut_off_can_still_be_marked(tmp_path: Path) -> None:
    path = tmp_path / "f.txt.gz"
    whole = gzip.compress(b"one\n" * 3)
    path.write_bytes(whole[:-4])
    source = FileSource(path)
    given, message = refused(source)
    assert "ends in the middle" in message
    source.mark(given[-1].sequence if given else -1)


def test_not_gzip_at_all(tmp_path: Path) -> None:
    path = tmp_path / "f.ndjson.gz"
    path.write_bytes(b'{"id":1}\n')
    assert "line 1 (byte 0): the gzip stream is damaged" in refused(FileSource(path))[1]


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "f.txt.gz"
    data = bytearray(gzip.compress(b"".join(b"%d\n" % (i * 7919) for i in range(50_000))))
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    path.write_bytes(data)
    assert "the gzip stream is damaged" in refused(FileSource(path))[1]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such file"):
        FileSource(tmp_path / "none")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is a folder"):
        FileSource(tmp_path)


def test_what_cannot_be_read_again() -> None:
    with pytest.raises(SourceError, match="cannot be read again"):
        FileSource(Path("/dev/null"))


def test_a_key_needs_json(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(b"a\n")
    with pytest.raises(SettingsError, match="--format ndjson"):
        FileSource(path, key="id")


def test_what_was_published_is_known_by_all_its_bytes(write) -> None:
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


def test_each_records_digest_is_there_until_a_later_one_is_asked_for(write) -> None:
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


def test_a_line_without_an_end_must_not_be_added_to(write) -> None:
    mark = FileSource(write("f.txt", b"one\ntwo")).mark(4)
    for good in (b"one\ntwo", b"one\ntwo\n", b"one\ntwo\r\nthree", b"one\ntwo\nthree"):
        FileSource(write("f.txt", good)).check(4, mark)
    with pytest.raises(SourceError, match="has more in the line at byte 4 than when that was published"):
        FileSource(write("f.txt", b"one\ntwo and\n")).check(4, mark)


def test_a_name_that_went_on_without_the_file_is_refused(write) -> None:
    source = FileSource(write("f.txt", b"one\ntwo\n"))
    with pytest.raises(SourceError, match="was left at byte 0, and the name went on to 4 without it"):
        source.check(4, source.mark(0))


def test_another_key_or_format_is_another_source(write) -> None:
    path = write("f.ndjson", b'{"a":1,"b":2}\n')
    mark = FileSource(path, key="a").mark(0)
    for other in (FileSource(path, key="b"), FileSource(path), FileSource(path, format="lines")):
        with pytest.raises(SourceError, match="with another --format or --key"):
            other.check(0, mark)
    with pytest.raises(SourceError, match="with other sequences"):
        FileSource(path, sequence_field="a").check(0, mark)


def test_a_mark_of_an_earlier_version_is_taken_and_replaced(write) -> None:
    content = b"".join(b"line %d\n" % i for i in range(2000))
    sequence = content.index(b"line 1500\n")
    old = f"sha256:{hashlib.sha256(content[:4096]).hexdigest()}:4096"
    source = FileSource(write("f.txt", content))
    said = source.check(sequence, old)
    assert said
    assert "known by its first 4,096 bytes only, from an earlier version" in said
    assert FileMark.decode(source.mark(sequence))
    assert next(source.read(sequence + 1)).value == b"line 1501"
    with pytest.raises(SourceError, match="has changed since it was published"):
        FileSource(write("f.txt", b"L" + content[1:])).check(sequence, old)
    with pytest.raises(SourceError, match="another producer name"):
        FileSource(write("f.txt", content[:5000])).check(sequence, old)


def test_a_file_shorter_than_what_was_published(write) -> None:
    source = FileSource(write("f.txt", b"one\ntwo\n"))
    with pytest.raises(SourceError, match="another producer name"):
        source.mark(5000)
    with pytest.raises(SourceError, match="another producer name"):
        list(source.read(5000))
