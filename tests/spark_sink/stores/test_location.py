"""Addresses of tables as text."""

from __future__ import annotations

import pytest

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.stores.location import TableAddress


@pytest.mark.parametrize(
    ("text", "scheme", "place", "table"),
    [
        ("DuckDB:/data/file", "duckdb", "/data/file", ""),
        ("duckdb:/data/file?table=orders", "duckdb", "/data/file", "orders"),
        ("duckdb:/data/who?.db?table=orders", "duckdb", "/data/who?.db", "orders"),
        ("delta:/data/table?table=orders", "delta", "/data/table?table=orders", ""),
    ],
)
def test_a_file_of_several_tables_is_named_with_one(text: str, scheme: str, place: str, table: str) -> None:
    assert TableAddress.parse(text) == TableAddress(scheme, place, table)


def test_an_address_without_a_scheme_or_with_another_option() -> None:
    assert TableAddress.parse("/data/file") is None
    with pytest.raises(OptionRefused, match="duckdb: the address has unknown options: mode"):
        TableAddress.parse("duckdb:/data/file?mode=ro")
