"""Kinds of stores by name. A new kind is a folder next to this module and a line below; see docs/guide/own-store.md.

Settings and command lines need only the names, so this module imports no store. The packages of a store are imported
when the store is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.table_store import TableStore

STORES = {
    "delta": "kafka_ratchet.spark_sink.stores.delta.store:DeltaStore",
    "postgres": "kafka_ratchet.spark_sink.stores.postgres.store:PostgresStore",
    "mysql": "kafka_ratchet.spark_sink.stores.mysql.store:MysqlStore",
    "duckdb": "kafka_ratchet.spark_sink.stores.duckdb.store:DuckDBStore",
    "iceberg": "kafka_ratchet.spark_sink.stores.iceberg.store:IcebergStore",
}
"""Class of each kind of store, a subclass of `TableStore`, written module:class."""


def store_class(kind: str) -> type[TableStore]:
    """Return the class of a kind of store.

    Raises:
        OptionRefused: there is no store of this kind.
    """
    if kind not in STORES:
        raise OptionRefused(f"store {kind!r} is unknown; write one of {', '.join(STORES)}")
    module, _, name = STORES[kind].partition(":")
    found: type[TableStore] = getattr(import_module(module), name)
    return found
