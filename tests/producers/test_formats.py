import csv
import io
import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.producers import FileSet, FileSource, Record, StreamSource, open_files
from kafka_ratchet.producers.formats import format_of

TABLE = 'id,note\r\n1,"a ""quoted"", and\nbroken line"\r\n\r\n2,\r\n3,é\u2028'.encode()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_bytes(TABLE)
    return path


def test_a_row_is_an_object_of_its_columns(table: Path) -> None:
    records = list(FileSource(table, key="id").read(0))
    assert [record.key for record in records] == [b"1", b"2", b"3"]
    assert [json.loads(record.value or b"") for record in records] == [
        {"id": "1", "note": 'a "quoted", and\nbroken line'},
        {"id": "2", "note": ""},
        {"id": "3", "note": "é\u2028"},
    ]
    assert [TABLE[record.sequence :][:1] for record in records] == [b"1", b"2", b"3"]
    for number, record in enumerate(records, 1):
        assert list(FileSource(table, key="id").read(record.sequence + 1)) == records[number:]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"id,id\n1,2\n", "line 1 (byte 0): names the column 'id' twice"),
        (b"\n1,2\n", "line 1 (byte 0): names no columns"),
        (b"id,b\n1\n", "line 2 (byte 5): has 1 fields, but the first line names 2 columns"),
        (b'id,b\n1,"x\n2,y\n', "line 2 (byte 5): a quoted field that begins here does not end"),
        (b'id,b\n1,"x"y"z"\n', "line 2 (byte 5): not CSV"),
        (b'id,b\n0,fine\n1,5" pipe\n2,x\n3,6" pipe\n4,y\n', "line 3 (byte 12): not CSV: a quote neither"),
        (b'id,b\n1,5" x 6" pipe\n', "line 2 (byte 5): not CSV: a quote neither"),
        (b'id,b\n1,x"\n2,"y\n', "line 2 (byte 5): not CSV: a quote neither"),
        (b'id,b\n1,"x\n2,y"z\n3,"\n', "line 2 (byte 5): not CSV: a quote neither"),
        (b"id,b\n1,x\r2,y\n", "line 2 (byte 5): not CSV: a carriage return"),
        (b"id,b\r1,x\r", "line 1 (byte 0): not CSV: a carriage return"),
        (b"other,b\n1,2\n", "line 2 (byte 8): has no column 'id', which is to be the record's key. It has: b, other"),
        (b"id,b\n1,\xff\n", "line 2 (byte 5): not UTF-8"),
        (b"id;b\n1;2\n", "line 1 (byte 0): seems to have 2 columns with semicolons between them, and 1 with commas"),
        (b"id;b;c,d\n1;2;3,4\n", "line 1 (byte 0): seems to have 3 columns with semicolons"),
        (
            b"id\tb\r\n1\t2\r\n",
            "line 1 (byte 0): seems to have 2 columns with tabs between them, and 1 with commas. Give --delimiter tab",
        ),
        (b"\xef\xbb\xbfid|b\n1|2\n", "line 1 (byte 0): seems to have 2 columns with vertical bars"),
        (b'"id";"b"\n"1";"2"\n', "line 1 (byte 0): seems to have 2 columns with semicolons"),
        (
            b'"id";"a\nb"\n"1";"2"\n',
            "line 1 (byte 0): seems to have semicolons between its columns. Give --delimiter ';'",
        ),
        (b"sep=,\nid,b\n1,2\n", "line 1 (byte 0): 'sep=,' is a note of Excel's. Remove this line"),
    ],
)
def test_what_is_wrong_with_a_table(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(SourceError) as failure:
        list(FileSource(path, key="id").read(0))
    assert f"{path}: {says}" in str(failure.value)


def test_the_datas_own_sequences(tmp_path: Path) -> None:
    path = tmp_path / "f.ndjson"
    path.write_bytes(b'{"n":3,"k":"a"}\n{"n":"70","k":"b"}\n{"n":71,"k":"c"}\n')
    source = FileSource(path, key="k", sequence_field="n")
    assert [(r.sequence, r.key) for r in source.read(0)] == [(3, b"a"), (70, b"b"), (71, b"c")]
    assert [record.sequence for record in source.read(71)] == [71]
    assert source.mark(70) == "field:n;key=k"


def sources_of(content: bytes, folder: Path, key: str | None) -> list[FileSource | FileSet | StreamSource]:
    path = folder / "f.ndjson"
    path.write_bytes(content)
    return [
        FileSource(path, key=key, sequence_field="n"),
        FileSet([path], key=key, sequence_field="n"),
        StreamSource(io.BytesIO(content), key=key, sequence_field="n"),
        _stopped(FileSet([folder], follow=True, key=key, sequence_field="n")),
    ]


def _stopped(source: FileSet) -> FileSet:
    source.stop()
    return source


@pytest.mark.parametrize(
    ("numbers", "read", "says"),
    [
        ((1, 10, 4, 11), [1, 10], r"line 3\b.*: sequence 4 does not rise above 10"),
        ((1, 10, 10), [1, 10], r"line 3\b.*: sequence 10 does not rise above 10"),
        ((-5, 1), [], r"line 1\b.*: sequence -5 is negative"),
    ],
)
@pytest.mark.parametrize("start", [0, 11])
@pytest.mark.parametrize("kind", range(4))
def test_a_sequence_that_does_not_rise_is_refused_by_each_run(
    tmp_path: Path, numbers: tuple[int, ...], read: list[int], says: str, start: int, kind: int
) -> None:
    content = b"".join(b'{"n":%d}\n' % number for number in numbers)
    found: list[int] = []
    with pytest.raises(SourceError, match=says):
        found.extend(record.sequence for record in sources_of(content, tmp_path, None)[kind].read(start))
    assert found == [number for number in read if number >= start]


def test_a_sequence_that_does_not_rise_is_refused_while_a_log_is_followed(tmp_path: Path) -> None:
    log = tmp_path / "f.ndjson"
    log.write_bytes(b'{"n":1}\n{"n":10}\n')
    source = FileSet([log], follow=True, sequence_field="n")
    records = source.read(0)
    assert [next(records).sequence, next(records).sequence] == [1, 10]
    with log.open("ab") as more:
        more.write(b'{"n":4}\n{"n":11}\n')
    with pytest.raises(SourceError, match=r"line 3\b.*: sequence 4 does not rise above 10"):
        next(records)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("orders.csv", "csv"),
        ("orders.csv.1", "csv"),
        ("orders.csv.12.gz", "csv"),
        ("orders.csv-20260131", "csv"),
        ("orders.csv-2026-01-31T12", "csv"),
        ("orders-20260131.jsonl.zst", "ndjson"),
        ("app.log.1", "lines"),
        ("2026.csv.old", "lines"),
    ],
)
def test_a_format_follows_from_the_name_before_rotation(name: str, format: str) -> None:
    assert format_of(Path(name)) == format


