"""Schemas of tests, as Spark reads them."""

from __future__ import annotations

from pyspark.sql.types import StructType, _parse_datatype_string


def struct_of(text: str) -> StructType:
    """What `StructType.fromDDL` of Spark 4 makes of a text, on every release; needs a running Spark."""
    found = _parse_datatype_string(text)
    assert isinstance(found, StructType)
    return found
