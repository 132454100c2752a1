"""Spark's verdicts next to those of the worker's own passes, over random slices and headers that mean harm."""

from __future__ import annotations

import datetime
import random
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafka_ratchet.rule import number_forms
from kafka_ratchet.rule.extraction import identity_reader, reader_for
from kafka_ratchet.rule.form_look import FormFinder
from kafka_ratchet.rule.identity import Identity, SequenceForm, SequenceSource
from kafka_ratchet.rule.reasons import REASONS
from kafka_ratchet.rule.windows import StateOptions
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.judging import reading, task
from kafka_ratchet.spark_sink.rows.judging.judge import judged, merged, sequences_schema
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule, identity_parts
from kafka_ratchet.spark_sink.rows.judging.task import LAST, SEEN, Known, judging
from kafka_ratchet.spark_sink.rows.judging.windows import judged_at_once
from kafka_ratchet.spark_sink.spark.dialect import to_arrow
from kafka_ratchet.spark_sink.spark.session import BATCH_RECORDS
from kafka_ratchet.spark_sink.stores.sequence_files import looking
from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.tables.replays import Replays
from tests import hostile
from tests.tables.fetched_records import Sent, fetched
from tests.tables.test_number_forms import MISREAD, RIGHT, against, big, by_worker

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
KAFKA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(HEADER)),
    ]
)
"""What Spark's Kafka source hands out with includeHeaders; records without headers have null there."""
WHEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

RULES = [
    JudgeRule("t"),
    JudgeRule("t", ("key",), "header:n", "text"),
    JudgeRule("t", ("header:id",), "none"),
    JudgeRule("t", ("key", "header:id"), "header:n", "integer"),
    JudgeRule("t", ("key", "header:id"), "header:n", "little-endian"),
    JudgeRule("t", ("partition",), "header:n"),
    JudgeRule("t", ("header:id",), "header:n", reorder_window=5, late="dead-letter"),
    JudgeRule("t", ("key",), "header:n", reorder_window=70),
]

LONG = b"x" * 1024
SEQUENCES = [text for text, _ in hostile.NUMBERS if text is not None]


def sequences_for(rule: JudgeRule) -> list[bytes]:
    """Those with a verdict; where the form is guessed, others end the job."""
    return SEQUENCES if rule.sequence_form == "guess" else SEQUENCES + hostile.LOOKS_LIKE_TEXT


@dataclass
class Plain:
    """The worker's verdicts on one partition: its own map, its own readers, one batch after another."""

    rule: JudgeRule
    table: LastSequences = field(init=False)

    def __post_init__(self) -> None:
        self.table = LastSequences(kept=StateOptions(self.rule.reorder_window))
        self.identity = Identity.parse(list(self.rule.identity))
        self.source = SequenceSource.parse(self.rule.sequence)

    def judge(self, records: list[Sent], start: int) -> list[str]:
        batch = fetched(
            records,
            start,
            sequence_header=(self.rule.sequence_header or "").encode(),
            identity_header=(self.identity.header or "").encode(),
        )
        sequences, reasons = reader_for(self.source, SequenceForm(self.rule.sequence_form))(batch)
        identities = identity_reader(self.identity)(batch, reasons)
        verdicts = self.table.judge(identities, 1024, sequences, reasons, batch=batch)
        Replays.of(batch, b"").keep(verdicts, reasons)
        self.table.commit()
        lettered = {3: "too-late"} if self.rule.late == "dead-letter" else {}
        names = ["fresh", "duplicate", "invalid", "duplicate", "duplicate"]
        return [
            REASONS[reason] if verdict == 2 else lettered.get(verdict, names[verdict])
            for verdict, reason in zip(verdicts.tolist(), reasons.tolist(), strict=True)
        ]


