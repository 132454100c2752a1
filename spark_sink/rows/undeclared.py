"""Report of undeclared fields of JSON values, which no column keeps."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.spark.python_worker import Task, map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline

log = logging.getLogger("spark_sink")

SAMPLE_OFFSETS = 10_000
"""Number of offsets in the sample, from the start of a run: enough to show the fields, read in under a second."""

MAX_NAMES = 100
"""Maximum number of names to remember: each object may have new ones."""

SHOWN = 10
"""Maximum number of names in the log line."""

NAME_LENGTH = 63
"""Maximum characters of a name in the log; a name may be a megabyte long."""

Plan = Mapping[str, Any] | None
"""Known fields by name, each with the known fields within it; None: a plain value. The items of an array and the values
of a map are under ""."""


def report_undeclared(pipeline: RowPipeline, topic: str, records: DataFrame) -> tuple[str, ...]:
    """Log the fields of these records that no column of the table keeps.

    Args:
        pipeline: the job's pipeline.
        topic: name of the topic, for the log line.
        records: records of Spark's Kafka source.

    Returns:
        Names of the fields, the most frequent first, at most `MAX_NAMES`; "a.b" is within an object, "a[].b" within an
            array. Empty: the columns keep all fields, or the pipeline needs no report.
    """
    fields = pipeline.value_fields if pipeline.avro is None else None
    if pipeline.columns is None or fields is None or pipeline.keep_value or pipeline.registry is not None:
        return ()  # for a registry's values the schemas show it
    plan = _plan(fields)
    seen: dict[str, int] = {}
    for row in map_batches(
        records.select("value"), _search_task(plan, MAX_NAMES, NAME_LENGTH), "name string, seen long"
    ).collect():
        seen[row.name] = seen.get(row.name, 0) + row.seen
    names = sorted(seen, key=lambda name: (-seen[name], name))[:MAX_NAMES]
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        log.warning(
            "topic %s: the columns do not name these fields of its values, so that they are NOT in the table: %s%s. "
            "Add them to columns (of a new table), or keep whole values with keep_value",
            topic,
            ", ".join(names[:SHOWN]),
            more,
        )
    return tuple(names)


def _plan(data_type: DataType) -> Plan:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, StructType):
        return {field.name: _plan(field.dataType) for field in data_type.fields}
    if isinstance(data_type, ArrayType | MapType):
        within = _plan(data_type.elementType if isinstance(data_type, ArrayType) else data_type.valueType)
        return None if within is None else {"": within}
    return None


def _search_task(plan: Plan, max_names: int, name_length: int) -> Task:
    # A nested function with its own imports: cloudpickle sends it by value, so executors need pyarrow and nothing else.

    def look(batches: Iterable[Any]) -> Iterator[Any]:
        import json

        import pyarrow as pa

        seen: dict[str, int] = {}

        def text(number: str) -> str:
            return number  # of any length: its value does not matter here

        def note(value: Any, known: Any, path: str) -> None:
            if known is None:
                return
            if "" in known:
                within = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
                for each in within:
                    note(each, known[""], f"{path}[]")
                return
            if not isinstance(value, dict):
                return
            for name, each in value.items():
                if name in known:
                    note(each, known[name], f"{path}.{name}" if path else name)
                    continue
                shown = ascii(name[:name_length])[1:-1]
                where = f"{path}.{shown}" if path else shown
                if where in seen or len(seen) < max_names:
                    seen[where] = seen.get(where, 0) + 1

        for batch in batches:
            for value in batch.column(0).to_pylist():
                try:
                    found = json.loads(value.decode("utf-8"), parse_int=text, parse_float=text) if value else None
                except (ValueError, RecursionError):
                    continue
                note(found, plan, "")
        yield pa.RecordBatch.from_pydict(
            {"name": list(seen), "seen": list(seen.values())},
            schema=pa.schema([("name", "string"), ("seen", "int64")]),
        )

    return look
