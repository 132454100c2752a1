"""Functions that hide differences between releases of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


AS_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    # Spark's own form ends at milliseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of `to_json` that lose no value, for stores with arrays, maps and structs as text."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns as an Arrow schema; times with a zone are in UTC."""
    import inspect

    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # since Spark 4.2, which knows no default
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def in_utc(moment: Column) -> Column:
    """Return a timestamp as UTC time without a zone.

    Spark's own conversions to text or date use the session's time zone, which a user may have chosen.
    """
    from pyspark.sql import functions as F

    since_1970 = F.unix_micros(moment) * F.expr("INTERVAL '0.000001' SECOND")
    return F.expr("TIMESTAMP_NTZ '1970-01-01 00:00:00'") + since_1970


def is_valid_utf8(value: Column) -> Column:
    """Return whether bytes are valid UTF-8, as a column; null for null."""
    from pyspark.sql import functions as F

    if hasattr(F, "is_valid_utf8"):
        return F.is_valid_utf8(value.cast("string"))
    # Spark 3.5 reads invalid UTF-8 as replacement characters, which are written as other bytes.
    return F.encode(F.decode(value, "UTF-8"), "UTF-8") == value


def keeps_state(batch: DataFrame, checkpoint: Path) -> bool:
    """Return whether a micro-batch's query keeps state, before the batch is computed.

    Args:
        batch: argument of `foreachBatch`.
        checkpoint: folder of the query's checkpoint.
    """
    if (checkpoint / "state").exists():
        return True
    if not batch.sparkSession.version.startswith("3.5."):
        return False
    # Newer ones make the folder when they plan a micro-batch, Spark 3.5 when tasks run. All of its operators with state
    # compute by a StateStoreRDD or a StateStoreAwareZipPartitionsRDD.
    lineage: str = batch._jdf.queryExecution().toRdd().toDebugString()  # noqa: SLF001
    return "StateStore" in lineage


def to_arrow(dataframe: DataFrame) -> pa.Table:
    """Collect the rows in the driver, and return them as an Arrow table."""
    import pyarrow as pa

    if hasattr(type(dataframe), "toArrow"):
        return dataframe.toArrow()
    schema = arrow_schema(dataframe.schema)
    batches = dataframe._collect_as_arrow()  # type: ignore[operator]  # noqa: SLF001 - as toPandas of 3.5 does
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def from_arrow(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Return a Spark frame of an Arrow table's rows, with the columns of `schema`."""
    if int(spark.version.split(".")[0]) >= 4:
        return spark.createDataFrame(rows.cast(arrow_schema(schema)), schema)
    return spark.createDataFrame(list(zip(*(column.to_pylist() for column in rows.columns), strict=True)), schema)
