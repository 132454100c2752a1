"""Rows with a key go into a Delta table by one merge, whose log entry carries the offsets as an append's does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.distinct import HASHES
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.merge_sql import PlainDialect, changes

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that mean the same in every SQL dialect; delta-rs takes conditions as SQL text and has no placeholders."""


class _Dialect(PlainDialect):
    """DataFusion's, which delta-rs has."""

    union = f"array_slice(array_sort(array_union({{target}}, {{source}})), 1, {HASHES})"
    size = "cardinality({hashes})"
    last = f"({{hashes}})[{HASHES}]"


def require_plain(write_mode: WriteMode) -> None:
    """Refuse names that could be read as SQL.

    Raises:
        OptionRefused: the key or a total has one.
    """
    for name in [*write_mode.row_key, *(name for names in write_mode.lists.values() for name in names)]:
        if not PLAIN_NAME.fullmatch(name):
            raise OptionRefused(
                f"column {name!r}: keys and sums of a Delta table have names of letters, digits and '_'. Rename it, "
                "or use another store"
            )


def merge(
    table: DeltaTable, files: list[str], filesystem: Any, write_mode: WriteMode, properties: CommitProperties
) -> bool:
    """Bring the rows of `files` into the table in one commit.

    Args:
        table: as of the version that the caller has compared itself with.
        files: Parquet files; over all of them there is at most one row per key. Where they have a column `DELETED`,
            a row with true in it takes the table's row of its key away.
        filesystem: pyarrow's, where the files are; None: on this machine.
        write_mode: with a key.
        properties: of the commit.

    Returns:
        Whether there was a commit. delta-rs makes none where the merge changes nothing: deletions of keys that are not
        there. The table is still as of its version then.

    Raises:
        CommitFailedError: another commit was first.
        DeltaError: the table cannot be read or written.
    """
    import pyarrow.dataset as ds

    rows = ds.dataset(files, format="parquet", filesystem=filesystem)
    # In brackets: to delta-rs's SQL, what follows FROM reaches past an AND.
    same = " AND ".join(f'(target."{name}" IS NOT DISTINCT FROM source."{name}")' for name in write_mode.row_key)
    merger = table.merge(
        rows.scanner().to_reader(), same, source_alias="source", target_alias="target", commit_properties=properties
    )
    if write_mode.kind == "totals":
        new = changes(write_mode, _Dialect())
        added = {f'"{name}"': f'source."{name}"' for name in rows.schema.names}
        merger = merger.when_matched_update({f'"{name}"': value for name, value in new.items()})
        merger.when_not_matched_insert(added).execute()
        return True
    # Column by column: those of others keep their values.
    new = {f'"{name}"': f'source."{name}"' for name in rows.schema.names if name != DELETED}
    if DELETED not in rows.schema.names:
        merger.when_matched_update(new).when_not_matched_insert(new).execute()
        return True
    gone = f'source."{DELETED}"'
    merger = merger.when_matched_delete(gone).when_matched_update(new)
    before = table.version()
    merger.when_not_matched_insert(new, f"NOT {gone}").execute()
    return table.version() > before
