"""A store of about 100 lines: a folder for each version of the table, with rows and job state in one JSON file.

A version is made under another name and renamed to its number. A folder cannot be renamed onto one that has files: of
two commits of one number the second fails.
"""

from __future__ import annotations

import base64
import errno
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.spark.dialect import arrow_schema, to_arrow
from kafka_ratchet.spark_sink.stores.decision import Decision
from kafka_ratchet.spark_sink.stores.iceberg.merge import merged
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.optimistic import OptimisticStore, Staged
from kafka_ratchet.spark_sink.stores.orphans import Orphan
from kafka_ratchet.spark_sink.stores.store import require_columns, rows_lost, tuples
from kafka_ratchet.spark_sink.stores.stored_write_mode import write_mode_text
from kafka_ratchet.spark_sink.topic_ids import StoredTopicId, text


@dataclass
class Version:
    number: int
    state: dict[str, Any]

    @property
    def schema(self) -> StructType:
        return StructType.fromJson(self.state["schema"])

    def rows(self) -> pa.Table:  # Arrow's own bytes: JSON has no dates, decimals and infinities
        return pa.ipc.open_stream(base64.b64decode(self.state["rows"])).read_all()

    def keep(self, rows: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        self.state |= {"rows": base64.b64encode(sink.getvalue()).decode(), "count": rows.num_rows}


class FolderStore(OptimisticStore[Version]):
    all_totals = True

    def _prepare(self, location: TableLocation) -> None:
        self._where = self._root = Path(location.path) / location.table

    def count(self) -> int:
        return int(self._for_reading().rows().num_rows)

    def rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        return tuples(self._for_reading().rows().select(list(columns)))

    def scan(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        yield from self._for_reading().rows().select(schema.names).to_batches()

    def columns(self) -> StructType | None:
        version = self._find()
        return None if version is None else version.schema

    def orphans(self, *, needed: bool = True) -> Iterator[Orphan]:
        staged = list(self._root.glob("staged.*"))
        version = self._existing() if needed else self._find()
        if version is None:
            return
        for folder in staged:
            _, job, generation, _ = folder.name.split(".")
            if int(generation) < version.state["jobs"][job]["generation"]:
                sizes = [file.stat().st_size for file in folder.iterdir()]
                yield Orphan(folder.name, sum(sizes), folder.stat().st_mtime, partial(shutil.rmtree, folder))

    def other_jobs(self) -> list[str]:
        version = self._find()
        found = []
        for job, kept in sorted(version.state["jobs"].items() if version is not None else ()):
            topic = kept["topics"].get(self._topic)
            if job != self._name and topic and not StoredTopicId(topic["id"]).is_other(self._topic_id):
                found.append(job)
        return found

    # -- the table

    def _find(self) -> Version | None:
        numbers = [int(folder.name) for folder in self._root.glob("*") if folder.name.isdecimal()]
        version = Version(max(numbers, default=0), {})
        self._refresh(version)
        return version if numbers else None

    def _refresh(self, version: Version) -> None:
        numbers = [int(folder.name) for folder in self._root.glob("*") if folder.name.isdecimal()]
        if numbers:
            version.number = max(numbers)
            version.state = json.loads((self._root / str(version.number) / "table.json").read_text("utf-8"))

    def _find_or_make(self, schema: StructType) -> Version:
        version = self._find()
        if version is None:
            version = Version(0, {"schema": schema.jsonValue(), "jobs": {}})
            version.keep(arrow_schema(schema).empty_table())
            self._publish(version, self._staged(0))
        self._require_fits(version, schema)
        return version

    def _require_fits(self, version: Version, schema: StructType) -> None:
        types = [{each.name: each.dataType.simpleString() for each in found} for found in (version.schema, schema)]
        require_columns(self._root, types[0], types[1])

    def _staged(self, generation: int) -> Path:
        folder = self._root / f"staged.{self._name}.{generation}.{uuid.uuid4().hex}"
        folder.mkdir(parents=True)
        return folder

    def _publish(self, version: Version, staged: Path) -> None:
        (staged / "table.json").write_text(json.dumps(version.state), "utf-8")
        staged.rename(self._root / str(version.number + 1))
        version.number += 1

    # -- what it says of the job

    def _job(self, version: Version) -> dict[str, Any]:
        found: dict[str, Any] = version.state["jobs"].setdefault(
            self._name, {"generation": 0, "rule": "", "topics": {}}
        )
        return found

    def _newest(self, version: Version) -> int:
        return int(self._job(version)["generation"])

    def _stored(self, version: Version) -> dict[int, int]:
        offsets = self._job(version)["topics"].get(self._topic, {"offsets": {}})["offsets"]
        return {int(partition): offset for partition, offset in offsets.items()}

    def _stored_id(self, version: Version) -> StoredTopicId:
        return StoredTopicId(self._job(version)["topics"].get(self._topic, {"id": ""})["id"])

    def _stored_write_mode(self, version: Version) -> str:
        return str(self._job(version)["rule"])

    def _require_consistent(self, version: Version) -> None:
        if version.rows().num_rows != version.state["count"]:
            raise rows_lost(self._root, "rows were removed")

    def _row_offsets(self, version: Version) -> dict[int, int]:
        return {}  # rows are only ever removed all at once

    # -- what changes it

    def _is_conflict(self, error: Exception) -> bool:
        return isinstance(error, OSError) and error.errno in {errno.ENOTEMPTY, errno.EEXIST}

    def _set(self, version: Version, generation: int, offsets: Mapping[int, int] | None) -> None:
        self._job(version)["generation"] = generation
        if offsets is not None:
            entry = {
                "offsets": {str(p): offset for p, offset in offsets.items()},
                "id": text(self._topic_id),
            }
            self._job(version)["topics"][self._topic] = entry
            self._job(version)["rule"] = write_mode_text(self._write_mode)

    def _write_take_over(
        self, version: Version, generation: int, offsets: Mapping[int, int] | None, decision: Decision | None
    ) -> None:
        self._set(version, generation, offsets)
        version.keep(version.rows())
        self._publish(version, self._staged(generation))

    def _stage(self, version: Version, dataframe: DataFrame, generation: int) -> Staged:
        wanted = version.rows().schema
        if DELETED in dataframe.columns:
            wanted = wanted.append(pa.field(DELETED, pa.bool_()))
        rows, self._folder = to_arrow(dataframe).select(wanted.names).cast(wanted), self._staged(generation)
        (self._folder / "rows").write_text(str(rows.num_rows))  # something for vacuum to weigh
        return Staged(rows.num_rows, arrow=rows)

    def _write(self, version: Version, staged: Staged, generation: int, end: Mapping[int, int]) -> None:
        self._set(version, generation, end)
        target, new = version.rows(), staged.arrow
        if self._write_mode.row_key:
            version.keep(merged(target, new, self._write_mode, self._root))
        else:
            version.keep(pa.concat_tables([target, new]))
        self._publish(version, self._folder)
