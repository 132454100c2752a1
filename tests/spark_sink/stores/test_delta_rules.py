"""Rules of a Delta table that this writer does not check are refused by their names, without Spark and Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, Schema, TableFeatures
from deltalake.schema import PrimitiveType
from pyspark.sql.types import LongType, StructField, StructType

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.delta.repair import require_repairable
from kafka_ratchet.spark_sink.stores.delta.rules import require_no_rules
from kafka_ratchet.spark_sink.stores.delta.spark_writer import rules_of
from kafka_ratchet.spark_sink.stores.delta.store import DeltaStore
from kafka_ratchet.spark_sink.stores.delta.table import table_folder
from kafka_ratchet.spark_sink.stores.optimistic import OptimisticStore
from tests.spark_sink.sites import delta_store

AMOUNT = StructType([StructField("amount", LongType())])
INVARIANT = {"delta.invariants": '{"expression":{"expression":"amount > 0"}}'}


def made(path: Path, metadata: dict[str, str] | None = None, **properties: str) -> DeltaTable:
    schema = Schema([Field("amount", PrimitiveType("long"), metadata=metadata)])
    named = {f"delta.{name}": value for name, value in properties.items()}
    return DeltaTable.create(path, schema, configuration=named)


def check(path: Path, kind: str = "append") -> None:
    """Do what precedes each commit of a job, up to the look at its generation."""
    store = DeltaStore.__new__(DeltaStore)
    store._folder = table_folder(str(path), {})
    store._columns = {"amount": 'PrimitiveType("long")'}
    store._write_mode = WriteMode(kind, ("amount",) if kind != "append" else ())  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OptimisticStore, "_require_holder", lambda *_: None)
        store._require_holder(DeltaTable(path), {})


def test_a_constraint_is_refused_until_it_is_dropped(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.alter.add_constraint({"positive": "amount > 0"})
    with pytest.raises(OptionRefused, match=r"constraint positive CHECK \(amount > 0\)"):
        check(tmp_path)
    table.alter.drop_constraint("positive")
    check(tmp_path)


def test_an_invariant_is_refused(tmp_path: Path) -> None:
    made(tmp_path, INVARIANT)
    with pytest.raises(OptionRefused, match=r"amount > 0.*of column amount \(delta.invariants\)"):
        check(tmp_path)


def test_a_generated_column_is_refused(tmp_path: Path) -> None:
    made(tmp_path, {"delta.identity.start": "1"})
    with pytest.raises(OptionRefused, match=r"delta\.identity\.start of column amount"):
        check(tmp_path)


@pytest.mark.parametrize("kind", ["upsert", "totals"])
def test_rows_of_an_append_only_table_are_not_changed(kind: str, tmp_path: Path) -> None:
    made(tmp_path, appendOnly="true")
    with pytest.raises(OptionRefused, match=r"delta\.appendOnly"):
        check(tmp_path, kind)


def test_rows_of_an_append_only_table_are_not_repaired(tmp_path: Path) -> None:
    table = made(tmp_path, appendOnly="true")
    with pytest.raises(OptionRefused, match=r"delta\.appendOnly"):
        require_repairable(table, table_folder(str(tmp_path), {}))


def test_a_feature_that_is_not_followed_is_refused(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.alter.add_feature([TableFeatures.RowTracking], allow_protocol_versions_increase=True)
    with pytest.raises(OptionRefused, match="writer feature rowTracking"):
        check(tmp_path)


def test_a_table_with_a_rule_is_refused_to_the_job_and_read_by_verify(tmp_path: Path) -> None:
    made(tmp_path).alter.add_constraint({"positive": "amount > 0"})
    store = delta_store(str(tmp_path), "job", "events")
    with pytest.raises(OptionRefused, match="constraint positive"):  # before Spark starts
        store.require_fits(AMOUNT)
    with pytest.raises(OptionRefused, match="constraint positive"):
        store.open(AMOUNT)
    assert store.generation() == 0
    assert store.offsets() == {}
    assert store.rows(["amount"]) == []


@pytest.mark.parametrize("metadata", [INVARIANT, {"delta.generationExpression": "1"}])
def test_rules_that_delta_spark_checks(metadata: dict[str, str], tmp_path: Path) -> None:
    made(tmp_path, metadata).alter.add_constraint({"positive": "amount > 0"})
    table, folder = DeltaTable(tmp_path), table_folder(str(tmp_path), {})
    require_no_rules(table, folder, merges=False, by_spark=True)
    with pytest.raises(OptionRefused, match="constraint positive"):
        require_no_rules(table, folder, merges=False)


def test_an_identity_column_is_refused_to_delta_spark(tmp_path: Path) -> None:
    table = made(tmp_path, {"delta.identity.start": "1"})
    with pytest.raises(OptionRefused, match=r"delta\.identity\.start of column amount"):
        require_no_rules(table, table_folder(str(tmp_path), {}), merges=False, by_spark=True)


def test_columns_that_a_writer_may_leave_out_are_nullable_and_not_computed(tmp_path: Path) -> None:
    long = PrimitiveType("long")
    fields = [
        Field("plain", long),
        Field("required", long, nullable=False),
        Field("computed", long, metadata={"delta.generationExpression": "1"}),
    ]
    assert rules_of(DeltaTable.create(tmp_path, Schema(fields))).free == {"plain"}
