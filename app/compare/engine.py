"""Comparison in DuckDB, with bounded memory: the rows of both sides are stored in a file."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from kafka_ratchet.app.compare.bounds import Bound
from kafka_ratchet.app.compare.side import UNKNOWN_MS, Rows
from kafka_ratchet.app.compare.values import NO_FIELDS
from kafka_ratchet.errors import SettingsError, SourceError

Name = Literal["source", "target"]
Verdict = Literal["lost", "doubled", "altered", "unexpected", "in_flight"]

VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

MEMORY_LEAST_MB: Final = 256
"""Minimum memory of a comparison in MB; Python, both clients and Arrow take some 150 of them."""

ENGINE_SHARE: Final = 0.3
"""Share of the memory that DuckDB may take; the rest is for Python, Arrow and the clients."""

OUTSIDE_MB: Final = 100
"""Memory in MB that DuckDB takes beyond its limit: buffers of its threads, and results."""

ROW_BYTES: Final = 128
"""Assumed bytes of memory for one row, without its texts; they limit the rows compared at a time.

With 64, a comparison of 6,000,000 ids sometimes ran out of memory at 77 MB for DuckDB.
"""

REDUCTIONS: Final = 3
"""Maximum number of restarts after a lack of memory. Each restart compares a quarter as many rows at a time."""

THREADS_MOST: Final = 4
"""Maximum number of threads of DuckDB; each takes memory of its own, in part outside of the limit."""

ROWS_AT_ONCE: Final = 245_760
"""Rows inserted by one statement: two row groups, because DuckDB writes whole groups to the file without a log."""

BYTES_AT_ONCE: Final = 32 * 1024 * 1024
"""Maximum bytes inserted by one statement; with long texts it inserts fewer rows."""

PLACES_MOST: Final = 10
"""Maximum number of places listed for one doubled identity."""

STATE_FORMAT: Final = 1
"""Format of state files. After a release, raise it with each change of the tables or of the texts made from values."""

TABLES: Final = """
CREATE TABLE IF NOT EXISTS source (identity VARCHAR, content VARCHAR, part INTEGER, position BIGINT, ms BIGINT);
CREATE TABLE IF NOT EXISTS target (identity VARCHAR, content VARCHAR, part INTEGER, position BIGINT, ms BIGINT);
CREATE TABLE IF NOT EXISTS progress (side VARCHAR, part INTEGER, next BIGINT);
CREATE TABLE IF NOT EXISTS gaps (side VARCHAR, part INTEGER, first BIGINT, next BIGINT);
CREATE TABLE IF NOT EXISTS about (name VARCHAR, value VARCHAR);
CREATE TEMP TABLE edges (part INTEGER, edge BIGINT);
"""
"""Statements that create the tables. A row without an identity has null as its identity. gaps: offsets that were
deleted before they were read."""

SORTED_FROM: Final = 3
"""Minimum number of buckets for sorting the rows by bucket. Without sorting, each bucket reads all rows."""

SORTED: Final = """
CREATE OR REPLACE TABLE sorted.{side} AS
SELECT *, (hash(identity) % {buckets})::UINTEGER AS bucket FROM {side} WHERE identity IS NOT NULL ORDER BY bucket
"""

SORTED_ROWS_OF_BUCKET: Final = """
CREATE OR REPLACE TEMP VIEW {side}_bucket AS SELECT * EXCLUDE bucket FROM sorted.{side} WHERE bucket = {bucket}
"""
"""Query for the rows of one bucket, from sorted rows.

DuckDB skips row groups that have no row of the bucket, by their minimum and maximum values.
"""

ROWS_OF_BUCKET: Final = """
CREATE OR REPLACE TEMP VIEW {side}_bucket AS
SELECT * FROM {side} WHERE identity IS NOT NULL AND hash(identity) % {buckets} = {bucket}
"""

FINDINGS_OF_BUCKET: Final = """
CREATE OR REPLACE TEMP TABLE findings AS
SELECT identity, {missing} AS missing, {flying} AS flying, {surplus} AS surplus,
  CASE WHEN n = 0 THEN tn ELSE 0 END AS alien
