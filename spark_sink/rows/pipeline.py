"""Rows of result table and rejects table, made from a range of records."""

from __future__ import annotations

import importlib
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows import columns as column_types
from kafka_ratchet.spark_sink.rows.avro import avro as avro_module
from kafka_ratchet.spark_sink.rows.avro.avro import AvroValues
from kafka_ratchet.spark_sink.rows.ddl import read_paths
from kafka_ratchet.spark_sink.rows.decoded import NO_VALUE, PARSED
from kafka_ratchet.spark_sink.rows.distinct import quoted
from kafka_ratchet.spark_sink.rows.infer import INFER
from kafka_ratchet.spark_sink.rows.registry.values import RegistryValues
from kafka_ratchet.spark_sink.rows.windows import RECORD_TIME
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode, reduced, table_schema
from kafka_ratchet.spark_sink.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("spark_sink")

Transform = Callable[["DataFrame"], "DataFrame"]

OF_TOMBSTONES = frozenset({"_kafka_key", "_kafka_partition"})
"""Columns of a record without a value (a tombstone). A tombstone can delete rows only if the table's key has no other
columns."""

VIEW = "records"
"""Name of the view that SQL text reads the rows from."""


@dataclass(frozen=True)
class RowPipeline:
    """Options and steps that turn records into rows.

    Raises:
        OptionRefused: the parts contradict each other.
    """

    columns: str | StructType | None = None
    """Fields of JSON values, as Spark DDL or as a schema, or `INFER`; None: values are Avro or kept as bytes."""
    write_mode: WriteMode = APPEND
    rejects: bool = False
    """True: values that do not parse go to the rejects table, and the rows have no column `_kafka_value`."""
    transform: Transform | None = None
    """Transform of the user, from the rows as read to the rows of the result."""
    avro: AvroValues | None = None
    """Encoding of Avro values; None: values are not Avro."""
    keep_value: bool = False
    """True: `_kafka_value` of every record is kept, even if the columns hold the whole value."""
    takes_up: bool = False
    """True: at the start of a run, new fields of the values become columns of the table; only with `INFER`."""
    registry: RegistryValues | None = None
    """Schema registry of the values' schemas, with the columns in `columns`; None: values use no registry."""

    def __post_init__(self) -> None:
        if self.columns is not None and self.avro is not None:
            raise OptionRefused("Avro values have the columns of their schema. Remove columns from the settings")
        if self.registry is not None and (self.columns is None or self.avro is not None):
            raise OptionRefused(
                "a schema registry was given without columns, or together with Avro's format. Set columns, and remove "
                "the format"
            )
        if self.registry is not None and self.paths:
            raise OptionRefused("FROM works only with JSON values without a schema registry. Remove FROM, or use sql")
        if self.rejects and not self.parses and self.write_mode.judged is None:
            raise OptionRefused(
                "without columns every value is kept as bytes, so that no value can be rejected. Remove rejects, "
                "or set columns"
            )
        if self.infers and (self.transform is not None or self.write_mode.kind == "totals"):
            raise OptionRefused(
                "inferred columns become the result table's columns, so they cannot be combined with sql, "
                "transform or totals. Name the columns"
            )
        if self.keep_value and self.write_mode.kind == "totals":
            raise OptionRefused(
                "totals have no rows of single records, so that no value can be kept. Remove keep_value"
            )
        if self.keep_value and self.parses and self.transform is not None and not self.rejects:
            raise OptionRefused(
                "keep_value keeps _kafka_value in every row, so sql and transform cannot recognise values that do not "
                "parse. Switch rejects on, or remove keep_value"
            )
        if self.parses and not self.rejects and self.transform is None and self.write_mode.kind != "append":
            raise OptionRefused(
                f"a result of kind {self.write_mode.kind} cannot keep values that do not parse. Switch rejects "
                "on, or handle them in sql (WHERE _kafka_value IS NULL leaves them out)"
            )

    @property
    def parses(self) -> bool:
        """Return True if values are parsed, so that a value may fail to parse."""
        return self.columns is not None or self.avro is not None

    @cached_property
    def fields(self) -> StructType | None:
        """Return the values' columns, once they are known; None: values are kept as bytes.

        Raises:
            OptionRefused: a field cannot be a column of a table.
        """
        if self.avro is not None:
            return self.avro.columns
        if self.columns is None:
            return None
        found = column_types.json_schema(self.columns)
        column_types.value_schema(found, self.paths)  # refuses contradictory paths
        return found

    @cached_property
    def paths(self) -> dict[str, tuple[str, ...]]:
        """Return the path of each column that reads a field within an object."""
        return read_paths(self.columns) if isinstance(self.columns, str) and not self.infers else {}

    @property
    def value_fields(self) -> StructType | None:
        """Return the JSON fields that become columns; None: values are kept as bytes."""
        return None if self.fields is None else column_types.value_schema(self.fields, self.paths)

    @property
    def infers(self) -> bool:
        """Return True if the columns have to be inferred from the values."""
        return self.columns == INFER

    @property
    def is_plain(self) -> bool:
        """Return True if every record becomes one row: there is no key, reject or transform."""
        return self.write_mode.kind == "append" and not self.rejects and self.transform is None

    @property
    def deletes(self) -> bool:
        """Return True if a tombstone, a record without a value, deletes its key's row.

        A tombstone has only its Kafka key and partition, so that it deletes nothing if the result's key has other
        columns.
        """
        return self.write_mode.kind == "upsert" and self._knows_tombstones

    @property
    def _knows_tombstones(self) -> bool:
        """Return True if a tombstone's key and partition are enough to find its row."""
        windows = self.write_mode.windows
        if self.transform is not None or self.write_mode.kind == "append":
            return False
        return set(self.write_mode.key) <= OF_TOMBSTONES and (windows is None or windows.time == RECORD_TIME)

    def known_schema(self) -> StructType | None:
        """Return the columns of the result table without Spark; None: the columns depend on Spark or the values.

        Raises:
            OptionRefused: columns and kind of result do not fit together, or a field cannot be a column of a table.
        """
        if self.infers:
            return None
        read = self._read_schema()
        return table_schema(self.write_mode, read) if self.transform is None else None

    def schema(self, spark: SparkSession) -> StructType:
        """Return the columns of the result table.

        Raises:
            OptionRefused: columns, kind of result and transform do not fit together.
        """
        read = self._read_schema()
        if self.transform is not None:
            read = column_types.nullable(self.transform(spark.createDataFrame([], read)).schema)
        return table_schema(self.write_mode, read)

    @contextmanager
    def frames(self, records: DataFrame, *, restricted_values: int) -> Iterator[tuple[DataFrame, DataFrame | None]]:
        """Yield the rows of the result, and the rejects if they have a table.

        Args:
            records: records of Spark's Kafka source.
            restricted_values: see `ResultStore.restricted_values`.
        """
        with self.read(records, restricted_values=restricted_values) as (rows, rejects):
            yield self.reduced(rows if self.transform is None else self.transform(rows)), rejects

    @contextmanager
    def read(self, records: DataFrame, *, restricted_values: int) -> Iterator[tuple[DataFrame, DataFrame | None]]:
        """Yield the rows before the user's transform, and the rejects.

        Each record is one row or one reject. The rejects are None if no value can be rejected. With `deletes`, the rows
        have a last column `DELETED`.
        """
        from pyspark import StorageLevel
        from pyspark.sql import functions as F

        read = self._read(records, restricted_values=restricted_values)
        state = F.col(column_types.STATE)
        if self.deletes:
            read = read.withColumn(column_types.DELETED, state == NO_VALUE)
        if not self.rejects or (not self.parses and not self.write_mode.key):
            yield read.drop(column_types.STATE), None
            return
        # Otherwise a tombstone that names no row of a keyed table would be the row of the key null.
        is_row = state == PARSED
        if self.write_mode.kind == "append" or self._knows_tombstones:
            is_row = is_row | (state == NO_VALUE)
        if restricted_values == column_types.SHORT_KEYS and self.transform is None:
            is_row = is_row & self._has_short_key()
        read = read.persist(StorageLevel.MEMORY_AND_DISK)  # read once from Kafka, for both tables
        try:
            internal = [column_types.STATE] if self._keeps_value else [column_types.STATE, "_kafka_value"]
            rejects = read.where(~is_row).select(*column_types.record_schema().names)
            yield read.where(is_row).drop(*internal), rejects
        finally:
            read.unpersist()

    def _has_short_key(self) -> Column:
        """Return the condition that a row's key is short enough for an index."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType, StringType

        types = {field.name: field.dataType for field in column_types.result_schema(self.fields).fields}
        names = [name for name in self.write_mode.key if isinstance(types.get(name), BinaryType | StringType)]
        sizes = [F.coalesce(F.octet_length(F.col(quoted(name))), F.lit(0)) for name in names]
        return reduce(lambda one, other: one + other, sizes, F.lit(0)) <= column_types.LONGEST_KEY

    def streamed(self, records: DataFrame, *, restricted_values: int) -> DataFrame:
        """Transform a stream of records. Each micro-batch still needs `reduced`."""
        read = self._read(records, restricted_values=restricted_values).drop(column_types.STATE)
        return read if self.transform is None else self.transform(read)

    def reduced(self, rows: DataFrame) -> DataFrame:
        """Reduce the rows to one for each key, if the result has a key."""
        return reduced(rows, self.write_mode)

    def _read(self, records: DataFrame, *, restricted_values: int) -> DataFrame:
        if self.avro is not None:
            return avro_module.rows(records, self.avro, restricted_values=restricted_values, keep_value=self.keep_value)
        if self.registry is not None and self.fields is not None:
            return self.registry.rows(
                records, self.fields, restricted_values=restricted_values, keep_value=self.keep_value
            )
        return column_types.rows(
            records,
            self.fields,
            restricted_values=restricted_values,
            keep_value=self.keep_value,
            paths=self.paths,
        )

    def _read_schema(self) -> StructType:
        from pyspark.sql.types import StructType

        schema = column_types.result_schema(self.fields)
        return StructType([field for field in schema.fields if self._keeps_value or field.name != "_kafka_value"])

    @property
    def _keeps_value(self) -> bool:
        """Return True if the rows have a column `_kafka_value`."""
        return self.keep_value or not self.rejects or not self.parses


def sql_transform(text: str) -> Transform:
    """Return a transform that runs a query of the view `records`."""
    from pyspark.errors import AnalysisException, ParseException

    def query(rows: DataFrame) -> DataFrame:
        try:
            with _view_of(rows):
                return rows.sparkSession.sql(text)
        except (AnalysisException, ParseException) as error:
            reason = str(error).strip().partition("\n")[0]
            raise OptionRefused(f"sql: {reason} Write a query of the view {VIEW}") from None

    return query


_VIEW_LOCK: Final = threading.Lock()
"""Lock held while `VIEW` names rows: jobs of one session run in several threads."""


@contextmanager
def _view_of(rows: DataFrame) -> Iterator[None]:
    """Give rows the name `VIEW` in the block, and restore a view of that name afterwards.

    Spark Connect reads the view when it runs the query, so that the view stays there.
    """
    spark = rows.sparkSession
    if is_connect():
        rows.createOrReplaceTempView(VIEW)
        yield
        return
    with _VIEW_LOCK:
        theirs = _temporary_view(spark)
        rows.createOrReplaceTempView(VIEW)
        try:
            yield
        finally:
            spark.catalog.dropTempView(VIEW)
            if theirs is not None:
                theirs.createTempView(VIEW)


def _temporary_view(spark: SparkSession) -> DataFrame | None:
    """Return the session's temporary view of the name `VIEW`; None: there is none."""
    from pyspark.errors import AnalysisException

    try:
        return spark.table(VIEW) if spark.catalog.getTable(VIEW).isTemporary else None
    except AnalysisException:
        return None


