"""A file in blocks is the file line by line: the same records, keys, numbers, marks and errors."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.errors import SourceError
from kafka_ratchet.producers import FileSource, Record
from kafka_ratchet.producers import files as files_module
from kafka_ratchet.producers.file_mark import FileMark
from kafka_ratchet.transport.publishing.blocks import read_block

KEYS = ["user", "ключ", 'a"b']

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["a\\b", "é", "\U0001f600", "\u0000", '"', "/", "\x7f", "\u2028"]),
)
values = st.recursive(scalars, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each))
records = st.dictionaries(st.sampled_from([*KEYS, "n", "users", ""]), values, max_size=4)
good = st.builds(
    lambda value, ascii, space: json.dumps(value, ensure_ascii=ascii, separators=(f",{space}", f":{space}")).encode(),
    records | values,
    st.booleans(),
    st.sampled_from(["", " ", "\t"]),
)
odd = st.sampled_from(
    [
        b"",
        b" \t",
        b"\x0b",
        b"\xef\xbb\xbf{}",
        b'{"user":"a","user":"b"}',
        b'{"\\u0075ser":"hidden"}',
        b'{"user":"\\ud83d\\ude00"}',
        b'{"user":"\\ud83d"}',
        b'{"user":1e400}',
        b'{"user":01}',
        b'{"user":1.}',
        b'{"user":-}',
        b'{"user":.5}',
        b'{"user":123456789012345678901234567890}',
        b'{"user":"a",}',
        b'{"user" "a"}',
        b'{"user":tru}',
        b'{"user":[{"user":1}]}',
        b'{"n":{"user":"inner"}}',
        b'{"user":"tab\there"}',
        b'{"user":"a"}\r',
        b'{"user":\r"a"}',
        b'{"user":"a"} x',
        b'{"user":"\xff"}',
        b"[" * 40 + b"]" * 40,
        b"{" * 3,
        b'"' + b"\\" * 7 + b'"',
        b'{"user":"\\x"}',
        b'{"user":"\\u12g4"}',
        b"nul",
        b"-0",
        b"-0.0",
        b"1E5",
        b"'a'",
    ]
)


def mutated(line: bytes, at: int, byte: int) -> bytes:
    return line[: at % (len(line) + 1)] + bytes([byte]) + line[at % (len(line) + 1) + 1 :] if byte != 10 else line


lines = st.one_of(good, good, odd, st.builds(mutated, good, st.integers(0, 60), st.integers(0, 255)))


def by_lines(source: FileSource) -> tuple[list[Record], str]:
    found: list[Record] = []
    try:
        found.extend(source.read(0))
    except SourceError as error:
        return found, str(error)
    return found, ""


def in_blocks(source: FileSource) -> tuple[list[Record], str]:
    found: list[Record] = []
    try:
        for offset, text in source.read_blocks(0):
            read = read_block(source, offset, text)
            source.track_block(offset, read.text, read.last)
            if read.records is not None:
                keys, values = (
                    [
                        None if length < 0 else data[start : start + length].tobytes()
                        for start, length in zip(starts, lengths, strict=True)
                    ]
                    for data, starts, lengths in (read.records.keys, read.records.values)
                )
                found.extend(map(Record, read.records.sequences.tolist(), keys, values))
                assert read.last is not None
                assert read.last[0] == found[-1].sequence
            if read.bad:
                raise read.bad
    except SourceError as error:
        return found, str(error)
    return found, ""


@settings(max_examples=150, deadline=None)
@given(
    st.lists(lines, max_size=8),
    st.sampled_from(["ndjson", "lines"]),
    st.sampled_from([None, *KEYS]),
    st.booleans(),
    st.sampled_from([b"\n", b"\r\n"]),
    st.sampled_from([16, 64, 1 << 20]),
)
def test_the_same_records_and_errors(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[bytes],
    format: str,
    key: str | None,
    ended: bool,
    end: bytes,
    block: int,
) -> None:
    path = tmp_path_factory.mktemp("blocks") / "file"
    path.write_bytes(end.join(texts) + (end if ended else b""))
    key = key if format == "ndjson" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_module, "BLOCK_BYTES", block)
        made = in_blocks(FileSource(path, format=format, key=key))
    assert made == by_lines(FileSource(path, format=format, key=key))


@pytest.mark.parametrize("compressed", [False, True])
def test_marks_of_blocks_are_those_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool) -> None:
    monkeypatch.setattr(files_module, "BLOCK_BYTES", 500)
    chance = random.Random(7)
    text = b"".join(
        b"\n" * chance.randrange(3) + b'{"user":"u%d","n":"%s"}\n' % (n, b"x" * chance.randrange(80))
        for n in range(200)
    )
    path = tmp_path / "events.ndjson"
    path.write_bytes(gzip.compress(text[:-1]) if compressed else text[:-1])
    read: list[int] = []
    blocks, whole = FileSource(path, key="user"), FileSource(path, key="user")
    for source in (blocks, whole):
        source.mark(-1)
    for offset, block in blocks.read_blocks(0):
        found = read_block(blocks, offset, block)
        blocks.track_block(offset, found.text, found.last)
        if found.last is not None:
            read.append(found.last[0])
            mark = blocks.mark(found.last[0])
            fresh = FileSource(path, key="user")
            assert fresh.check(found.last[0], mark) is None
            # It goes on behind that record, in blocks as by lines.
            rest = [record.sequence for record in fresh.read(found.last[0] + 1)]
            more = FileSource(path, key="user")
            again: list[int] = []
            for at, part in more.read_blocks(found.last[0] + 1):
                records = read_block(more, at, part).records
                again += records.sequences.tolist() if records is not None else []
            assert again == rest
    assert len(read) > 10
    everything = list(whole.read(0))
    assert read[-1] == everything[-1].sequence
    marks = [FileMark.decode(source.mark(read[-1])) for source in (blocks, whole)]
    assert marks[0] is not None
    assert marks[1] is not None
    assert marks[0].digest == marks[1].digest


@pytest.mark.parametrize("hole", [b"\0" * 899 + b"three\n", b"\0\n", b"th" + b"\0" * 8 + b"ree\n"])
@pytest.mark.parametrize("format", ["lines", "ndjson"])
def test_a_hole_that_a_truncation_left_is_named(tmp_path: Path, hole: bytes, format: str) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n" + hole + b"4\n")
    source = FileSource(path, format=format)
    ((offset, text),) = source.read_blocks(0)
    read = read_block(source, offset, text)
    assert (read.text, read.records and len(read.records.sequences)) == (b"1\n2\n", 2)
    assert "line 3 (byte 4): has NUL bytes" in str(read.bad)


def test_a_line_longer_than_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "BLOCK_BYTES", 100)
    monkeypatch.setattr(files_module, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "lines"
    for longest in (b"x" * 1500 + b"\nmore\n", b"x" * 1500):
        path.write_bytes(b"short\n" + longest)
        found, error = in_blocks(FileSource(path))
        assert [record.value for record in found] in ([b"short"], [])
        assert "the line is longer than" in error
        assert "byte 6" in error


def test_what_is_read_by_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a\n1\n")
    made: Callable[..., FileSource] = FileSource
    assert made(path).blocks_of == ("lines", None)
    assert made(path, format="ndjson", key="a").blocks_of == ("ndjson", "a")
    assert made(path, format="csv").blocks_of is None
    assert made(path, format="ndjson", sequence_field="a").blocks_of is None