def drawn(rule: JudgeRule, chance: random.Random) -> Sent:
    """A record: mostly good, and near the last ones; else anything."""
    headers: list[tuple[str, bytes | None]] = []
    n, identity = rule.sequence_header, [part for part in rule.headers if part is not None]
    key = chance.choice([b"k", b"l", None, b"", LONG, LONG + b"k"]) if chance.random() < 0.3 else b"k"
    for name in identity:
        odd = chance.random() < 0.3
        headers.append((name, chance.choice([*hostile.IDENTITIES, None]) if odd else chance.choice([b"a", b"b"])))
    if n is not None:
        number = chance.randint(0, 40) if chance.random() < 0.9 else chance.randint(0, 300)
        orders = {"integer": "big", "little-endian": "little"}
        order = orders.get(rule.sequence_form)
        good = number.to_bytes(8, "little" if order == "little" else "big") if order else str(number).encode()
        headers.append((n, chance.choice([*sequences_for(rule), None]) if chance.random() < 0.3 else good))
    if chance.random() < 0.1 and headers:
        headers.append(chance.choice(headers))
    if chance.random() < 0.1 and headers:
        headers.pop()
    if chance.random() < 0.2:
        headers.insert(0, ("other", b"1"))
    if chance.random() < 0.05:
        headers.append(("ratchet-replays", b"1"))
    if chance.random() < 0.02:
        headers = []
    return Sent(key, b"v", tuple(headers))


def read_by_spark(records: DataFrame) -> DataFrame:
    """As Spark's Kafka source hands them out: a partition in one task, in the order of its offsets."""
    return records.repartition(3, "partition").sortWithinPartitions("partition", "offset")


def known_of(rows: list[tuple[Any, ...]]) -> Known:
    """What a store hands to the tasks."""

    def look(partition: int, identities: Sequence[bytes]) -> Iterator[tuple[bytes, int, Sequence[int] | None]]:
        asked = set(identities)
        for of, identity, last, *seen in rows:
            if of == partition and bytes(identity) in asked:
                yield bytes(identity), last, seen[0] if seen else None

    return look


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """A task has many batches of a slice."""
    before = spark.conf.get(BATCH_RECORDS)
    spark.conf.set(BATCH_RECORDS, "40")
    yield
    spark.conf.set(BATCH_RECORDS, before or "")


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=() if rule in (RULES[0], RULES[6]) else pytest.mark.matrix) for rule in RULES],
    ids=[f"{','.join(r.identity)} {r.sequence} {r.reorder_window}" for r in RULES],
)
def test_random_slices_have_the_workers_verdicts(
    rule: JudgeRule, spark: SparkSession, small_batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "CHUNK_BYTES", 20_000)  # so that a task judges in several steps, and looks up in each
    monkeypatch.setattr(task, "STATE_ROWS", 3)
    chance = random.Random(f"{rule}")
    plain = [Plain(rule), Plain(rule)]
    given = [[drawn(rule, chance) for _ in range(500)] for _ in plain]
    if rule.sequence_header is not None:  # each once, whatever is drawn
        given[0] += [
            Sent(b"k", b"v", (*((name, b"c") for name in rule.headers if name), (rule.sequence_header, number)))
            for number in sequences_for(rule)
        ]
    known: list[Any] = []
    at, runs = [0, 0], 0
    verdicts: dict[tuple[int, int], str] = {}
    while any(place < len(records) for place, records in zip(at, given, strict=True)):
        slices = [chance.choice([0, 1, 190, 260, 300]) for _ in plain]
        rows, expected = [], {}
        for partition, size in enumerate(slices):
            part = given[partition][at[partition] : at[partition] + size]
            for n, (record, verdict) in enumerate(
                zip(part, plain[partition].judge(part, at[partition]) if part else [], strict=True)
            ):
                offset = at[partition] + n
                headers = list(record.headers) or None
                rows.append((record.key, record.value, "t", partition, offset, WHEN, 0, headers))
                if verdict != "duplicate":
                    expected[partition, offset] = verdict
            at[partition] += len(part)
        chance.shuffle(rows)
        slice_ = read_by_spark(spark.createDataFrame(rows, KAFKA))
        with judged(slice_, rule, known_of(known) if known else None) as found:
            assert found.fresh.columns == ["partition", "offset", "timestamp", "key", "value"]
            got = {(each.partition, each.offset): "fresh" for each in found.fresh.collect()}
            got |= {(each.partition, each.offset): each[-1] for each in found.rejected.collect()}
            changed = [tuple(each) for each in found.sequences.collect()]
            assert len({(each[0], bytes(each[1])) for each in changed}) == len(changed)
            known += changed
        assert got == expected
        verdicts |= expected
        runs += 1
        if runs % 2 == 0:  # as compaction does
            known = [
                tuple(each) for each in merged(spark.createDataFrame(known, sequences_schema(rule)), rule).collect()
            ]
    whole = [
        (record.key, record.value, "t", partition, offset, WHEN, 0, list(record.headers) or None)
        for partition, part in enumerate(given)
        for offset, record in enumerate(part)
    ]
    with judged_at_once(spark.createDataFrame(whole, KAFKA), rule) as (fresh, rejected):
        got = {(each.partition, each.offset): "fresh" for each in fresh.collect()}
        got |= {(each.partition, each.offset): each[-1] for each in rejected.collect()}
    assert got == verdicts
    final = spark.createDataFrame(known, sequences_schema(rule))
    for partition, each in enumerate(plain):
        stored = {
            bytes(row._identity): row[LAST]
            for row in merged(final, rule).collect()
            if row._kafka_partition == partition
        }
        assert stored == {identity: each.table.get(identity).persisted for identity in stored}
        assert len(stored) == len(each.table)
    if rule.reorder_window:
        assert all(row[LAST] - rule.reorder_window <= s < row[LAST] for row in final.collect() for s in row[SEEN])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"identity": ("field:id",)}, "identity 'field:id': with from_input, Spark reads"),
        ({"identity": ("function:m:f",)}, "Spark reads"),
        ({"identity": ("producer", "key")}, "producer cannot be one of several parts"),
        ({"identity": ("key", "key")}, "names key twice"),
        ({"identity": ()}, "1 to 8 of these parts"),
        ({"sequence": "field:n"}, "reads sequences from header:NAME or none"),
        ({"sequence": "function:m:f"}, "Or let workers judge"),
        ({"sequence": "header:"}, "header:NAME"),
        ({"sequence": "none"}, "lets one record of each identity pass"),
        ({"late": "dead-letter"}, "this stream has none"),
        ({"reorder_window": 5000}, "between 0 and 4096"),
        ({"identity": ("key",), "sequence": "none", "reorder_window": 5}, "need numbered records"),
    ],
)
def test_what_spark_does_not_judge_by_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionRefused, match=words):
        replace(JudgeRule("t"), **change)