FROM (
  SELECT identity, count(*) FILTER (is_source) AS n, count(*) FILTER (inside) AS n_in,
    count(*) FILTER (inside AND young) AS n_young, count(*) FILTER (NOT is_source) AS tn
  FROM (
    SELECT identity, TRUE AS is_source, {inside} AS inside, {young} AS young FROM source_bucket {edges}
    UNION ALL
    SELECT identity, FALSE, FALSE, FALSE FROM target_bucket
  )
  GROUP BY identity
)
WHERE missing > 0 OR flying > 0 OR surplus > 0 OR alien > 0
"""
"""Statement that finds the lost, doubled, unexpected and in-flight identities of a bucket.

Columns, each for one identity. n: number of rows of the source. n_in: number of these inside the bounds. n_young:
number of rows in n_in that count as in flight. tn: number of rows of the target
"""

PLACES: Final = """
CREATE OR REPLACE TEMP TABLE {side}_places AS
SELECT identity, min({{'part': part, 'position': position}}) AS place, min(ms) FILTER (ms >= 0) AS ms
FROM {side}_bucket SEMI JOIN findings USING (identity) WHERE {condition} GROUP BY identity
"""
"""Statement that finds the first place of the rows of each finding. Without findings, the statement reads no rows."""

PLACED: Final = """
CREATE OR REPLACE TEMP TABLE placed AS
SELECT findings.*, s.place AS splace, s.ms AS ms, t.place AS tplace
FROM findings LEFT JOIN source_places AS s USING (identity) LEFT JOIN target_places AS t USING (identity)
"""
"""Statement that adds the places to the findings.

It is separate from `PLACES`, because DuckDB 2.0 ordered the joins of one combined statement in a way that took much
memory.
"""

ONCE: Final = {
    "missing": "CASE WHEN tn = 0 AND n_in > n_young THEN 1 ELSE 0 END",
    "flying": "CASE WHEN tn = 0 AND n_in > 0 AND n_in = n_young THEN 1 ELSE 0 END",
    "surplus": "CASE WHEN n_in > 0 THEN greatest(tn - 1, 0) ELSE 0 END",
}
"""Expressions of the verdicts if the target must have each identity once.

The source may have it several times.
"""

AS_IS: Final = {
    "missing": "least(greatest(n - tn - n_young, 0), n_in)",
    "flying": "least(greatest(n - tn, 0), n_young)",
    "surplus": "CASE WHEN n_in > 0 THEN greatest(tn - n, 0) ELSE 0 END",
}
"""Expressions of the verdicts if the target must have each identity as often as the source (--as-is)."""

ALTERED: Final = f"""
CREATE OR REPLACE TEMP TABLE altered AS
SELECT identity, content, part, position
FROM (
  SELECT * FROM target_bucket AS target ANTI JOIN source_bucket AS source
  ON source.identity = target.identity AND source.content = target.content
  WHERE content <> '{NO_FIELDS}'
)
SEMI JOIN (SELECT identity FROM source_bucket WHERE {{inside}}) USING (identity)
ANTI JOIN (SELECT identity FROM source_bucket WHERE content = '{NO_FIELDS}') USING (identity)
"""  # noqa: S608 - a constant
"""Statement that finds altered rows: no source record with the row's identity has the row's content."""

EXCESS: Final = """
CREATE OR REPLACE TEMP TABLE excess AS
SELECT identity, content, n FROM (
  SELECT identity, content, count(*) FILTER (is_source) AS n, count(*) FILTER (NOT is_source) AS tn FROM (
    SELECT identity, content, TRUE AS is_source FROM source_bucket
    UNION ALL
    SELECT identity, content, FALSE FROM target_bucket
  )
  GROUP BY identity, content
)
WHERE n > 0 AND tn > n
"""
"""Statement that finds contents of an identity more frequent in the target than in the source."""

ALTERED_AS_IS: Final = f"""
INSERT INTO altered
SELECT identity, content, part, position FROM (
  SELECT *, row_number() OVER (PARTITION BY identity ORDER BY part, position) AS spare FROM (
    SELECT target.*, n, row_number() OVER (PARTITION BY identity, content ORDER BY part, position) AS number
    FROM target_bucket AS target JOIN excess USING (identity, content)
  )
  WHERE number > n
)
LEFT JOIN findings USING (identity)
SEMI JOIN (SELECT identity FROM source_bucket WHERE {{inside}}) USING (identity)
ANTI JOIN (
  SELECT identity FROM source_bucket WHERE content = '{NO_FIELDS}'
  UNION ALL SELECT identity FROM target_bucket WHERE content = '{NO_FIELDS}'
) USING (identity)
WHERE spare > coalesce(surplus, 0)
"""  # noqa: S608 - a constant
"""Statement for --as-is that adds the rows of surplus contents, except those counted as doubled."""

TEMPORARY: Final = ("findings", "source_places", "target_places", "placed", "altered", "excess", "chosen")
"""Temporary tables of a comparison."""

LISTED: Final[tuple[tuple[Verdict, str], ...]] = (
    ("lost", "missing"),
    ("in_flight", "flying"),
    ("doubled", "surplus"),
    ("unexpected", "alien"),
)
"""Pairs of a verdict and the column with its count."""

CHOSEN: Final = """
SELECT chosen.identity, any_value(splace), any_value(chosen.n),
  coalesce(list({'part': part, 'position': position} ORDER BY part, position) FILTER (part IS NOT NULL), [])
