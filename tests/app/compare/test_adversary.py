"""Comparisons against hostile topics and tables: each would be a wrong answer without a word."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import json
import shutil
import time
import unicodedata
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest
from confluent_kafka import Producer

from kafka_ratchet.app.compare import batches
from kafka_ratchet.app.compare.address import Address
from kafka_ratchet.app.compare.columns import pairs
from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.verify import Comparison, compare

NEW_TOPIC = Callable[..., str]
READERS = ("records", "batches")


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Reader of topics: of records with librdkafka, or of batches with the worker's client."""
    monkeypatch.setattr(batches, "FEW", 0 if request.param == "batches" else 2**62)
    return str(request.param)


def producer(broker: str, **options: Any) -> Producer:
    return Producer({"bootstrap.servers": broker, "log_level": 0, **options})


def parquet(path: Path, **columns: Any) -> str:
    pa.parquet.write_table(pa.table(columns), path)
    return f"parquet:{path}"


def counts(result: Comparison) -> tuple[int, int, int, int]:
    return result.lost, result.doubled, result.altered, result.unexpected


def send(broker: str, topic: str, values: list[Any], **more: Any) -> None:
    client = producer(broker)
    for value in values:
        client.produce(
            topic, value if isinstance(value, bytes) or value is None else json.dumps(value).encode(), **more
        )
    assert client.flush(30) == 0


def test_a_clock_that_is_ahead_does_not_hide_a_loss(broker: str, new_topic: NEW_TOPIC, tmp_path: Path) -> None:
    topic, now = new_topic(1, message_timestamp_after_max_ms=2**62), round(time.time() * 1000)
    for number, ms in enumerate((now - 3_600_000, now, now + 60_000, now + 86_400_000, now * 1000)):
        send(broker, topic, [{"id": number}], timestamp=ms)
    target = parquet(tmp_path / "t.parquet", id=pa.array([], pa.int64()))
    result = compare(f"kafka:{topic}", target, "id", bootstrap=broker, grace="5m")
    named = {each["identity"]: each["finding"] for each in result.findings}
    assert named == {"0": "lost", "1": "in_flight", "2": "in_flight", "3": "lost", "4": "lost"}