@pytest.mark.parametrize(
    "given", ["producer", "key", "header:a, b", "key, header:x", '["header:a, b", "key"]', "header:x,key", "field:a.b"]
)
def test_an_identity_is_written_as_in_the_settings(given: str) -> None:
    assert list(identity_parts(given)) == [str(part) for part in Identity.parse(given).parts]


def test_records_that_are_not_in_the_order_of_their_offsets_are_an_error() -> None:
    """Spark's source reads a partition so; whatever else would come, verdicts would be wrong without a word."""
    columns = {
        "partition": pa.array([0, 0, 0], pa.int32()),
        "offset": [4, 6, 5],
        "timestamp": pa.array([WHEN] * 3, pa.timestamp("us", "UTC")),
        "key": [b"k"] * 3,
        "value": [b"v"] * 3,
        "_ratchet_replayed": [False] * 3,
        "_ratchet_identity": [b"a"] * 3,
        "_ratchet_sequence": [1, 2, 3],
        "_ratchet_reason": pa.nulls(3, pa.string()),
        "_ratchet_doubtful": pa.nulls(3, pa.binary()),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    rule = RULES[0]
    assert [each.num_rows for each in judging(rule, None)([batch.slice(0, 2), batch.slice(0, 0)])] == [2, 1]
    for wrong in ([batch], [batch.slice(1, 1), batch.slice(0, 1)], [batch.slice(0, 1), batch.slice(0, 1)]):
        with pytest.raises(ValueError, match="partition 0: the records are not in the order of their offsets"):
            list(judging(rule, None)(wrong))


def numbered(numbers: Sequence[int], size: int = 1_000) -> list[pa.RecordBatch]:
    """Records of one identity with these sequences, `size` of them in a batch; a negative one is a reject."""
    count = len(numbers)
    columns = {
        "partition": pa.array([0] * count, pa.int32()),
        "offset": list(range(count)),
        "timestamp": pa.array([WHEN] * count, pa.timestamp("us", "UTC")),
        **{name: [b"k"] * count for name in ("key", "value")},
        "_ratchet_replayed": [False] * count,
        "_ratchet_identity": [b"a"] * count,
        "_ratchet_sequence": pa.array([number if number >= 0 else None for number in numbers], pa.int64()),
        "_ratchet_reason": [None if number >= 0 else "sequence-negative" for number in numbers],
        "_ratchet_doubtful": [number.to_bytes(8, "big", signed=True) for number in numbers],
    }
    whole = pa.RecordBatch.from_pydict(columns)
    return [whole.slice(begin, size) for begin in range(0, count, size)]


@pytest.mark.parametrize("size", [1, 1_000])
def test_little_endian_numbers_are_an_error_before_one_is_dropped(size: int) -> None:
    misread = [int.from_bytes(n.to_bytes(8, "little"), "big", signed=True) for n in range(1, 300)]
    with pytest.raises(ValueError, match=r'offset 1, identity .* Set sequence_form = "little-endian"'):
        list(judging(JudgeRule("t"), None)(numbered(misread, size)))
    stated = judging(JudgeRule("t", sequence_form="integer"), None)(numbered(misread, size))
    assert sum(each.num_rows for each in stated) > 0
    right = [
        *range(300),
        *range(100),
        *(18 * 10**17 + n * 4_194_304 for n in range(300)),
        *(n << 40 for n in range(300)),
    ]
    assert sum(each.num_rows for each in judging(JudgeRule("t"), None)(numbered(right, size))) == 601


def bits(number: float) -> int:
    """Return the eight bytes of a big-endian double as an integer."""
    (found,) = struct.unpack(">q", struct.pack(">d", number))
    return int(found)


def test_big_endian_doubles_are_no_little_endian_numbers() -> None:
    for numbers in ([3, 196_608], [196_608, 5, 196_609], [2**40, *range(1, 30)]):
        found = judging(JudgeRule("t"), None)(numbered([bits(number) for number in numbers]))
        new = {number for number in numbers if number >= numbers[0]}
        assert sum(each.num_rows for each in found) == len(new) + 1  # and the last sequence


def test_the_form_of_a_number_is_judged_as_a_worker_judges_it() -> None:
    """Streams of one identity: doubles, little-endian and big-endian counters, some sent again, some far ahead."""
    draw = random.Random(33)
    halted = 0
    for _ in range(400):
        first, step = draw.choice((1, 3, 200, 65_000, 2**40)), draw.choice((1, 7, 2**17))
        counted = [first + step * n for n in range(draw.randrange(2, 30))]
        counted += draw.choices([*counted, 1, 2**33], k=3)
        form = draw.choice(("double", "little", "big"))
        if form == "double":
            numbers = [bits(number) for number in counted]
        else:
            numbers = [
                int.from_bytes(number.to_bytes(8, "little" if form == "little" else "big")) for number in counted
            ]
        numbers = [number for number in numbers if number < 2**63]
        look, last = FormFinder("h"), -1
        for offset, number in enumerate(numbers):
            look.add(offset, number.to_bytes(8, "big"), last)
            last = max(last, number)
        look.finish()
        expected = None if look.found is None else look.found[0]
        try:
            list(judging(JudgeRule("t"), None)(numbered(numbers)))
            found = None
        except ValueError as error:
            found = int(str(error).partition("offset ")[2].partition(",")[0])
            halted += 1
        assert found == expected, (form, counted)
    assert halted > 50


def seen_by_spark(spark: SparkSession, streams: list[list[tuple[int, bytes]]]) -> list[tuple[int, str] | None]:
    """Offset and sentence of the first doubt of each stream, of an owner's number and a sequence for each record."""
    rule = JudgeRule("t", ("key",), "header:n")
    rows = [
        (b"%d" % owner, b"v", "t", partition, offset, WHEN, 0, [("n", text)])
        for partition, stream in enumerate(streams)
        for offset, (owner, text) in enumerate(stream)
    ]
    read = to_arrow(reading.read(spark.createDataFrame(rows, KAFKA), rule)).sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )
    found: list[tuple[int, str] | None] = []
    for partition in range(len(streams)):
        try:
            list(judging(rule, None)(read.filter(pc.equal(read["partition"], partition)).to_batches()))
            found.append(None)
        except ValueError as error:
            place = re.search(r"offset (\d+)", str(error))
            assert place is not None
            found.append((int(place[1]), str(error)))
    return found