FROM chosen LEFT JOIN target_bucket AS target ON target.identity = chosen.identity
GROUP BY chosen.identity ORDER BY coalesce(any_value(splace), any_value(tplace))
"""

ALTERED_CHOSEN: Final = """
SELECT chosen.identity, any_value(chosen.content), {'part': chosen.part, 'position': chosen.position} AS place,
  arg_min(source.content, {'part': source.part, 'position': source.position}),
  min({'part': source.part, 'position': source.position})
FROM chosen JOIN source_bucket AS source ON source.identity = chosen.identity AND source.content <> chosen.content
GROUP BY chosen.identity, chosen.part, chosen.position ORDER BY place
"""


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Conditions of one run of a comparison.

    as_is: True if the target has to hold each identity as often as the source.
    contents: True to compare contents
    since, until: bounds of the source's records to compare, by time or offset; None: all.
    cutoff_ms, latest_ms: a missing record with a time between these two counts as in flight. A time after latest_ms
        comes from a clock ahead of ours.
    edges: end of each partition of the source, before the target was read. Missing records from this offset on count as
        in flight. A partition without an edge was added later, so all its missing records count as in flight.
    sample: number of findings to list of each kind
    """

    as_is: bool = False
    contents: bool = False
    since: Bound | None = None
    until: Bound | None = None
    cutoff_ms: int = 2**62
    latest_ms: int = 2**62
    edges: Mapping[int, int] | None = None
    sample: int = 1000


@dataclass(slots=True)
class ComparisonCounts:
    """Counts of a comparison, and the listed findings.

    lost, in_flight: number of records of the source; doubled, altered, unexpected: number of rows of the target
    looked_for: records of the source inside the bounds
    oldest_ms: earliest timestamp in flight; None: nothing is in flight
    """

    lost: int = 0
    doubled: int = 0
    altered: int = 0
    unexpected: int = 0
    in_flight: int = 0
    looked_for: int = 0
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RowFinding:
    """Finding of a comparison, with the places of its rows.

    source: (part, position) of the source's row; targets: (part, position) of each row of the target
    """

    kind: Verdict
    identity: str
    source: tuple[int, int] | None
    targets: list[tuple[int, int]]
    count: int = 1
    expected: str | None = None
    found: str | None = None


