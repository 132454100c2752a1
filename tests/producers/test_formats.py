import io
import json
from pathlib import Path

import pytest

from errors import SettingsError, SourceError
from producers import FileSource, Record, StreamSource

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
        (b"other,b\n1,2\n", "line 2 (byte 8): has no column 'id', which is to be the record's key. It has: b, other"),
        (b"id,b\n1,\xff\n", "line 2 (byte 5): not UTF-8"),
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
    assert source.mark(70) == "field:n"


@pytest.mark.parametrize("number", ["1.5", '"x"', "1e3", "true", '""'])
def test_a_sequence_that_is_none(number: str) -> None:
    source = StreamSource(io.BytesIO(f'{{"n":{number}}}\n'.encode()), sequence_field="n")
    with pytest.raises(SourceError, match=r"standard input: line 1: field 'n' is .* a sequence is a whole number"):
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
