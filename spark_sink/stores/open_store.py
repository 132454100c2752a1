"""Which store keeps the results, by its name in the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import Recipe
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, Shape
from kafka_ratchet.spark_sink.stores.delta.store import DeltaStore
from kafka_ratchet.spark_sink.stores.duckdb.store import DuckDBStore
from kafka_ratchet.spark_sink.stores.iceberg.store import IcebergStore
from kafka_ratchet.spark_sink.stores.pair import Numbered, PairedStore
from kafka_ratchet.spark_sink.stores.postgres.store import PostgresStore
from kafka_ratchet.spark_sink.stores.store import ResultStore

StoreKind = Literal["delta", "postgres", "duckdb", "iceberg"]
STORE_KINDS: tuple[StoreKind, ...] = get_args(StoreKind)


@dataclass(frozen=True)
class Place:
    """Where the results are."""

    kind: StoreKind = "delta"
    path: str = ""
    """Folder or file; not for postgres."""
    table: str = "results"
    """Not for delta, where the folder is the table."""
    url: str = field(default="", repr=False)
    """For postgres; may have a password in it."""
    password: str | None = field(default=None, repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How a bucket is reached, see `_bucket.OPTIONS`; for delta and iceberg."""
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the catalog of store iceberg; empty: a SQLite file in the folder."""

    def __str__(self) -> str:
        return self.table if self.kind == "postgres" else self.path


def rejects_place(place: Place) -> Place:
    """Where the rejects of a result are."""
    if place.kind == "delta":
        return replace(place, path=f"{place.path.rstrip('/')}_rejects")
    return replace(place, table=f"{place.table}_rejects")


def make_store(place: Place, name: str, topic: str, topic_identity: int, recipe: Recipe) -> ResultStore:
    """The store, not opened yet.

    Raises:
        OptionRefused: the store cannot do what the recipe asks, or place, name or topic cannot be used.
    """
    shape = recipe.shape
    if place.kind != "postgres" and not place.path:
        raise OptionRefused(f"store {place.kind} needs a path")
    rejects = record_schema() if recipe.rejects else None
    if place.kind in {"delta", "iceberg"}:

        def one_table(place: Place, shape: Shape) -> Numbered:
            if place.kind == "delta":
                return DeltaStore(place.path, name, topic, topic_identity, shape, storage_options=place.storage_options)
            return IcebergStore(
                place.path,
                place.table,
                name,
                topic,
                topic_identity,
                shape,
                storage_options=place.storage_options,
                catalog=place.catalog,
            )

        rows = one_table(place, shape)
        return rows if rejects is None else PairedStore(rows, one_table(rejects_place(place), APPEND), rejects)
    if place.kind == "duckdb":
        return DuckDBStore(place.path, place.table, name, topic, topic_identity, shape, rejects=rejects)
    return PostgresStore(
        place.url,
        place.table,
        name,
        topic,
        topic_identity,
        shape,
        rejects=rejects,
        password=place.password,
        in_tasks=recipe.is_plain,
    )
