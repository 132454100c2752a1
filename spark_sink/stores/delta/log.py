"""Changes to a Delta table since a job's last entry in its log.

RESTORE, REPLACE and overwriting remove rows but keep the `txn` actions with the offsets. So each log entry of a job
stores its own version number. The next run of the job follows the log from the newest entry back to the stored version,
and jumps from an entry that restored version N to version N. If the run does not arrive at the stored version, the
table has lost the job's rows.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kafka_ratchet.spark_sink.files.bucket import Folder

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG = "_delta_log"

NO_ENTRY = -1
"""Result of `Log.version_of_rows`: no entry of the job has rows in the table, and no other entry replaced all rows."""

REPLACED = -2
"""Result of `Log.version_of_rows`: an entry of another writer replaced all rows, perhaps by copies of the job's."""

KEYED = "the number of rows proves nothing because the job changes rows"

FIRST_KEY = b'{"commitInfo"'
"""Start of the log line that names writer and operation. By Delta's protocol each line is an object with one key."""


@dataclass(frozen=True)
class Entry:
    """Entry of one version in a Delta table's log."""

    operation: str
    """Name of the operation, as the writer calls it; empty: the entry has none."""
    parameters: dict[str, Any]
    user_metadata: dict[str, Any]
    """Notes that a Ratchet job left in the entry; empty: the entry is not from such a job."""

    @property
    def replaces_all(self) -> bool:
        """Return whether the entry may remove all earlier rows of the table.

        The entry's operation and parameters show this. The names are those that Delta's own writers and delta-rs write.
        """
        everything = str(self.parameters.get("predicate") or "") in {"", "[]", '["true"]', "true"}
        if self.operation == "WRITE":
            return self.parameters.get("mode") == "Overwrite" and everything
        if self.operation == "STREAMING UPDATE":
            return self.parameters.get("outputMode") == "Complete"
        if self.operation == "DELETE":
            return everything
        return "REPLACE TABLE" in self.operation or self.operation in {"TRUNCATE", "CLONE"}

    @property
    def empties(self) -> bool:
        """Return whether the entry removes rows and adds no rows."""
        return self.operation in {"DELETE", "TRUNCATE"}


@dataclass(frozen=True)
class HistoryBreak:
    """Log entry that removes the rows of an older version from the table."""

    kind: Literal["restored", "replaced", "unknown"]
    version: int
    """Version of the entry that removed the rows; for kind `unknown`: version of the newest missing entry."""
    operation: str = ""
    target: int | None = None
    """Restored version; None: unknown."""
    may_keep_partitions: bool = False
    """True if the entry of kind `replaced` may have kept the rows of some partitions."""

    @property
    def sentence(self) -> str:
        """Return a sentence that describes the entry, without a full stop."""
        if self.kind == "restored":
            to = "an older version" if self.target is None else f"version {self.target}"
            return f"the table was restored to {to} (version {self.version} of its log, RESTORE)"
        if self.kind == "replaced":
            rows = "the table, or of some of its partitions," if self.may_keep_partitions else "the table"
            return f"all rows of {rows} were replaced or removed (version {self.version} of its log, {self.operation})"
        count = self.operation or "the table has another number of rows than after that commit"
        return (
            f"the log was cleaned up to version {self.version} since this job's last commit, so that no entry shows "
            f"whether the table was restored, and {count}"
        )


def read_entry(folder: Folder, version: int) -> Entry | None:
    """Read the log entry of a version; None: the entry does not exist yet, or was cleaned up.

    Raises:
        OSError: the entry cannot be read, or is damaged.
    """
    text = folder.read(f"{version:020d}.json", LOG)
    if text is None:
        return None
    for line in text.splitlines():
        if line.startswith(FIRST_KEY):
            try:
                info = json.loads(line)["commitInfo"]
            except ValueError:
                raise OSError(errno.EIO, f"version {version} of the log is damaged") from None
            return Entry(str(info.get("operation", "")), info.get("operationParameters") or {}, _user_metadata(info))
    return Entry("", {}, {})