def described(error: BaseException) -> str:
    """Return an error's class and the first line of its text."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _raised_in(error: BaseException) -> str:
    """Return the line of the user's code that raised an error: the last one outside Spark."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if not {"pyspark", "py4j"} & set(Path(frame.filename).parts)]
    where = (own or frames)[-1] if frames else None
    return "its call" if where is None else f"{Path(where.filename).name} line {where.lineno}"


def function_transform(name: str) -> Transform:
    """Return a transform that calls a user's function, named as module:function.

    Raises:
        OptionRefused: the function does not exist.
    """
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise OptionRefused(f"transform {name!r} is not a function's name. Write module:function")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise OptionRefused(f"transform {name!r}: {error}. Put the module on Python's path") from None
    except Exception as error:  # whatever the module raises while it is imported
        raise OptionRefused(
            f"transform {name!r}: importing {module} failed ({described(error)}). Correct the module"
        ) from error
    if not callable(found):
        raise OptionRefused(f"transform {name!r}: module {module} has no function {function}. Correct the name")

    def apply(rows: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame

        try:
            made = found(rows)
        except Exception as error:
            log.debug("transform %r raised", name, exc_info=error)
            raise OptionRefused(
                f"transform {name!r} raised {described(error)}, in {_raised_in(error)}. Correct the function"
            ) from error
        if not isinstance(made, DataFrame):
            raise OptionRefused(
                f"transform {name!r} returned {type(made).__name__}, not a DataFrame. Correct the function"
            )
        return made

    return apply