def test_a_source_with_its_own_sequences_keeps_its_key(tmp_path: Path) -> None:
    content = b'{"n":3,"k":"a"}\n{"n":70,"k":"b"}\n'
    marks = {source.mark(70) for source in sources_of(content, tmp_path, "k")}
    assert marks == {"field:n;key=k"}
    for source in sources_of(content, tmp_path, "k"):
        assert source.check(70, "field:n;key=k") is None
        assert "did not store --key" in (source.check(70, "field:n") or "")
        for mark in ("field:m;key=k", "field:nn", "files:1"):
            with pytest.raises(SourceError, match="with other sequences"):
                source.check(70, mark)
    for source in sources_of(content, tmp_path, None):
        with pytest.raises(SourceError, match=r"another --key \(key=k; this run has key=None\)"):
            source.check(70, "field:n;key=k")
    with pytest.raises(SourceError, match="with other sequences"):
        FileSource(tmp_path / "f.ndjson", key="k").check(70, "field:n;key=k")


def table_of(text: str) -> list[list[str]] | None:
    """RFC 4180, read character by character, rows of white lines left out; None where any of it is not that."""
    rows: list[list[str]] = []
    row: list[str] = []
    at = began = 0
    end = len(text)
    while at < end:
        cell = ""
        if text[at] == '"':
            at += 1
            while text[at : at + 2] == '""' or text[at : at + 1] not in ('"', ""):
                cell += text[at]
                at += 2 if text[at] == '"' else 1
            if text[at : at + 1] != '"':
                return None
            at += 1
        else:
            while at < end and text[at] not in '",\r\n':
                cell += text[at]
                at += 1
        row.append(cell)
        if text[at : at + 1] == ",":
            at += 1
            continue
        line_end = next((each for each in ("\r\n", "\n") if text.startswith(each, at)), None)
        if line_end is None:
            return None
        if at > began:
            rows.append(row)
        at += len(line_end)
        began, row = at, []
    return rows


PIECES = ["a", "b", ",", '"', '""', " ", "\r", "\t", "é", "\u2028", "\n", '"x"', ',"', '",']


