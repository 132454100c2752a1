"""Lines and JSON lines, plain and compressed, read from any byte on."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.producers import FileSource, Record
from tests.producers.written_files import LINES, Write, refused


def test_sequence_is_the_byte_offset_and_the_key_the_fields_text(write: Write) -> None:
    content = b"\n".join(LINES)
    records = list(FileSource(write("f.ndjson", content), key="id").read(0))
    assert [record.value for record in records] == LINES
    assert [content[record.sequence :][: len(line)] for record, line in zip(records, LINES, strict=True)] == LINES
    assert [record.key for record in records] == [b"a", b"2", b"true", b"1.50", "é".encode()]


def test_reading_from_any_byte_gives_the_lines_that_begin_there_or_later(write: Write) -> None:
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


def test_white_space_between_json_lines_is_no_record(write: Write) -> None:
    records = list(FileSource(write("f.jsonl", b'{"a":1}\r\n \n\n{"a":2}\n\n')).read(0))
    assert [(record.sequence, record.value) for record in records] == [(0, b'{"a":1}'), (12, b'{"a":2}')]


def test_half_a_character_is_valid_json_and_passes_untouched(write: Write) -> None:
    lines = [rb'{"text":"cut \ud83d","id":1.50}', rb'{"text":"whole \ud83d\ude00 \\ud83d","id":"\udc00"}']
    records = list(FileSource(write("f.ndjson", b"\n".join(lines)), key="id").read(0))
    assert [record.value for record in records] == lines
    assert [record.key for record in records] == [b"1.50", "\ufffd".encode()]


def test_empty_file_has_no_records(write: Write) -> None:
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
        (b"[1,2]", "is not a JSON object"),
        (b'{"id":' + b"[" * 100_000, "not JSON: "),
        (b'{"id":"\\ud83d', "not JSON: "),
    ],
)
def test_a_bad_line_is_named_after_everything_before_it_was_given(write: Write, bad: bytes, says: str) -> None:
    path = write("f.ndjson", b'{"id":1}\n' + bad + b'\n{"id":3}\n')
    given, message = refused(FileSource(path, key="id"))
    assert [record.value for record in given] == [b'{"id":1}']
    assert f"{path}: line 2 (byte 9): " in message
    assert says in message


@pytest.mark.parametrize("hole", [b"\0" * 899 + b"three\n", b"\0three\n", b"th" + b"\0" * 8 + b"ree\n"])
@pytest.mark.parametrize("format", ["lines", "ndjson", "csv"])
def test_a_hole_that_a_truncation_left_is_named(write: Write, hole: bytes, format: str) -> None:
    source = FileSource(write("app.log", b"1\n2\n" + hole + b"4\n"), format=format)
    found: list[bytes | None] = []
    with pytest.raises(
        SourceError,
        match=r"app.log.*: line 3 \(byte 4\): has NUL bytes .*run the command again first, .*have the writer append",
    ):
        found.extend(record.value for record in source.read(0))
    assert len(found) <= 2


def test_lines_must_be_utf8_too(write: Write) -> None:
    given, message = refused(FileSource(write("f.txt", b"fine\n\xe9t\xe9\n")))
    assert len(given) == 1
    assert "line 2 (byte 5): not UTF-8" in message


def test_gzip_cut_off_gives_the_whole_lines_before(tmp_path: Path) -> None:
    content = b"".join(b'{"id":%d,"noise":"%d"}\n' % (i, i * i * 7919) for i in range(20_000))
    path = tmp_path / "f.ndjson.gz"
    path.write_bytes(gzip.compress(content)[:-20_000])
    given, message = refused(FileSource(path))
    values = [record.value or b"" for record in given]
    assert values
    assert content.startswith(b"\n".join(values) + b"\n")
    named = re.search(r"line (\d+) \(byte (\d+)\): the gzip stream ends in the middle", message)
    assert named
    assert int(named[1]) == len(given) + 1
    assert int(named[2]) == given[-1].sequence + len(values[-1]) + 1


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
