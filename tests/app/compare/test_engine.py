"""File of a comparison: rows of a run that was cut off, and memory in large comparisons."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from kafka_ratchet.app.compare import engine as engine_module
from kafka_ratchet.app.compare.engine import ROWS_AT_ONCE, ComparisonCounts, Engine, RowFinding, RunConditions
from kafka_ratchet.app.compare.side import Rows
from kafka_ratchet.errors import SourceError

COMPARED = """
import json, resource, sys
from kafka_ratchet.verify import compare
found = compare(sys.argv[1], sys.argv[2], "id", memory_mb=256)
print(json.dumps({**found.as_dict(), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))
"""


def rows(first: int, count: int, part: int = 0) -> Rows:
    numbers = range(first, first + count)
    return Rows([str(n) for n in numbers], [""] * count, [part] * count, list(numbers), [-1] * count)


def test_rows_of_a_run_that_was_cut_off_do_not_count(tmp_path: Path) -> None:
    """They are in the file, since rows are inserted piece by piece, and the next run removes them."""
    state = tmp_path / "state"
    with Engine(256, state) as engine:
        engine.begin()
        engine.add("source", rows(0, 10))
        engine.add("source", rows(0, 3, part=1))
        engine.keep("types", "number")
        engine.commit({"source": {0: 10, 1: 3}})
    with Engine(256, state) as engine:  # of a process that was killed
        engine.begin()
        engine.keep("types", "text")
        engine.keep_gap("source", 0, 10, 12)
        engine.add("source", rows(12, ROWS_AT_ONCE))
        engine.add("source", rows(0, ROWS_AT_ONCE, part=2))
        assert engine.count("source") == 13 + 2 * ROWS_AT_ONCE
        assert (engine.kept("types"), engine.gaps("source")) == ("text", [(0, 10, 12)])
    with Engine(256, state) as engine:
        engine.begin()
        assert engine.count("source") == 13
        assert (engine.kept("types"), engine.gaps("source")) == ("number", [])
        assert engine.progress("source") == {0: 10, 1: 3}
        engine.add("source", rows(10, 5))
        engine.commit({"source": {0: 15, 1: 3}})
        counted, _ = engine.compare(RunConditions())
        assert (engine.count("source"), counted.lost) == (18, 15)  # 0 to 2 are in both partitions


def test_rows_that_do_not_fit_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    with Engine(256) as engine:
        engine._db.execute("SET memory_limit = '1MB'")
        engine.begin()
        with pytest.raises(SourceError, match="Give it more memory"):
            engine.add("source", rows(0, ROWS_AT_ONCE))


@pytest.mark.matrix
def test_a_comparison_in_want_of_memory_takes_fewer_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    compare = Engine._compare

    def watched(engine: Engine, terms: RunConditions, buckets: int) -> tuple[ComparisonCounts, list[RowFinding]]:
        taken.append(buckets)
        return compare(engine, terms, buckets)

    monkeypatch.setattr(engine_module, "ROW_BYTES", 1)
    monkeypatch.setattr(Engine, "_compare", watched)
    with Engine(256) as engine:
        engine.begin()
        for first in range(0, 500_000, ROWS_AT_ONCE):
            engine.add("source", rows(first, ROWS_AT_ONCE))
            engine.add("target", rows(first + 7, ROWS_AT_ONCE))
        engine.commit({})
        engine._db.execute("SET memory_limit = '24MB'")
        counted, found = engine.compare(RunConditions())
    assert (counted.lost, counted.unexpected, len(found)) == (7, 7, 14)
    assert taken[:2] == [1, 4]


@pytest.mark.parametrize(("others_mb", "share_mb"), [(200, 154), (300, 112), (2000, 77)])
def test_a_process_that_has_grown_leaves_less_to_a_comparison(
    others_mb: int, share_mb: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_resident_mb", lambda: others_mb)
    with Engine(512) as engine:
        engine.begin()
        engine.add("source", rows(0, 50))
        engine.add("target", rows(7, 50))
        engine.commit({})
        counted, _ = engine.compare(RunConditions())
        (limit,) = engine._one("SELECT value FROM duckdb_settings() WHERE name = 'memory_limit'")
    assert (counted.lost, counted.unexpected) == (7, 7)
    assert abs(float(limit.split()[0]) * 2**20 / 10**6 - share_mb) < 6  # in MiB; its own part is some MB


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """2,000,000 identities take little more than 100,000; in one transaction it had been 208 MB more."""
    peaks = []
    for count in (100_000, 2_000_000):
        sides = [tmp_path / f"{side}{count}.parquet" for side in ("source", "target")]
        for side, last in zip(sides, (count, count - 7), strict=True):
            pa.parquet.write_table(pa.table({"id": range(last)}), side)
        command = [sys.executable, "-c", COMPARED, *(f"parquet:{side}" for side in sides)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        assert (found["source_rows"], found["lost"], found["unexpected"]) == (count, 7, 0)
        peaks.append(found["peak_mb"])
    assert peaks[1] - peaks[0] < 150
