"""Functions that create a store, for a job or for reading only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.columns import rejects_schema
from kafka_ratchet.spark_sink.rows.partition_by import PartitionField
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.optimistic import OptimisticStore
from kafka_ratchet.spark_sink.stores.pair import NumberedStore, PairedStore
from kafka_ratchet.spark_sink.stores.registry import STORES, store_class
from kafka_ratchet.spark_sink.stores.store import ResultStore

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.table_store import TableStore


def rejects_location(location: TableLocation) -> TableLocation:
    """Return the location of the rejects that belong to a result table."""
    return store_class(location.kind).rejects_at(location)


def require_options(
    location: TableLocation, write_mode: WriteMode, *, evolve: bool, partition_by: Sequence[PartitionField]
) -> None:
    """Refuse options that the store of a location cannot honour.

    Raises:
        OptionRefused: the store adds no columns, or has no partitions, or the write mode excludes partitions.
    """
    kind = store_class(location.kind)
    if evolve and not kind.evolves:
        can = [name for name in STORES if store_class(name).evolves]
        raise OptionRefused(
            f"store {location.kind} adds no columns to an existing table: evolve is for {' and '.join(can)}. Leave "
            "evolve out, or choose one of them"
        )
    if partition_by and not kind.partitions:
        can = [name for name in STORES if store_class(name).partitions]
        raise OptionRefused(
            f"store {location.kind} cannot divide a table into partitions: partition_by is for {' and '.join(can)}. "
            "Leave partition_by out (a database finds rows by its own statistics and indexes), or choose one of them"
        )
    if partition_by and write_mode.kind != "append":
        raise OptionRefused(
            f"partition_by is for kind append: later records change a row of kind {write_mode.kind}, and "
            "could move it to another partition. Leave partition_by out"
        )


def make_store(
    location: TableLocation,
    name: str,
    topic: str,
    topic_id: int,
    pipeline: RowPipeline,
    *,
    evolve: bool = False,
    partition_by: Sequence[PartitionField] = (),
) -> ResultStore:
    """Create the store without opening it; the arguments are those of `TableStore`.

    Raises:
        OptionRefused: the store lacks a feature that the job needs, or location, name or topic cannot be used.
    """
    kind = store_class(location.kind)
    require_path(location)
    require_options(location, pipeline.write_mode, evolve=evolve, partition_by=partition_by)
    judged = pipeline.write_mode.judged is not None
    if judged and not kind.keeps_sequences:
        can = [name for name in STORES if store_class(name).keeps_sequences]
        raise OptionRefused(
            f"store {location.kind} cannot commit last sequences with its rows: from_input is for "
            f"{', '.join(can)}. Choose one of them, or read the output topic of the workers"
        )
    rejects = rejects_schema(judged=judged) if pipeline.rejects else None
    options: dict[str, Any] = {"evolve": evolve, "partition_by": partition_by}
    if rejects is None or not kind.rejects_apart:
        options |= {"rejects": rejects, "in_tasks": pipeline.is_plain}
    made = kind(location, name, topic, topic_id, pipeline.write_mode, **options)
    _let_coalesce(made, pipeline)
    if rejects is None or not kind.rejects_apart:
        return made
    beside = kind(kind.rejects_at(location), name, topic, topic_id)
    _let_coalesce(beside, pipeline)
    return PairedStore(cast(NumberedStore, made), cast(NumberedStore, beside), rejects)


def _let_coalesce(store: TableStore, pipeline: RowPipeline) -> None:
    """Allow a store of files to write few large files, unless the tasks run a user's function.

    The result of such a function may depend on the number of tasks.
    """
    if isinstance(store, OptimisticStore):
        store.may_coalesce = pipeline.transform is None


def require_path(location: TableLocation) -> None:
    """Refuse a location without a path if its kind of store needs one.

    Raises:
        OptionRefused: the path is empty.
    """
    if store_class(location.kind).needs_path and not location.path:
        raise OptionRefused(f"store {location.kind} needs the option path")


def reader(location: TableLocation, name: str = "reader") -> TableStore:
    """Return a store for reading the table only."""
    return store_class(location.kind)(location, name, "none")