@pytest.mark.parametrize(
    ("delimiter", "content", "rows"),
    [
        (";", b'id;b\n1;"x;y\nz"\n2;1,5\n', [["1", "x;y\nz"], ["2", "1,5"]]),
        ("tab", b"id\tb\n1\ta,b;c\n", [["1", "a,b;c"]]),
        ("\\t", b"id\tb\n1\t\n", [["1", ""]]),
        ("|", b'"id"|b\n1|"a""|b"\n', [["1", 'a"|b']]),
        (",", b"id;b,c\n1;2,3\n", [["1;2", "3"]]),
        (None, b'id,"a;b;c"\n1,x;y;z\n', [["1", "x;y;z"]]),
        (None, b"id\n1;2\n", [["1;2"]]),
    ],
)
def test_a_table_may_have_another_delimiter(
    tmp_path: Path, delimiter: str | None, content: bytes, rows: list[list[str]]
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    for source in (FileSource(path, delimiter=delimiter), open_files([path, path], delimiter=delimiter)):
        read = [list(json.loads(record.value or b"").values()) for record in source.read(0)]
        assert read[: len(rows)] == rows
    if delimiter == ";":
        stream = StreamSource(io.BytesIO(content), sequence_field="id", format="csv", delimiter=";")
        assert [record.sequence for record in stream.read(0)] == [1, 2]


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", "a", " ", "é"])
def test_a_delimiter_that_cannot_be_one_is_refused(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a;b\n1;2\n")
    with pytest.raises(SettingsError, match="write one character"):
        FileSource(path, delimiter=delimiter)
    with pytest.raises(SettingsError, match="only CSV has one"):
        FileSource(path, format="lines", delimiter=";")


def test_a_table_that_goes_on_with_another_delimiter_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a;b,c\n1;2,3\n4;5,6\n")
    source = FileSource(path, delimiter=",")
    first = next(iter(source.read(0))).sequence
    with pytest.raises(SourceError, match="another --delimiter"):
        FileSource(path, delimiter=";").check(first, source.mark(first))


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.booleans())
@example('1,5" pipe\n2,x\n3,6" pipe', False)
def test_a_table_is_a_row_per_record_or_nothing_of_it_is_given(text: str, ends_in_cr: bool) -> None:
    text += "\r\n" if ends_in_cr else "\n"
    rows = table_of(text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        path.write_bytes(("a,b\n" + text).encode())
        read: list[Record] = []
        if rows is not None and all(len(row) == 2 for row in rows):
            read.extend(FileSource(path).read(0))
            assert [list(json.loads(record.value or b"").values()) for record in read] == rows
        else:
            with pytest.raises(SourceError, match=rf"{re.escape(str(path))}: line \d+ \(byte \d+\): "):
                read.extend(FileSource(path).read(0))
            assert read == []


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=2), max_size=5))
def test_whatever_a_writer_of_csv_writes_comes_back_as_it_was(rows: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["a", "b"], *rows])
        read = [list(json.loads(record.value or b"").values()) for record in FileSource(path).read(0)]
    assert read == rows


@pytest.mark.parametrize("number", ["1.5", '"x"', "1e3", "true", '""'])
def test_a_sequence_that_is_none(number: str) -> None:
    source = StreamSource(io.BytesIO(f'{{"n":{number}}}\n'.encode()), sequence_field="n")
    with pytest.raises(SourceError, match=r"standard input: line 1: field 'n' is '.*', but a sequence is a whole"):
        list(source.read(0))


def test_a_stream_is_passed_over_up_to_where_its_name_was() -> None:
    rows = b"n,who\n1,a\n2,b\n5,c\n"
    read = StreamSource(io.BytesIO(rows), sequence_field="n", key="who", format="csv").read(2)
    assert list(read) == [Record(2, b"b", b'{"n":"2","who":"b"}'), Record(5, b"c", b'{"n":"5","who":"c"}')]


def test_a_stream_without_sequences_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"cannot be read again after a crash.*--sequence-field"):
        StreamSource(io.BytesIO(), sequence_field=None)
    with pytest.raises(SettingsError, match="--sequence-field n needs fields, but the format is 'lines'"):
        StreamSource(io.BytesIO(), sequence_field="n", format="lines")


@pytest.mark.parametrize("cut", [b"id,amount\n1,5\n2,12", b"id,amou"])
def test_a_row_of_a_stream_has_a_line_end(cut: bytes) -> None:
    source, read = StreamSource(io.BytesIO(cut), sequence_field="id", format="csv"), list[Record]()
    with pytest.raises(SourceError, match=r"standard input: line [13]: has no line end, .*cut off.* End the last line"):
        read.extend(source.read(0))
    assert [record.sequence for record in read] == [1] * (b"5" in cut)
    assert len(list(StreamSource(io.BytesIO(b'{"n":1}'), sequence_field="n").read(0))) == 1
