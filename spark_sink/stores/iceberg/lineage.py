"""Check that an Iceberg table's rows agree with a job's properties in the table.

Offsets are properties of the table, and a rollback changes the current snapshot but no property. So each commit of a
job stores a mark, both in a property and in the snapshot's summary. Snapshots of other jobs copy the marks of the
snapshot before them. Thus the nearest summary with marks, from the current snapshot back, shows which commits the rows
contain, even if the job's own snapshot has expired.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

MARKS_KEY = "ratchet-sink.marks"
"""Key in a snapshot's summary: for each job, the mark of the newest commit that the rows contain."""

OFFSETS_KEY = "ratchet-sink.offsets"
"""Key in the summary of a job's own snapshot: the next offset of each partition of each topic at that commit."""


def mark_key(job: str) -> str:
    """Return the name of the table property with the mark of a job's newest commit."""
    return f"ratchet-sink-mark.{job}"


def rows_key(job: str) -> str:
    """Return the name of the property with the row count after a job's newest commit."""
    return f"ratchet-sink-rows.{job}"


def _ancestors(table: Table) -> Iterator[Snapshot | None]:
    """Yield the snapshots from the current one to the first; then None if an earlier snapshot has expired."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        before = snapshot.parent_snapshot_id
        if before is None:
            return
        snapshot = table.snapshot_by_id(before)
    if table.current_snapshot() is not None:
        yield None


def _may_have_expired(table: Table) -> bool:
    """Return whether a snapshot before the oldest known one may have expired: pyiceberg leaves no trace of it."""
    ancestors = [snapshot.sequence_number or 0 for snapshot in _ancestors(table) if snapshot is not None]
    kept = [snapshot.sequence_number or 0 for snapshot in table.snapshots()]
    return bool(ancestors) and ancestors[-1] == min(kept) and ancestors[-1] > 1


def _summary(snapshot: Snapshot, key: str) -> str:
    return str((snapshot.summary.additional_properties if snapshot.summary else {}).get(key, ""))


def marks(table: Table) -> dict[str, str] | None:
    """Return the mark of each job's newest commit in the rows; None: the snapshot with the marks has expired."""
    for snapshot in _ancestors(table):
        if snapshot is None:
            return None
        found = _summary(snapshot, MARKS_KEY)
        if found:
            return {str(job): str(mark) for job, mark in json.loads(found).items()}
    return {}


def total_rows(table: Table) -> int | None:
    """Return the row count of the current snapshot; None: the snapshot does not state it."""
    snapshot = table.current_snapshot()
    found = "0" if snapshot is None else _summary(snapshot, "total-records")
    return int(found) if found else None


def _is_own(snapshot: Snapshot, mark: str) -> bool:
    """Return whether a snapshot is the commit with a mark.

    A later snapshot may have copied the mark.
    """
    own = _summary(snapshot, OFFSETS_KEY)
    return bool(own) and json.loads(own).get("mark") == mark


def _emptied(table: Table, mark: str) -> bool:
    """Return whether writers after the commit with a mark have removed all rows."""
    for snapshot in _ancestors(table):
        if snapshot is None or _is_own(snapshot, mark):
            return False
        if _summary(snapshot, "total-records") == "0":
            return True
    return False


def is_created_again(table: Table) -> bool:
    """Return whether the table's snapshots begin after its first one, as after `CREATE OR REPLACE TABLE`.

    The rows then come from no earlier snapshot by the lineage, but the statement may have selected them from there.
    """
    first = list(_ancestors(table))[-1:]
    return first != [] and (first[0] is None or (first[0].sequence_number or 0) > 1)