def seen_elsewhere(stream: list[tuple[int, bytes]]) -> tuple[int, str] | None:
    """Return what a worker says of the records as one batch; of hexadecimal texts, what verify says.

    A worker counts the texts of a whole batch, verify and Spark one after the other.
    """
    texts, owners = [text for _, text in stream], [owner for owner, _ in stream]
    found, before = by_worker(texts, owners, len(texts)), against(texts, owners)
    if found is None or found[1] == number_forms.HEXADECIMAL:
        look = FormFinder("n")
        for offset, (text, last) in enumerate(zip(texts, before, strict=True)):
            look.add(offset, text, last)
        look.finish()
        return look.found
    row, form = found
    return row, number_forms.sentence(number_forms.DoubtfulSequence(row, form), "n", texts[row], before[row])


@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=pytest.mark.matrix)])
def test_spark_halts_where_a_worker_doubts_and_nowhere_else(spark: SparkSession, count: int) -> None:
    streams = {name: [(0, text) for text in sent[:count]] for name, (sent, _, _) in MISREAD.items()}
    for name, sent in RIGHT.items():
        streams[name] = [(0, text) for text in sent[:count]]
        streams[f"{name}, twice"] = [(0, text) for text in sent[: count // 2] * 2]
        streams[f"{name}, side by side"] = [(owner, text) for text in sent[: count // 5] for owner in range(5)]
    for text in [*SEQUENCES, *hostile.LOOKS_LIKE_TEXT]:
        streams[repr(text[:20])] = [(0, b"5"), (0, text), (0, b"6"), (1, text)]
    streams |= {f"{name}, after zero": [(0, bytes(8)), *stream[:30]] for name, stream in streams.items()}
    for name, (sent, _, _) in MISREAD.items():  # among producers that write otherwise
        streams[f"{name}, and others"] = [
            each for n, text in enumerate(sent[:count]) for each in ((0, big(n)), (1, text), (2, b"%d" % n))
        ]
    found = seen_by_spark(spark, list(streams.values()))
    for (name, stream), said in zip(streams.items(), found, strict=True):
        expected = seen_elsewhere(stream)
        assert (said and said[0]) == (expected and expected[0]), name
        if expected is not None and said is not None:
            assert said[1].endswith(f": {expected[1]}"), (name, said[1], expected[1])
    assert sum(each is not None for each in found) > 2.5 * len(MISREAD) + len(hostile.LOOKS_LIKE_TEXT)


def test_executors_need_nothing_of_this_package(tmp_path: Path) -> None:
    """The task with last sequences in a file that it has to look through, in a Python that has no kafka_ratchet."""
    files, rule = tmp_path / "files", replace(RULES[0], reorder_window=5)
    files.mkdir()
    kept = {"_kafka_partition": pa.array([0, 1], pa.int32()), "_identity": [b"a", b"a"], LAST: [1, 9], SEEN: [[0], [8]]}
    pq.write_table(pa.table(kept), files / "part")
    for of in (0, -1):  # a file of one partition, and one of several, as earlier commits wrote them
        known = looking([(str(files / "part"), of)], None, has_seen=True)
        (tmp_path / "task").write_bytes(cloudpickle.dumps(judging(rule, known)))  # type: ignore[no-untyped-call]
        columns = {
            "partition": pa.array([0, 0, 0], pa.int32()),
            "offset": [4, 5, 6],
            "timestamp": pa.array([WHEN] * 3, pa.timestamp("us", "UTC")),
            **{name: [b"k", b"k", b"k"] for name in ("key", "value")},
            "_ratchet_replayed": [False] * 3,
            "_ratchet_identity": [b"a"] * 3,
            "_ratchet_sequence": [1, 2, 0],
            "_ratchet_reason": pa.nulls(3, pa.string()),
            "_ratchet_doubtful": [b"", b"\0" * 7 + b"\2", None],
        }
        batch = pa.RecordBatch.from_pydict(columns)
        with pa.OSFile(str(tmp_path / "batch"), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        script = (
            "import pickle, sys, pyarrow as pa; task = pickle.load(open('task', 'rb')); "
            "batch = pa.ipc.open_file('batch').get_batch(0); made = pa.Table.from_batches(task([batch])); "
            "print(made['offset'].to_pylist(), made['_last'].to_pylist(), made['_seen'].to_pylist()); "
            "print('kafka_ratchet' in sys.modules)"
        )
        run = subprocess.run(
            [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert run.stdout == "[5, None] [None, 2] [None, [0, 1]]\nFalse\n"