def _user_metadata(info: dict[str, Any]) -> dict[str, Any]:
    try:
        user_metadata = json.loads(info.get("userMetadata") or "{}")
    except (ValueError, TypeError):
        return {}
    return (
        user_metadata
        if isinstance(user_metadata, dict) and {"job", "topic", "generation", "offsets"} <= user_metadata.keys()
        else {}
    )


class Log:
    """Log of a table, read from the newest version backwards.

    Args:
        folder: the table's folder.
        table: the refreshed table.
        job: name of the job that wrote the entries.
    """

    def __init__(self, folder: Folder, table: DeltaTable, job: str) -> None:
        self._folder, self._table, self._job = folder, table, job

    def last_of_job(self) -> int | None:
        """Return the version of the job's newest log entry; None: no entry is left.

        In a table of an earlier version of the job, no `txn` action stores this version.
        """
        for version in range(self._table.version(), -1, -1):
            entry = read_entry(self._folder, version)
            if entry is None or entry.user_metadata.get("job") == self._job:
                return None if entry is None else version
        return None

    def break_since(self, version: int, *, may_be_emptied: bool = False) -> HistoryBreak | None:
        """Return the change that has removed the rows of a version from the table.

        Args:
            version: version of the job's last entry.
            may_be_emptied: True accepts an entry that deletes all rows, as an operator may do.

        Returns:
            None if no entry since has removed all of these rows; single rows may be deleted.
        """
        at = self._table.version()
        while at > version:
            entry = read_entry(self._folder, at)
            if entry is None:
                return HistoryBreak("unknown", at)
            if entry.operation == "RESTORE":
                target = self._restored(at, entry)
                if target is None or target < version:
                    return HistoryBreak("restored", at, target=target)
                at = target
            elif entry.replaces_all and not (may_be_emptied and entry.empties):
                # A dynamic overwrite replaces some partitions; its entry is that of an overwrite of all.
                some = entry.operation == "WRITE" and bool(self._table.metadata().partition_columns)
                return HistoryBreak("replaced", at, entry.operation, may_keep_partitions=some)
            else:
                at -= 1
        return None

    def version_of_rows(self) -> int | None:
        """Return the version of the job's newest entry with rows in the present table.

        Returns:
            `NO_ENTRY` or `REPLACED` if the table's rows come from no entry of the job; None if the log does not show
            the version.
        """
        for version, entry in self._entries_of_rows():
            if entry is None:
                return None
            if entry.user_metadata.get("job") == self._job:
                return version
            if entry.replaces_all:
                return REPLACED
        return NO_ENTRY

    def clone_of_rows(self) -> int | None:
        """Return the version of the CLONE entry with rows in the present table; None: the log shows no such entry."""
        found = (each for each, entry in self._entries_of_rows() if entry is not None and entry.operation == "CLONE")
        return next(found, None)

    def _entries_of_rows(self) -> Iterator[tuple[int, Entry | None]]:
        """Yield version and entry of each commit with rows in the present table, newest first.

        The last entry is None if the log does not show it.
        """
        at = self._table.version()
        while at >= 0:
            entry = read_entry(self._folder, at)
            yield at, entry
            if entry is None or entry.replaces_all:
                return
            target = self._restored(at, entry) if entry.operation == "RESTORE" else at - 1
            if target is None:
                yield at, None
                return
            at = target

    def as_of(self, version: int) -> DeltaTable | None:
        """Return the table at an older version; None: that version cannot be read any more."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            return DeltaTable(self._folder.uri, version=version, storage_options=self._folder.options)
        except (DeltaError, OSError):
            return None

    def _restored(self, version: int, entry: Entry) -> int | None:
        """Return the version that a RESTORE entry has restored; None: unknown.

        After a restore by time, the entry contains only a time in the writer's time zone. The version is then the
        newest earlier one with the same list of files.
        """
        named = entry.parameters.get("version")
        if named is not None and str(named).isdecimal():
            return int(named)
        after = self._files(version)
        for earlier in range(version - 1, -1, -1):
            before = self._files(earlier)
            if before is None or before == after:
                return None if before is None else earlier
        return None

    def _files(self, version: int) -> set[str] | None:
        table = self.as_of(version)
        return None if table is None else set(table.file_uris())
