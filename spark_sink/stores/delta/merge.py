"""Merge of rows with a key into a Delta table; its log entry contains the offsets, as an append's does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.distinct import HASHES
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.delta.repeated_keys import require_one_row
from kafka_ratchet.spark_sink.stores.merge_sql import PlainDialect, changes

if TYPE_CHECKING:
    from typing import LiteralString

    from deltalake import CommitProperties, DeltaTable

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Pattern of names that mean the same in every SQL dialect: delta-rs accepts conditions as SQL text without
placeholders."""


class _Dialect(PlainDialect):
    """SQL dialect of DataFusion, the engine inside delta-rs.

    Args:
        table: the table of the merge.
    """

    union = f"array_slice(array_sort(array_union({{target}}, {{source}})), 1, {HASHES})"
    size = "cardinality({hashes})"
    last = f"({{hashes}})[{HASHES}]"

    def __init__(self, table: DeltaTable) -> None:
        self._types = {field.name: str(getattr(field.type, "type", "")) for field in table.schema().fields}

    def addition(self, column: str) -> LiteralString:
        """See `Dialect`.

        DataFusion's `+` turns a count beyond 64 bits negative and stores a decimal of 39 digits; casts refuse both.
        """
        places = self._types[column].removesuffix(")").partition(",")[2]
        wide, narrow = (f"DECIMAL(39,{places})", f"DECIMAL(38,{places})") if places else ("DECIMAL(20,0)", "BIGINT")
        return f"CAST(CAST({{target}} AS {wide}) + CAST({{source}} AS {wide}) AS {narrow})"


def require_plain(write_mode: WriteMode) -> None:
    """Refuse column names that SQL could interpret in another way.

    Raises:
        OptionRefused: a column of the key or of a total has such a name.
    """
    for name in [*write_mode.row_key, *(name for names in write_mode.lists.values() for name in names)]:
        if not PLAIN_NAME.fullmatch(name):
            raise OptionRefused(
                f"column {name!r}: columns of the key and sums of a Delta table must have names of letters, digits and "
                "'_'. Rename it, or use another store"
            )


def merge(
    table: DeltaTable,
    files: list[str],
    filesystem: Any,
    write_mode: WriteMode,
    properties: CommitProperties,
    where: object,
) -> bool:
    """Merge the rows of some Parquet files into the table in one commit.

    Args:
        table: the table at the version that the caller has checked.
        files: Parquet files with at most one row per key in all of them together. A row with true in a column `DELETED`
            removes the table's row with that key.
        filesystem: file system of pyarrow that contains the files; None: this machine's.
        write_mode: upsert or totals, with its key.
        properties: properties of the commit.
        where: the table, as messages name it.

    Returns:
        True if delta-rs committed; False if the merge changed nothing, as with deletions of missing keys. The table
        then keeps its version.

    Raises:
        StoreError: the table has several rows of a key of the files.
        CommitFailedError: another commit was first.
        DeltaError: the table cannot be read or written.
    """
    import pyarrow.dataset as ds

    rows = ds.dataset(files, format="parquet", filesystem=filesystem)
    require_one_row(table, rows.to_table(columns=list(write_mode.row_key)), where)
    # In brackets: delta-rs's SQL extends the text after FROM past an AND.
    same = " AND ".join(f'(target."{name}" IS NOT DISTINCT FROM source."{name}")' for name in write_mode.row_key)
    merger = table.merge(
        rows.scanner().to_reader(), same, source_alias="source", target_alias="target", commit_properties=properties
    )
    if write_mode.kind == "totals":
        new = changes(write_mode, _Dialect(table))
        added = {f'"{name}"': f'source."{name}"' for name in rows.schema.names}
        merger = merger.when_matched_update({f'"{name}"': value for name, value in new.items()})
        merger.when_not_matched_insert(added).execute()
        return True
    # Column by column: other jobs' columns keep their values.
    new = {f'"{name}"': f'source."{name}"' for name in rows.schema.names if name != DELETED}
    if DELETED not in rows.schema.names:
        merger.when_matched_update(new).when_not_matched_insert(new).execute()
        return True
    gone = f'source."{DELETED}"'
    merger = merger.when_matched_delete(gone).when_matched_update(new)
    before = table.version()
    merger.when_not_matched_insert(new, f"NOT {gone}").execute()
    return table.version() > before
