"""Makes stores: of a job, and for whoever only reads."""

from __future__ import annotations

from typing import cast

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import Recipe
from kafka_ratchet.spark_sink.stores.pair import Numbered, PairedStore
from kafka_ratchet.spark_sink.stores.place import Place
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.store import ResultStore, TableStore


def rejects_place(place: Place) -> Place:
    """Where the rejects of a result are."""
    return store_class(place.kind).rejects_at(place)


def make_store(place: Place, name: str, topic: str, topic_identity: int, recipe: Recipe) -> ResultStore:
    """The store, not opened yet.

    Raises:
        OptionRefused: the store cannot do what the recipe asks, or place, name or topic cannot be used.
    """
    kind = store_class(place.kind)
    require_path(place)
    rejects = record_schema() if recipe.rejects else None
    if rejects is None or not kind.rejects_apart:
        return kind.at(place, name, topic, topic_identity, recipe.shape, rejects=rejects, in_tasks=recipe.is_plain)
    rows = kind.at(place, name, topic, topic_identity, recipe.shape)
    beside = kind.at(kind.rejects_at(place), name, topic, topic_identity)
    return PairedStore(cast(Numbered, rows), cast(Numbered, beside), rejects)


def require_path(place: Place) -> None:
    """Refuse a store without the path that it needs.

    Raises:
        OptionRefused: it has none.
    """
    if store_class(place.kind).needs_path and not place.path:
        raise OptionRefused(f"store {place.kind} needs a path")


def reader(place: Place, name: str = "reader") -> TableStore:
    """A store for whoever reads the table and has no job."""
    return store_class(place.kind).at(place, name, "none")
