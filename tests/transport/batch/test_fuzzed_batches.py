"""Damaged batches are read as the slow reading reads them, or refused by name; nothing else ever happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kafka_ratchet.errors import BatchTooLarge, CorruptBatch
from kafka_ratchet.transport.batch import decompression, kernels
from kafka_ratchet.transport.batch.chunk import BATCH_MOST, read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from tests.transport.batch.known_batches import columns_of, wanted, wanted_slowly
from tests.transport.batch.mutated_batches import ABORTED, NAME, OTHER, Mutated, mutate
from tests.transport.batch.slow_reading import Reading, Unreadable, decompress, read_slowly

SEED = 20_260_704
ROOT = Path(__file__).parents[3]

AROUND = 64
"""bytes on either side of a chunk, filled in two ways: what is read of it must be the same both times."""

REASONS = {
    "too short": "length",
    "record format": "magic",
    "checksum": "checksum",
    "do not fit": "records",
    "begins before": "goes backwards",
    "impossible last offset": "offsets",
    "its header states": "count",
    "transaction marker": "marker",
    "unknown compression": "codec",
    "cannot be decompressed": "compressed bytes",
    "unpacks to": "too large",
    "no whole record batch": "no whole batch",
}
"""Text of each refusal, and its name in the counts."""


def read(chunk: bytes, start: int, fill: bytes) -> RecordBatch | str:
    """Columns, or what the refusal says. The chunk lies in the midst of other bytes."""
    room = bytearray(fill * AROUND + chunk + fill * AROUND)
    within = memoryview(room)[AROUND : AROUND + len(chunk)].toreadonly()
    try:
        return read_chunk(
            "t", 3, start, within, [(ABORTED, 0)], sequence_header=NAME.encode(), identity_header=OTHER.encode()
        )
    except (CorruptBatch, BatchTooLarge) as error:
        return str(error)


def of_the_same_library(codec: int, data: bytes) -> bytes:
    """Decompression as transport does it: libraries differ in which damage they notice."""
    if not codec:
        return data
    try:
        room = np.empty(BATCH_MOST, np.uint8)
        return room[: decompression.decompress_into(codec, memoryview(data), room)].tobytes()
    except Exception as error:
        raise Unreadable(f"{codec}: {error}") from error


def slowly(mutated: Mutated) -> Reading | None:
    """None where the chunk is unreadable."""
    try:
        return read_slowly(
            mutated.start, mutated.chunk, [(ABORTED, 0)], of_the_same_library if mutated.foreign else decompress
        )
    except Unreadable:
        return None


def inside(batch: RecordBatch) -> bool:
    """Every span lies within the bytes of the batch, and within its record."""
    size = len(batch.data)
    body, end = batch.columns[kernels.BODY], batch.columns[kernels.BODY_END]
    sound = bool(((body >= 0) & (body <= end) & (end <= size)).all())
    for row in (kernels.KEY, kernels.VALUE, kernels.FIRST, kernels.SECOND):
        at, length = batch.columns[row], batch.columns[row + 1]
        sound &= bool(((length < 0) | ((at >= body) & (at + length <= end))).all())
    return sound


def judge(mutated: Mutated) -> str:
    """Read a chunk, and return "read" or the reason of its refusal; a wrong result is an AssertionError."""
    first, second = (read(mutated.chunk, mutated.start, fill) for fill in (b"\x00", b"\xff"))
    slow = slowly(mutated)
    if isinstance(first, str) or isinstance(second, str):
        assert first == second
        assert slow is None, "the slow reading can read it"
        assert re.match(r"t, partition 3, record batch at offset -?\d+: .", str(first))
        return next(name for words, name in REASONS.items() if words in str(first))
    assert slow is not None, "the slow reading refuses it"
    assert inside(first)
    assert (first.next, first.columns.tolist()) == (second.next, second.columns.tolist())
    assert first.next == slow.next
    shown = [
        record._replace(headers=[(name.decode("utf-8", "replace").encode(), value) for name, value in record.headers])
        for record in slow.records
    ]
    assert columns_of(first) == shown == columns_of(second)
    for i, record in enumerate(slow.records):
        assert wanted(first, i, kernels.FIRST) == wanted_slowly(record, NAME.encode())
        assert wanted(first, i, kernels.SECOND) == wanted_slowly(record, OTHER.encode())
    return "read" if first.count else "read: nothing in it"


def fuzz(seed: int, first: int, count: int) -> Counter[str]:
    """Judges chunks first to first + count; the failure says how to see its chunk again."""
    seen: Counter[str] = Counter()
    for index in range(first, first + count):
        mutated = mutate(seed, index)
        try:
            seen[judge(mutated)] += 1
        except BaseException as error:
            error.add_note(f"{mutated.kinds}; again: judge(mutate({seed}, {index}))")
            raise
    return seen


def test_twenty_thousand_mutated_chunks() -> None:
    seen = fuzz(SEED, 0, 20_000)
    assert set(seen) == {"read", "read: nothing in it", *REASONS.values()}, seen
    assert seen["read"] > 2_000  # not everything is refused at the door


WITH_BOUNDS = """
import sys
sys.path[:0] = sys.argv[1:3]
import numpy as np
from numba import config, njit
assert config.BOUNDSCHECK
try:
    njit(lambda data, at: data[at])(np.zeros(3, np.uint8), 3)
except IndexError:
    pass
else:
    sys.exit("bounds are not checked")
import test_fuzzed_batches as tests
print(sum(tests.fuzz(tests.SEED + 1, 0, int(sys.argv[3])).values()))
"""


@pytest.mark.matrix  # everything is compiled once more
def test_compiled_code_that_checks_its_bounds_finds_no_read_outside(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WITH_BOUNDS, str(ROOT), str(Path(__file__).parent), "5000"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["5000"]


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_million_mutated_chunks() -> None:
    began = time.monotonic()
    seen = fuzz(SEED + 2, 0, 1_000_000)
    print(f"\n{seen.total()} chunks in {time.monotonic() - began:.0f} s: {dict(seen.most_common())}")
    assert set(seen) == {"read", "read: nothing in it", *REASONS.values()}


def test_the_same_seed_and_index_make_the_same_chunk() -> None:
    assert [mutate(SEED, index) for index in range(50)] == [mutate(SEED, index) for index in range(50)]
    assert len({mutate(SEED, index).chunk for index in range(50)}) > 40
