"""Partitions of an Iceberg table: Iceberg's own, by columns or by days and hours of times.

All files are in one folder, whatever their partition: Iceberg stores the partition values in its manifests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import SchemaDiffers
from kafka_ratchet.spark_sink.rows.partition_by import PartitionField, said

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction

TRANSFORMS = {"": "identity", "day": "day", "hour": "hour"}


def add_partitions(transaction: Transaction, fields: Sequence[PartitionField]) -> None:
    """Define the partitions of a table that the transaction creates."""
    with transaction.update_spec() as update:
        for field in fields:
            update.add_field(field.column, TRANSFORMS[field.unit], field.name)


def require_partitions(where: object, table: Table, fields: Sequence[PartitionField]) -> None:
    """Refuse a table with other partitions than the job's.

    Raises:
        SchemaDiffers: the partitions differ.
    """
    present = []
    for found in table.spec().fields:
        column, transform = table.schema().find_column_name(found.source_id), str(found.transform)
        present.append(column if transform == "identity" else f"{transform}({column})")
    wanted = [str(field) for field in fields]
    if present != wanted:
        raise SchemaDiffers(
            f"{where}: the table is partitioned by {present or 'nothing'}, and this job has {said(fields)}. "
            "Partitions of an existing table do not change: give the job the table's, or choose another table"
        )