def test_rows_without_a_time_are_looked_for(tmp_path: Path) -> None:
    times = pa.array(
        [None, datetime(2020, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("ms", "UTC")
    )
    source = parquet(tmp_path / "s.parquet", id=[1, 2, 3], at=times)
    target = parquet(tmp_path / "t.parquet", id=pa.array([], pa.int64()))
    result = compare(source, target, "id", since="2025-01-01", timestamp="at")
    assert (result.lost, result.looked_for, result.source_rows) == (2, 2, 3)
    (tmp_path / "s.csv").write_text("id,at\n1,2020-01-01T00:00:00Z\n2,2026-01-01T00:00:00Z\n3,soon\n")
    assert compare(f"csv:{tmp_path}/s.csv", target, "id", since="2025-01-01", timestamp="at").lost == 2


def test_bounds_without_a_record_prove_nothing(broker: str, new_topic: NEW_TOPIC, tmp_path: Path) -> None:
    topic = new_topic(1)
    send(broker, topic, [{"id": 1}])
    target = parquet(tmp_path / "t.parquet", id=[1])
    assert compare(f"kafka:{topic}", target, "id", bootstrap=broker).ok
    chosen: list[dict[str, Any]] = [{"since": "2100-01-01"}, {"since": "5"}, {"until": "2000-01-01"}]
    for bounds in chosen:
        result = compare(f"kafka:{topic}", target, "id", bootstrap=broker, **bounds)
        assert result.exit_code == 3
        assert "no record is inside of --since and --until" in result.unread[0]


def test_a_grace_needs_times(tmp_path: Path) -> None:
    table = parquet(tmp_path / "t.parquet", id=[1])
    with pytest.raises(SettingsError, match="--timestamp"):
        compare(table, table, "id", grace="5m")


def test_aborted_records_are_no_records(reader: str, broker: str, new_topic: NEW_TOPIC, tmp_path: Path) -> None:
    source, target = new_topic(1), new_topic(1)
    for topic, committed, aborted in ((source, (1, 2), (3,)), (target, (1,), (2, 9))):
        writer = producer(broker, **{"transactional.id": uuid.uuid4().hex})
        writer.init_transactions(30)
        for numbers, end in ((aborted, writer.abort_transaction), (committed, writer.commit_transaction)):
            writer.begin_transaction()
            for number in numbers:
                writer.produce(topic, json.dumps({"id": number}).encode())
            writer.flush(30)
            end(30)
    result = compare(f"kafka:{source}", f"kafka:{target}", "id", bootstrap=broker)
    assert (result.source_rows, result.target_rows) == (2, 1)
    assert [(each["finding"], each["identity"]) for each in result.findings] == [("lost", "2")]


def test_compaction_and_tombstones_are_noted(reader: str, broker: str, new_topic: NEW_TOPIC) -> None:
    source, target = new_topic(1), new_topic(1, cleanup_policy="compact")
    for topic in (source, target):
        send(broker, topic, [{"id": 1}, None], key=b"k")
    result = compare(f"kafka:{source}", f"kafka:{target}", "key", bootstrap=broker, as_is=True)
    assert result.exit_code == 0
    text = " ".join(result.notes)
    assert f"topic {target!r} is compacted" in text
    assert f"topic {source!r} is compacted" not in text
    assert f"topic {source!r}: 1 records read now have no value (tombstones)" in text


HOSTILE: list[tuple[Any, Any, Any]] = [
    ("a" * 300, "long", "long"),
    ("a" * 299 + "b", None, None),
    (unicodedata.normalize("NFC", "é"), "NFC", "NFC"),
    (unicodedata.normalize("NFD", "é"), "NFD", "NFD"),
    ("é ", "with a space", "with a space"),
    ("007", "00501", "00501"),
    ("7", 1.5, "1.5"),
    ("7.0", {"b": [1, None], "a": "x"}, '{"a": "x", "b": [1, null]}'),
    (12345678901234567890123, True, "true"),
    ("\x00", "\x00", None),
    ("\\x00", "\\", "\\"),
    ("a\x1fb", "\x1f", "\x1f"),
    ("", "", ""),
    ("\\N", "\\N", "\\N"),
    ("NaN", "NaN", "NaN"),
    ("'; DROP TABLE source; --", "%s {0} $1", "%s {0} $1"),
]


def test_values_of_every_form(reader: str, broker: str, new_topic: NEW_TOPIC, tmp_path: Path) -> None:
    topic = new_topic(2)
    values = [{"id": each, "x": content} for each, content, _ in HOSTILE]
    send(broker, topic, [*values, b'{"id": "\\ud800", "x": "\\ud800"}'], headers=[("h,1", b"old"), ("h,1", b"new")])
    ids, contents = [str(each) for each, _, _ in HOSTILE], [each for _, _, each in HOSTILE]
    contents[ids.index("\x00")] = "\x00"
    right = parquet(tmp_path / "right.parquet", id=ids, x=contents, h=["new"] * len(ids))
    result = compare(f"kafka:{topic}", right, ["id", 'header:"h,1"=h'], "x", bootstrap=broker)
    assert counts(result) == (1, 0, 0, 0)  # no table of Arrow can hold the lone surrogate
    less = parquet(tmp_path / "less.parquet", id=ids[::2], x=contents[::2])
    found = compare(f"kafka:{topic}", less, "id", "x", bootstrap=broker)
    assert counts(found) == (len(ids) // 2 + 1, 0, 0, 0)
    other = parquet(tmp_path / "other.parquet", id=ids, x=["other"] * len(ids))
    assert counts(compare(f"kafka:{topic}", other, "id", "x", bootstrap=broker)) == (1, 0, len(ids), 0)
    moved = parquet(tmp_path / "moved.parquet", id=ids, x=[*contents[1:], contents[0]])
    assert counts(compare(f"kafka:{topic}", moved, "id", "x", bootstrap=broker)) == (1, 0, len(ids), 0)


def test_ids_that_a_float_column_rounds_are_lost(
    reader: str, broker: str, new_topic: NEW_TOPIC, tmp_path: Path
) -> None:
    topic = new_topic(1)
    send(broker, topic, [{"id": 2**53}, {"id": 2**53 + 1}])
    target = parquet(tmp_path / "t.parquet", id=[float(2**53)])
    assert counts(compare(f"kafka:{topic}", target, "id", bootstrap=broker)) == (1, 0, 0, 0)


def test_a_quoted_header_has_its_name() -> None:
    (pair,) = pairs('header:"a,b=c"=x', Address.parse("kafka:t"), Address.parse("csv:t.csv"), "--by")
    assert (pair.source.name, pair.target.name) == ("a,b=c", "x")


def test_options_of_mysql_are_not_dropped(tmp_path: Path) -> None:
    target = parquet(tmp_path / "t.parquet", id=[1])
    with pytest.raises(SettingsError, match="ssl_cipher"):
        compare("mysql://u@127.0.0.1:1/d?table=t&ssl_cipher=x", target, "id")


TEXTS = ('a,"b"', "#c", "d;e", "it's", "  f ", "g\\", "two\nlines", "h|i")


@pytest.mark.parametrize("escape", ['"', "\\"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_no_line_of_a_csv_file_is_skipped(separator: str, escape: str, tmp_path: Path) -> None:
    """Lines that begin with # are rows, and the first rows do not say how later ones are written."""
    plain = [f"row {number}" for number in range(30_000)]
    texts = [*TEXTS, *plain] if escape == "\\" else [*plain, *TEXTS]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        options: dict[str, Any] = {"doublequote": False, "escapechar": escape, "quoting": csv.QUOTE_ALL}
        more = options if escape == "\\" else {}
        writer = csv.writer(file, delimiter=separator, lineterminator="\n", **more)
        writer.writerow(["id", "v"])
        writer.writerows([text, number] for number, text in enumerate(texts))
    source = parquet(tmp_path / "s.parquet", id=texts, v=list(range(len(texts))))
    for result in (
        compare(source, f"csv:{tmp_path}/t.csv", "id", "v"),
        compare(f"csv:{tmp_path}/t.csv", source, "id", "v"),
    ):
        assert result.ok, result.findings
        assert (result.source_rows, result.target_rows) == (len(texts), len(texts))


def test_a_csv_file_of_one_column_keeps_its_texts(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id\na;b\nc;d\n#e\n")
    assert compare(parquet(tmp_path / "s.parquet", id=["a;b", "c;d", "#e"]), f"csv:{tmp_path}/t.csv", "id").ok
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(SourceError, match="no header line"):
        compare(parquet(tmp_path / "s.parquet", id=["a"]), f"csv:{tmp_path}/t.csv", "id")


def test_files_of_a_csv_folder_that_do_not_count(tmp_path: Path) -> None:
    """Spark and others leave files of attempts without a commit in folders that begin with an underscore."""
    folder = tmp_path / "files"
    for name in ("a.csv", "_temporary/0/a.csv", ".b.csv", "x=1/.hive/c.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("id\n1\n")
    (folder / "c.csv.gz").write_bytes(gzip.compress(b"id\n2\n"))
    assert compare(parquet(tmp_path / "s.parquet", id=[1, 2]), f"csv:{folder}", "id").ok


def test_a_csv_file_with_the_line_ends_of_an_old_mac(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id,v\r1,a\r2,b\r")
    assert compare(parquet(tmp_path / "s.parquet", id=[1, 2], v=["a", "b"]), f"csv:{tmp_path}/t.csv", "id", "v").ok


def test_identities_in_two_forms_are_noted(tmp_path: Path) -> None:
    source, target = parquet(tmp_path / "s.parquet", id=['"a"', '"b"']), parquet(tmp_path / "t.parquet", id=["a", "b"])
    result = compare(source, target, "id")
    assert counts(result) == (2, 0, 0, 2)
    (note,) = result.notes
    assert """no identity in common, such as '"a"' and 'a'""" in note
    (note,) = compare(source, target, "id", sample=0).notes
    assert "no identity in common. If" in note
    assert not compare(source, parquet(tmp_path / "t.parquet", id=['"a"', "b"]), "id").notes
    assert not compare(source, parquet(tmp_path / "t.parquet", id=pa.array([], pa.string())), "id").notes


DUCK: dict[str, tuple[str, Any, str]] = {
    "zone": ("timetz", "10:00:00+02:00", "10:00:00+05"),
    "bits": ("bit", "101", "1101"),
    "big": ("uhugeint", 2**128 - 1, "5"),
    "text": ("json", "a", '"b"'),
    "nothing": ("json", None, "1"),
    "list": ("json", [1, 2], "[2, 1]"),
}
"""Type of a column, value in the topic, and a literal of another value."""


def test_types_of_duckdb_that_arrow_has_otherwise(broker: str, new_topic: NEW_TOPIC, tmp_path: Path) -> None:
    topic = new_topic(1)
    send(broker, topic, [{"id": 1, **{name: sent for name, (_, sent, _) in DUCK.items()}}])
    with duckdb.connect(str(tmp_path / "t.duckdb")) as database:
        columns = ", ".join(f"{name} {type_}" for name, (type_, _, _) in DUCK.items())
        for table in ("same", "other"):
            database.execute(f"CREATE TABLE {table} (id integer, {columns})")
        right = [
            sent if isinstance(sent, str) and type_ != "json" else json.dumps(sent) for type_, sent, _ in DUCK.values()
        ]
        for table, values in (("same", right), ("other", [literal for _, _, literal in DUCK.values()])):
            signs = ", ".join("?" for _ in values)
            database.execute(f"INSERT INTO {table} VALUES (1, {signs})", values)  # noqa: S608 - names of ours
    place = f"duckdb:{tmp_path}/t.duckdb?table="
    result = compare(f"kafka:{topic}", f"{place}same", "id", list(DUCK), bootstrap=broker)
    assert result.ok, result.findings
    assert compare(f"kafka:{topic}", f"{place}same", ["zone", "big"], bootstrap=broker).ok
    result = compare(f"{place}same", f"{place}other", "id", list(DUCK))
    (altered,) = result.findings
    assert set(altered["values"]) == set(DUCK)


def test_an_empty_folder_is_no_mistake_in_the_options(tmp_path: Path) -> None:
    """A watched comparison goes on after it: another program may be replacing the files."""
    (tmp_path / "files").mkdir()
    with pytest.raises(SourceError, match="no Parquet files"):
        compare(parquet(tmp_path / "s.parquet", id=[1]), f"parquet:{tmp_path}/files", "id")


def test_faults_of_a_library_are_explained(tmp_path: Path) -> None:
    """Some have classes of Python's own, such as an Iceberg table with equality deletes."""
    source = parquet(tmp_path / "s.parquet", id=[1])
    with pytest.raises(SourceError, match=r"iceberg:p.t cannot be read.*CatalogType"):
        compare(source, "iceberg:p.t", "id", target_options={"type": "no such"})


UUID = uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")


def test_forms_of_identities_and_times_are_one_value(tmp_path: Path) -> None:
    source = parquet(
        tmp_path / "s.parquet", id=[str(UUID).upper()], at=["10:11:12.500"], map=['{"k": 1, "a": 2}'], empty=["{}"]
    )
    maps = pa.map_(pa.string(), pa.int64())
    clock = pa.array([dt.time(10, 11, 12, 500_000)], pa.time64("ns"))
    columns = {"at": clock, "map": pa.array([[("k", 1), ("a", 2)]], maps), "empty": pa.array([[]], maps)}
    target = parquet(tmp_path / "t.parquet", id=pa.array([UUID.bytes], pa.uuid()), **columns)
    assert compare(source, target, "id", list(columns)).ok
    with duckdb.connect(str(tmp_path / "t.duckdb")) as database:
        database.execute(
            f"CREATE TABLE t AS SELECT '{UUID}'::uuid AS id, TIME '10:11:12.5' AS at, MAP {{'k': 1, 'a': 2}} AS map"
        )
    assert compare(source, f"duckdb:{tmp_path}/t.duckdb?table=t", "id", "at,map").ok


def test_each_parquet_file_is_read_with_its_own_types(tmp_path: Path) -> None:
    """The first file's types made 7 of 007, and doubles single."""
    folder = tmp_path / "files"
    folder.mkdir()
    parquet(folder / "1.parquet", id=pa.array([7], pa.int32()), v=pa.array([0.1], pa.float32()))
    parquet(folder / "2.parquet", id=["007"], v=pa.array([0.1234567890123], pa.float64()), w=["x"])
    parquet(folder / "3.parquet", id=pa.array([2**60 + 1], pa.int64()), v=pa.array([5], pa.int64()))
    parquet(folder / "_4.parquet", id=["hidden"])
    ids, values = ["7", "007", str(2**60 + 1)], [0.1, 0.1234567890123, 5.0]
    source = parquet(tmp_path / "s.parquet", id=ids, v=values, w=[None, "x", None])
    assert compare(source, f"parquet:{folder}", "id", "v,w").ok
    other = parquet(tmp_path / "o.parquet", id=ids, v=[0.1, 0.1234567890999, 5.0])
    assert counts(compare(other, f"parquet:{folder}", "id", "v")) == (0, 0, 1, 0)


def test_names_of_folders_are_texts(tmp_path: Path) -> None:
    """As numbers, code=007 and code=7 were one."""
    folder = tmp_path / "files"
    for name in ("007", "7", "a%2Fb", "__HIVE_DEFAULT_PARTITION__"):
        (folder / f"code={name}").mkdir(parents=True)
        parquet(folder / f"code={name}" / "1.parquet", id=[name])
    parquet(folder / "code=7" / "2.parquet", id=["own"], code=["seven"])  # the file's own column counts
    ids, codes = ["007", "7", "a%2Fb", "__HIVE_DEFAULT_PARTITION__", "own"], ["007", "7", "a/b", None, "seven"]
    source = parquet(tmp_path / "s.parquet", id=ids, code=codes)
    assert compare(source, f"parquet:{folder}", "id", "code").ok
    result = compare(source, f"parquet:{folder}", "code")
    assert (counts(result), result.without_identity) == ((0, 0, 0, 0), {"source": 1, "target": 1})
    one = compare(parquet(tmp_path / "o.parquet", id=["7", "own"], n=[7, None]), f"parquet:{folder}/code=7", "id")
    assert one.ok
    numbers = compare(parquet(tmp_path / "n.parquet", n=[7]), f"parquet:{folder}/code=7/1.parquet", "n=code")
    assert numbers.ok


def test_times_of_spark_have_all_years(tmp_path: Path) -> None:
    years = pa.array([datetime(year, 12, 31) for year in (1, 1600, 2026, 9999)], pa.timestamp("us"))
    table = pa.table({"id": [1, 2, 3, 4], "at": years})
    pa.parquet.write_table(table, tmp_path / "int96.parquet", use_deprecated_int96_timestamps=True)
    source = parquet(tmp_path / "s.parquet", id=table["id"], at=years)
    assert compare(source, f"parquet:{tmp_path}/int96.parquet", "id", "at").ok


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_files_that_spark_has_not_committed_are_no_rows(kind: str, tmp_path: Path) -> None:
    """Readers in Spark take the files listed in the folder's log; others are left by a crash."""
    sink, log = tmp_path / "sink dir", tmp_path / "sink dir" / "_spark_metadata"
    log.mkdir(parents=True)

    def write(name: str, *entries: tuple[str, str]) -> None:
        lines = [
            json.dumps({"path": (sink / f"{file}.{kind}").as_uri(), "size": 1, "action": action})
            for file, action in entries
        ]
        (log / name).write_text("\n".join(["v1", *lines]))

    def file(place: Path, number: int) -> None:
        if kind == "csv":
            place.with_suffix(".csv").write_text(f"id\n{number}\n")
        else:
            parquet(place.with_suffix(".parquet"), id=[number])

    for number in range(5):
        file(sink / f"f{number}", number)
    write("0", ("gone", "add"))
    write("1", ("f0", "add"))
    write("1.compact", ("f0", "add"), ("f4", "add"))
    write("2", ("f1", "add"), ("f4", "delete"))
    (log / ".2.crc").write_text("x")
    assert compare(parquet(tmp_path / "s.parquet", id=[0, 1]), f"{kind}:{sink}", "id").ok
    (sink / "day=1").mkdir()
    file(sink / "day=1" / "f9", 9)
    for place in (f"{sink}/*.{kind}", f"{sink}/day=1", f"{sink}/f0.{kind}", *([sink.as_uri()] * (kind == "parquet"))):
        with pytest.raises(SettingsError, match="lists its committed files in"):
            compare(parquet(tmp_path / "s.parquet", id=[0, 1]), f"{kind}:{place}", "id")
    shutil.rmtree(sink / "day=1")
    (log / "3").write_text("v2\n{}")
    with pytest.raises(SourceError, match="in version 'v2' of Spark's list"):
        compare(parquet(tmp_path / "s.parquet", id=[0, 1]), f"{kind}:{sink}", "id")


@pytest.mark.parametrize("mark", ["_delta_log", ".hoodie"])
@pytest.mark.parametrize("place", ["", "/part=1", "/part=1/1.parquet"])
def test_files_of_a_table_are_not_taken_for_the_table(mark: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "t" / mark).mkdir(parents=True)
    (tmp_path / "t" / "part=1").mkdir()
    target = parquet(tmp_path / "t" / "part=1" / "1.parquet", id=[1])
    with pytest.raises(SettingsError, match="files of older versions"):
        compare(target, f"parquet:{tmp_path}/t{place}", "id")


def test_values_in_another_format_are_not_compared(
    reader: str, broker: str, new_topic: NEW_TOPIC, tmp_path: Path
) -> None:
    """Their fields would be null on both sides, and all would be right."""
    source, target = new_topic(1), new_topic(1)
    for topic, value in ((source, b"\0\0\0\0\1x"), (target, b"\0\0\0\0\1y")):
        send(broker, topic, [value], key=b"1")
        send(broker, topic, [{"v": 1}], key=b"2")
    table = parquet(tmp_path / "t.parquet", id=["1", "2"], v=[1, 1])
    chosen: list[tuple[str, str, dict[str, Any]]] = [
        (f"kafka:{target}", "key", {}),
        (table, "key=id", {"state": tmp_path / "state"}),
        (table, "key=id", {"state": tmp_path / "state"}),
        (table, "key=id", {"as_is": True}),
    ]
    for other, by, options in chosen:
        result = compare(f"kafka:{source}", other, by, "v", bootstrap=broker, **options)
        assert (counts(result), result.exit_code) == ((0, 0, 0, 0), 3)
        assert f"{source}: the values of 1 records have no fields in the format json" in result.unread[-1]
        assert "partition 0 offset 0" in result.unread[-1]
    assert compare(f"kafka:{source}", f"kafka:{target}", "key", bootstrap=broker).ok
    both = compare(f"kafka:{source}", f"kafka:{target}", "key", "v", bootstrap=broker, value_format="bytes")
    assert both.exit_code == 3


def test_fields_that_no_record_has_are_not_compared(
    reader: str, broker: str, new_topic: NEW_TOPIC, tmp_path: Path
) -> None:
    source, target = new_topic(1), new_topic(1)
    for topic, value in ((source, "x"), (target, "y")):
        send(broker, topic, [{"id": 1, "v": value, "none": None}], headers=[("h", value.encode())])
    state = tmp_path / "state"
    for name in ("w", "v.x", "header:hh"):
        state.unlink(missing_ok=True)
        for _ in range(2):
            result = compare(f"kafka:{source}", f"kafka:{target}", "id", name, bootstrap=broker, state=state)
            assert result.exit_code == 3
            assert "no row of kafka:" in result.unread[0]
            assert "they are not compared" in result.unread[0]
    state.unlink()
    for _ in range(2):
        assert compare(f"kafka:{source}", f"kafka:{target}", "id", "none", bootstrap=broker, state=state).ok
    table = parquet(tmp_path / "t.parquet", id=[1], v=["x"], s=[{"x": 1}])
    result = compare(f"kafka:{source}", table, "id", "V=v", bootstrap=broker)
    assert (counts(result), result.notes) == ((0, 0, 1, 0), [f"no row of kafka:{source} has field:V"])
    assert compare(table, table, "id", "s.x").ok
    assert compare(table, table, "id", "s.y").exit_code == 3


def test_as_is_compares_each_content_as_often_as_it_is_there(tmp_path: Path) -> None:
    def altered(source: str, target: str, **options: Any) -> tuple[int, int, int]:
        one, other = [
            parquet(tmp_path / name, id=[1] * len(texts) + [2], v=[*texts, "z"])
            for name, texts in (("s.parquet", source), ("t.parquet", target))
        ]
        result = compare(one, other, "id", "v", as_is=True, **options)
        for each in result.findings:
            if each["finding"] == "altered":
                assert each["values"]["v"]["source"] != each["values"]["v"]["target"]
        assert sum(each["finding"] == "altered" for each in result.findings) == result.altered
        return result.lost, result.doubled, result.altered

    assert altered("ab", "ba") == (0, 0, 0)
    assert altered("ab", "aa") == (0, 0, 1)
    assert altered("a", "aa") == (0, 1, 0)
    assert altered("ab", "aaa") == (0, 1, 1)
    assert altered("ab", "aab") == (0, 1, 0)
    assert altered("aab", "aa") == (1, 0, 0)
    assert altered("aabb", "abbb") == (0, 0, 1)
    assert altered("ab", "ax") == (0, 0, 1)
    assert altered("abc", "aax") == (0, 0, 2)