def replacement(table: Table, job: str, *, may_be_emptied: bool = False) -> str:
    """Name a snapshot of another writer that removed all earlier files; empty text: there is none.

    A writer that changes one row in a table of a single file makes such a snapshot too. The caller has to find out from
    the table's rows whether all earlier rows were removed.
    """
    mark = table.properties.get(mark_key(job), "")
    for snapshot in _ancestors(table):
        if snapshot is None or _is_own(snapshot, mark):
            return ""
        if snapshot.summary is None or _summary(snapshot, MARKS_KEY):
            continue
        operation = snapshot.summary.operation.value
        removed, added = (int(_summary(snapshot, f"{what}-records") or 0) for what in ("deleted", "added"))
        before = int(_summary(snapshot, "total-records") or 0) - added + removed
        if may_be_emptied and not added:
            continue
        if operation in {"overwrite", "delete"} and removed >= before > 0:
            return f"snapshot {snapshot.snapshot_id}, {operation}"
    return ""


def inconsistency(table: Table, job: str, *, has_key: bool, may_be_emptied: bool = False) -> str:
    """Describe why the rows are no longer those of the job's newest commit; empty text: they still are.

    Args:
        table: the refreshed table.
        job: the job's name.
        has_key: True if commits change rows, so that an older snapshot may have the same row count.
        may_be_emptied: True accepts a table without rows, because an operator may delete all rows.
    """
    mark, found = table.properties.get(mark_key(job)), marks(table)
    noted = int(table.properties.get(rows_key(job), "-1"))
    if mark is None:  # an earlier version has left none; only newer snapshots that lie aside can be found
        return "" if _is_newest(table) else "the table was rolled back to an older snapshot"
    if found is None:
        if (total_rows(table) == noted and not has_key) or (may_be_emptied and not total_rows(table)):
            return ""
        count = (
            "the number of rows proves nothing because the job changes rows"
            if total_rows(table) == noted
            else "the table has another number of rows than after that commit"
        )
        return (
            "the snapshots since this job's last commit have expired, so that no snapshot shows whether the table was "
            f"rolled back, and {count}"
        )
    if job not in found and _may_have_expired(table):
        return (
            "the snapshots since this job's last commit have expired, or the table was replaced; the table does not "
            "show which"
        )
    if found.get(job) != mark:
        return (
            "the table was rolled back to an older snapshot"
            if job in found
            else "the table was replaced, or rolled back to before this job's first commit"
        )
    gone = noted > 0 and not may_be_emptied and _emptied(table, mark)
    return "all rows of the table were removed" if gone else ""


def _is_newest(table: Table) -> bool:
    current = table.current_snapshot()
    if len(table.refs()) > 1:  # a branch or tag may hold newer ones by right
        return True
    newest = max((snapshot.sequence_number or 0 for snapshot in table.snapshots()), default=0)
    return newest == (0 if current is None else current.sequence_number or 0)


def commits_of_job(table: Table, job: str, topic: str) -> Iterator[tuple[str, dict[int, int]]]:
    """Yield a job's snapshots, newest first, with the next offset of each partition."""
    for snapshot in _ancestors(table):
        if snapshot is None:
            return
        own, marked = _summary(snapshot, OFFSETS_KEY), _summary(snapshot, MARKS_KEY)
        if own and marked and json.loads(own).get("mark") == json.loads(marked).get(job):
            stored = json.loads(own)["topics"].get(topic, {})
            yield f"snapshot {snapshot.snapshot_id}", {int(number): offset for number, offset in stored.items()}


def offsets_of_rows(table: Table, job: str, topic: str) -> dict[int, int] | None:
    """Return each partition's next offset, derived from the table's rows; None: no snapshot shows the offsets."""
    found = marks(table)
    if found is None:
        return None
    mark = found.get(job)
    if mark is None and _may_have_expired(table):
        return None
    if mark is None or _emptied(table, mark):
        return {}
    for snapshot in _ancestors(table):
        if snapshot is None:
            return None
        own = _summary(snapshot, OFFSETS_KEY)
        if own and json.loads(own).get("mark") == mark:
            stored = json.loads(own)["topics"].get(topic, {})
            return {int(partition): offset for partition, offset in stored.items()}
    return None
