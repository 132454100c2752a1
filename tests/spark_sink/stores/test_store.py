"""Functions that all stores share, without a store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.stores.store import ResultStore, require_local_master, without_free

TABLE = StructType([StructField("who", StringType()), StructField("amount", LongType())])


@pytest.mark.parametrize(("columns", "names"), [(None, None), (TABLE, ["who", "amount"])])
def test_names_of_the_columns_are_in_the_order_of_the_table(
    columns: StructType | None, names: list[str] | None
) -> None:
    store = cast("Any", SimpleNamespace(columns=lambda: columns))
    assert ResultStore.column_names(store) == names


def test_a_column_of_another_job_is_left_out_unless_this_job_fills_it_too() -> None:
    present = {"shared": "string", "theirs": "long", "required": "long"}
    assert without_free(present, {"shared": "string"}, {"shared", "theirs"}) == {"shared": "string", "required": "long"}


@pytest.mark.parametrize("master", ["yarn", None])
def test_only_a_store_of_the_drivers_disk_refuses_a_cluster(master: str | None) -> None:
    local = cast("Any", SimpleNamespace(needs_local_master="the file is on the driver's disk"))
    shared = cast("Any", SimpleNamespace(needs_local_master=""))
    require_local_master(shared, master)
    require_local_master(local, "local[*]")
    with pytest.raises(OptionRefused, match=r"on the driver's disk, and Spark runs on (yarn|other machines)"):
        require_local_master(local, master)
