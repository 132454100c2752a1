"""Functions that all stores share, without a store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kafka_ratchet.spark_sink.stores.store import ResultStore

TABLE = StructType([StructField("who", StringType()), StructField("amount", LongType())])


@pytest.mark.parametrize(("columns", "names"), [(None, None), (TABLE, ["who", "amount"])])
def test_names_of_the_columns_are_in_the_order_of_the_table(
    columns: StructType | None, names: list[str] | None
) -> None:
    store = cast("Any", SimpleNamespace(columns=lambda: columns))
    assert ResultStore.column_names(store) == names