class Engine:
    """DuckDB file that stores the rows of both sides, and compares them.

    It is a context manager, which removes temporary files at its end.

    Args:
        memory_mb: memory of the whole process, in MB.
        state: file that keeps the source's rows for the next run; None: a temporary file.

    Raises:
        SettingsError: the memory is too small, or DuckDB is not installed.
        SourceError: the file cannot be used.
    """

    def __init__(self, memory_mb: int, state: Path | None = None) -> None:
        if memory_mb < MEMORY_LEAST_MB:
            raise SettingsError(f"--memory-mb {memory_mb}: too small. Write {MEMORY_LEAST_MB} or more")
        try:
            import duckdb
            import pyarrow  # noqa: F401 - needed by each row that is kept
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"a comparison needs the package {error.name}, which is not installed: "
                "pip install 'kafka-ratchet[verify]'"
            ) from None
        self._errors, self._no_memory = duckdb.Error, duckdb.OutOfMemoryException
        self._all_mb, self._memory_mb = memory_mb, round(memory_mb * ENGINE_SHARE)
        folder = state.absolute().parent if state is not None else None
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="ratchet-verify-", dir=folder))
        except OSError as error:
            place = "TMPDIR" if state is None else f"--state {state}"
            other = "Set TMPDIR to another folder" if state is None else "Name a file in another folder"
            raise SourceError(f"{place}: no folder for temporary files can be made: {error}. {other}") from None
        self._sorted = self._folder / "sorted.duckdb"
        try:
            self._db = duckdb.connect(
                str(state or self._folder / "rows.duckdb"),
                config={
                    "memory_limit": f"{self._memory_mb}MB",
                    "temp_directory": str(self._folder),
                    "preserve_insertion_order": "false",
                    "threads": min(THREADS_MOST, os.cpu_count() or 1),
                },
            )
        except duckdb.Error as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise SourceError(
                f"--state {state}: the file cannot be used as a state file: {_line(error)}. Name another file"
            ) from None
        if state is None:
            self._db.execute("PRAGMA disable_checkpoint_on_shutdown")  # the file goes
        self._db.execute(TABLES)
        self._waiting: dict[Name, list[Any]] = {}
        """Arrow tables to insert later, by side."""
        self._new: dict[str, str] = {}
        """Values that `commit` stores in the file, by name."""
        self._new_gaps: list[tuple[Name, int, int, int]] = []
        self._is_reading = False

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and remove temporary files."""
        with suppress(self._errors):
            self._db.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- state

    def require_same(self, about: Mapping[str, str]) -> None:
        """Store a comparison's description in a new state file, or compare it with the one in an existing file.

        Raises:
            SettingsError: the file belongs to another comparison.
        """
        is_new = self.kept("format") is None
        for name, value in {"format": str(STATE_FORMAT), **about}.items():
            if is_new:
                self.keep(name, value)
            elif (kept := self.kept(name)) != value:
                raise SettingsError(
                    f"--state: the file belongs to another comparison, with {name} {kept!r} instead of {value!r}. "
                    "Name another file"
                )

    def kept(self, name: str) -> str | None:
        """Return the value that this run or an earlier one has stored under a name; None: there is none."""
        if name in self._new:
            return self._new[name]
        rows = self._db.execute("SELECT value FROM about WHERE name = ?", [name]).fetchall()
        return str(rows[0][0]) if rows else None

    def keep(self, name: str, value: str) -> None:
        """Store a value for later runs: at `commit` if a run has begun, else at once."""
        if self._is_reading:
            self._new[name] = value
        else:
            self._keep(name, value)

    def _keep(self, name: str, value: str) -> None:
        self._db.execute("DELETE FROM about WHERE name = ?", [name])
        self._db.execute("INSERT INTO about VALUES (?, ?)", [name, value])

    def keep_gap(self, side: Name, part: int, first: int, next_: int) -> None:
        """Store a gap of deleted offsets for later runs, at `commit`."""
        self._new_gaps.append((side, part, first, next_))

    def gaps(self, side: Name) -> list[tuple[int, int, int]]:
        """Return the gaps found by all runs, each as part, first offset, and offset after the last."""
        rows = self._db.execute("SELECT part, first, next FROM gaps WHERE side = ?", [side]).fetchall()
        return sorted([*rows, *(gap[1:] for gap in self._new_gaps if gap[0] == side)])

    def progress(self, side: Name) -> dict[int, int]:
        """Return for each part the offset at which to continue reading."""
        return dict(self._db.execute("SELECT part, next FROM progress WHERE side = ?", [side]).fetchall())

    def forget(self, side: Name) -> None:
        """Remove the rows of a side."""
        self._db.execute(f"DELETE FROM {side}")  # noqa: S608 - one of two words

    def begin(self) -> None:
        """Begin a run, and remove rows left by an interrupted run.

        Such rows have offsets above those of `progress`. Rows are inserted in pieces, because a transaction's memory
        grows with its rows.
        """
        self.roll_back()
        for side in get_args(Name):
            self._db.execute(
                f"DELETE FROM {side} WHERE position >= "  # noqa: S608 - one of two words
                f"coalesce((SELECT next FROM progress WHERE side = '{side}' AND part = {side}.part), 0)"
            )
        self._is_reading = True

    def roll_back(self) -> None:
        """Discard the values of the present run. The next `begin` removes its rows."""
        self._waiting, self._new, self._new_gaps, self._is_reading = {}, {}, [], False

    def commit(self, progress: Mapping[Name, Mapping[int, int]]) -> None:
        """Store the values of the run, and the offsets at which the next run continues."""
        for side in get_args(Name):
            self._insert(side)
        self._db.begin()
        for name, value in self._new.items():
            self._keep(name, value)
        if self._new_gaps:
            self._db.executemany("INSERT INTO gaps VALUES (?, ?, ?, ?)", self._new_gaps)
        for side, offsets in progress.items():
            self._db.execute("DELETE FROM progress WHERE side = ?", [side])
            if offsets:
                self._db.executemany(
                    "INSERT INTO progress VALUES (?, ?, ?)", [(side, part, at) for part, at in offsets.items()]
                )
        self._db.commit()
        self.roll_back()

    # -- rows

    def add(self, side: Name, rows: Rows) -> None:
        """Add rows; they are collected and inserted together.

        Raises:
            SourceError: memory or disk are too small.
        """
        import pyarrow as pa

        if not len(rows):
            return
        table = pa.table(
            {
                name: values if isinstance(values, pa.Array) else pa.array(values, type_)
                for name, values, type_ in (
                    ("identity", rows.identities, pa.string()),
                    ("content", rows.contents, pa.string()),
                    ("part", rows.parts, pa.int32()),
                    ("position", rows.positions, pa.int64()),
                    ("ms", rows.times, pa.int64()),
                )
            }
        )
        if rows.unreadable:
            table = table.set_column(1, "content", _with_no_fields(table.column(1), rows.unreadable))
        waiting = self._waiting.setdefault(side, [])
        waiting.append(table)
        if sum(map(len, waiting)) >= ROWS_AT_ONCE or sum(each.nbytes for each in waiting) >= BYTES_AT_ONCE:
            self._insert(side)

    def _insert(self, side: Name) -> None:
        """Insert the collected rows of a side."""
        import pyarrow as pa

        if not (waiting := self._waiting.pop(side, None)):
            return
        self._db.register("incoming", pa.concat_tables(waiting, promote_options="permissive"))
        try:
            self._db.execute(f"INSERT INTO {side} SELECT * FROM incoming")  # noqa: S608 - one of two words
        except self._errors as error:
            raise _stopped(error) from None
        finally:
            self._db.unregister("incoming")

    def count(self, side: Name) -> int:
        """Return the number of a side's rows with an identity."""
        return int(self._one(f"SELECT count(identity) FROM {side}")[0])  # noqa: S608 - one of two words

    def _bytes(self, side: Name) -> int:
        """Return the estimated size of a side's rows to compare, in bytes."""
        texts = f"coalesce(sum(strlen(identity) + strlen(content)), 0) FROM {side} WHERE identity IS NOT NULL"
        return int(self._one(f"SELECT {ROW_BYTES} * count(*) + {texts}")[0])

    def nameless(self, side: Name) -> tuple[int, tuple[int, int] | None]:
        """Return the number of a side's rows without an identity, and the place of the first.

        The place is (part, position); None if there are no such rows.
        """
        count, place = self._one(
            f"SELECT count(*), min({{'part': part, 'position': position}}) FROM {side} WHERE identity IS NULL"  # noqa: S608
        )
        return int(count), _place(place)

    def without_fields(self, side: Name) -> tuple[int, tuple[int, int] | None]:
        """Return the number of a side's rows without fields, and the place of the first.

        Only rows with an identity count. The place is (part, position); None if there are no such rows.
        """
        count, place = self._one(
            f"SELECT count(*), min({{'part': part, 'position': position}}) FROM {side} "  # noqa: S608
            f"WHERE content = '{NO_FIELDS}' AND identity IS NOT NULL"
        )
        return int(count), _place(place)

    # -- comparison

    def compare(self, terms: RunConditions) -> tuple[ComparisonCounts, list[RowFinding]]:
        """Compare both sides in buckets of identities.

        Raises:
            SourceError: memory or disk are too small.
        """
        try:
            self._db.execute("DELETE FROM edges")
            if terms.edges:
                self._db.executemany("INSERT INTO edges VALUES (?, ?)", list(terms.edges.items()))
            self._fit()
            size = self._bytes("source") + self._bytes("target")
            buckets = max(1, math.ceil(size / (self._memory_mb * 1024 * 1024)))
            for _ in range(REDUCTIONS):
                with suppress(self._no_memory):
                    return self._compare(terms, buckets)
                self._drop_temporary()
                self._db.execute("SET threads = 1")  # each takes memory of its own
                buckets *= 4
            return self._compare(terms, buckets)
        except self._errors as error:
            raise _stopped(error) from None
        finally:
            with suppress(self._errors):
                self._db.execute("DETACH DATABASE IF EXISTS sorted")
            self._sorted.unlink(missing_ok=True)

    def _fit(self) -> None:
        """Lower DuckDB's memory limit if the rest of the process takes more than its share.

        Compiled functions, and libraries that the readers load, stay in memory: up to 200 MB.
        """
        resident_mb = _resident_mb()
        (own,) = self._one("SELECT sum(memory_usage_bytes) FROM duckdb_memory()")
        left_mb = self._all_mb - OUTSIDE_MB - (resident_mb - int(own or 0) // 2**20)
        share_mb = max(round(MEMORY_LEAST_MB * ENGINE_SHARE), left_mb)
        if share_mb < self._memory_mb:
            self._memory_mb = share_mb
            self._db.execute(f"SET memory_limit = '{share_mb}MB'")

    def _compare(self, terms: RunConditions, buckets: int) -> tuple[ComparisonCounts, list[RowFinding]]:
        conditions = {"inside": _inside(terms), **_young(terms)}
        rows = f"SELECT count(*) FROM source WHERE identity IS NOT NULL AND {conditions['inside']}"  # noqa: S608
        counted, found = ComparisonCounts(looked_for=int(self._one(rows)[0])), dict[str, list[RowFinding]]()
        view = SORTED_ROWS_OF_BUCKET if buckets >= SORTED_FROM and self._sort(buckets) else ROWS_OF_BUCKET
        for bucket in range(buckets):
            for side in get_args(Name):
                self._db.execute(view.format(side=side, buckets=buckets, bucket=bucket))
            self._db.execute(FINDINGS_OF_BUCKET.format(**conditions, **(AS_IS if terms.as_is else ONCE)))
            if self._one("SELECT count(*) FROM findings")[0]:
                self._db.execute(PLACES.format(side="source", condition=conditions["inside"]))
                self._db.execute(PLACES.format(side="target", condition="TRUE"))
                self._db.execute(PLACED)
                self._count(counted)
                for each in self._listed(terms.sample, found):
                    found.setdefault(each.kind, []).append(each)
            if terms.contents:
                self._db.execute(ALTERED.format(**conditions))
                if terms.as_is:
                    self._db.execute(EXCESS)
                    self._db.execute(ALTERED_AS_IS.format(**conditions))
                counted.altered += int(self._one("SELECT count(*) FROM altered")[0])
                left = terms.sample - len(found.get("altered", ()))
                found.setdefault("altered", []).extend(self._altered(left))
        return counted, [each for kind in VERDICTS for each in found.get(kind, ())]

    def _sort(self, buckets: int) -> bool:
        """Sort the rows of both sides by bucket, in a separate file; return False if memory is too small.

        In a temporary table, sorted rows would stay in memory: after a first side of 50,000,000 rows, sorting the
        second side failed. The file is not compressed, because compression takes as much CPU as sorting.
        """
        place = str(self._sorted).replace("'", "''")
        self._db.execute(f"ATTACH IF NOT EXISTS '{place}' AS sorted")
        self._db.execute("SET force_compression = 'uncompressed'")
        try:
            with suppress(self._no_memory):
                for side in get_args(Name):
                    self._db.execute(SORTED.format(side=side, buckets=buckets))
                return True
            return False
        finally:
            self._db.execute("RESET force_compression")

    def _drop_temporary(self) -> None:
        for name in TEMPORARY:
            self._db.execute(f"DROP TABLE IF EXISTS {name}")

    def _count(self, counted: ComparisonCounts) -> None:
        lost, flying, surplus, alien, oldest = self._one(
            "SELECT sum(missing), sum(flying), sum(surplus), sum(alien), min(ms) FILTER (flying > 0) FROM placed"
        )
        counted.lost += int(lost)
        counted.in_flight += int(flying)
        counted.doubled += int(surplus)
        counted.unexpected += int(alien)
        if oldest is not None and oldest != UNKNOWN_MS:
            counted.oldest_ms = int(oldest) if counted.oldest_ms is None else min(counted.oldest_ms, int(oldest))

    def _listed(self, sample: int, found: Mapping[str, list[RowFinding]]) -> Iterator[RowFinding]:
        for kind, column in LISTED:
            left = sample - len(found.get(kind, ()))
            if left <= 0:
                continue
            self._db.execute(
                f"CREATE OR REPLACE TEMP TABLE chosen AS SELECT identity, splace, tplace, {column} AS n FROM placed "  # noqa: S608
                f"WHERE {column} > 0 ORDER BY coalesce(splace, tplace) LIMIT {left}"
            )
            for identity, place, count, targets in self._db.execute(CHOSEN).fetchall():
                shown = targets[:PLACES_MOST] if kind in ("doubled", "unexpected") else []
                places = [(each["part"], each["position"]) for each in shown]
                yield RowFinding(kind, identity, _place(place), places, int(count))

    def _altered(self, left: int) -> Iterator[RowFinding]:
        if left <= 0:
            return
        self._db.execute(
            f"CREATE OR REPLACE TEMP TABLE chosen AS SELECT * FROM altered ORDER BY part, position LIMIT {left}"  # noqa: S608
        )
        for identity, found, target, expected, source in self._db.execute(ALTERED_CHOSEN).fetchall():
            targets = [(target["part"], target["position"])]
            yield RowFinding("altered", identity, _place(source), targets, 1, expected, found)

    def _one(self, query: str) -> tuple[Any, ...]:
        (row,) = self._db.execute(query).fetchall()  # all: an open result blocks the connection
        return tuple(row)


def _with_no_fields(contents: Any, numbers: list[int]) -> Any:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = np.zeros(len(contents), bool)
    mask[numbers] = True
    return pc.if_else(pa.array(mask), pa.scalar(NO_FIELDS), contents)


def _place(place: Mapping[str, int] | None) -> tuple[int, int] | None:
    return None if place is None else (place["part"], place["position"])


def _resident_mb() -> int:
    """Return the resident memory of this process in MB; 0 on a system without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def _inside(terms: RunConditions) -> str:
    """Return the SQL condition for records to compare. Only numbers are inserted into the text."""
    conditions = ["TRUE"]
    for bound, sign in ((terms.since, ">="), (terms.until, "<")):
        if bound is None:
            continue
        if bound.ms is not None:
            conditions.append(f"(ms {sign} {bound.ms:d} OR ms < 0)")  # without a time: it may be in between
        elif bound.offset is not None:
            conditions.append(f"position {sign} {bound.offset:d}")
        else:
            cases = " ".join(f"WHEN {part:d} THEN position {sign} {at:d}" for part, at in bound.offsets.items())
            conditions.append(f"(CASE part {cases} ELSE TRUE END)")
    return "(" + " AND ".join(conditions) + ")"


def _young(terms: RunConditions) -> dict[str, str]:
    """Return two SQL parts by name: "young", the condition for records possibly in flight, and "edges", its join."""
    in_time = f"ms BETWEEN {terms.cutoff_ms:d} AND {terms.latest_ms:d}"
    if not terms.edges:
        return {"young": in_time, "edges": ""}
    return {  # a partition without an edge was added later
        "young": f"(position >= coalesce(edge, 0) OR {in_time})",
        "edges": "LEFT JOIN edges USING (part)",
    }


def _stopped(error: BaseException) -> SourceError:
    return SourceError(
        f"the comparison stopped: {_line(error)}. Give it more memory (--memory-mb), or a larger disk for temporary "
        "files (TMPDIR)"
    )


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
