"""Whether the rows of a Delta table are still those that the `txn` actions of a job speak of, and can be kept so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused, StoreError, first_line
from kafka_ratchet.spark_sink.files.parquet import FILE_NAME
from kafka_ratchet.spark_sink.stores.delta.log import Folder, Log, read_entry
from kafka_ratchet.spark_sink.stores.store import rows_lost

if TYPE_CHECKING:
    from deltalake import DeltaTable

FORGETTING = "delta.setTransactionRetentionDuration"
"""Property after whose time Delta's writers drop `txn` actions: generation and offsets would be gone."""

MAPPING = "delta.columnMapping.mode"
"""Property with which files have other names for the columns than the table; the job's files have the table's."""


class Soundness:
    """Compares a table with what a job has noted in its log.

    Args:
        folder: of the table.
        job: the job's name.
        topic: the topic its offsets belong to.
    """

    def __init__(self, folder: Folder, job: str, topic: str) -> None:
        self._folder, self._name, self._topic = folder, job, topic
        self.version_key = f"ratchet-sink/{job}/version"
        self.rows_key = f"ratchet-sink/{job}/rows"

    def require(self, table: DeltaTable) -> None:
        """Refuse a table whose rows are not those that the `txn` actions stand for, or that may lose these.

        Raises:
            OptionRefused: a property of the table forbids it.
            RowsLost: it was restored or replaced, or its `txn` actions are gone.
        """
        require_plain_log(table, self._folder)
        if newest_generation(table, self._name) == 0:
            self._require_no_traces(table)
            return
        log = Log(self._folder, table, self._name)
        try:
            since = table.transaction_version(self.version_key)
            since = log.last_of_job() if since is None else since  # an earlier version has noted none
            found = None if since is None else log.break_since(since)
            if found is None or (found.kind == "unknown" and table.count() == table.transaction_version(self.rows_key)):
                return
            known = self.of_rows(table) is not None
        except OSError as error:
            raise StoreError(f"{self._folder}: its log cannot be read ({first_line(error)})") from None
        raise rows_lost(self._folder, found.sentence, known)

    def _require_no_traces(self, table: DeltaTable) -> None:
        """A job that has left files but no generation has lost its `txn` actions, or this is a copy without them."""
        names = (FILE_NAME.fullmatch(uri.rpartition("/")[2]) for uri in table.file_uris())
        found = any(written and written["job"] == self._name for written in names)
        try:  # a merge's files have other names, and its entries say whose they are
            found = found or Log(self._folder, table, self._name).last_of_job() is not None
        except OSError as error:
            raise StoreError(f"{self._folder}: its log cannot be read ({first_line(error)})") from None
        if found:
            raise rows_lost(
                self._folder,
                f"the table has rows that job {self._name} wrote, and its log has no offsets of it: they were erased, "
                "or it is a clone",
                self.of_rows(table) is not None,
            )

    def of_rows(self, table: DeltaTable) -> dict[int, int] | None:
        """Offsets that the rows there are now reach to; None: nothing says it any more."""
        try:
            return self._of_rows(table)
        except OSError as error:
            raise StoreError(f"{self._folder}: its log cannot be read ({first_line(error)})") from None

    def _of_rows(self, table: DeltaTable) -> dict[int, int] | None:
        log = Log(self._folder, table, self._name)
        version = log.version_of_rows()
        if version is None or version < 0:
            return None if version is None else {}
        then = log.as_of(version)
        if then is not None and newest_generation(then, self._name):
            return stored_offsets(then, self._name, self._topic)
        about = {} if (entry := read_entry(self._folder, version)) is None else entry.about
        if about.get("topic") != self._topic:
            return None
        return {int(partition): offset for partition, offset in about["offsets"].items()}


def require_plain_log(table: DeltaTable, folder: Folder) -> None:
    """Refuse properties under which offsets or rows of the job would get lost.

    Raises:
        OptionRefused: the table has one.
    """
    properties = table.metadata().configuration
    if FORGETTING in properties:
        raise OptionRefused(
            f"{folder}: the table has the property {FORGETTING} = {properties[FORGETTING]!r}, which erases the job's "
            f"offsets after that time; its rows would then be added once more. Take it away: ALTER TABLE "
            f"delta.`{folder}` UNSET TBLPROPERTIES ('{FORGETTING}')"
        )
    if properties.get(MAPPING, "none") != "none":
        raise OptionRefused(
            f"{folder}: the table has the property {MAPPING} = {properties[MAPPING]!r}, so that readers would not find "
            "the job's columns in its files. Take it away, or choose another path"
        )


CHUNK = 7
"""Bytes of a text in one `txn` action, whose version is a signed 64-bit integer."""


def _rule_key(job: str) -> str:
    """Under which the log keeps how long the rule is; the names of its pieces begin so. No topic's begin so."""
    return f"ratchet-sink/{job}/rule"


def rule_actions(job: str, rule: str) -> dict[str, int]:
    """The `txn` actions that keep a text of `rule_of`: they stay where entries of the log are cleaned up."""
    data, key = rule.encode("ascii"), _rule_key(job)
    pieces = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    return {key: len(data)} | {f"{key}.{n}": int.from_bytes(piece) for n, piece in enumerate(pieces)}


def stored_rule(table: DeltaTable, job: str) -> str:
    """The text again; empty: an earlier version has written the table, or nobody."""
    key = _rule_key(job)
    size, data = table.transaction_version(key) or 0, b""
    while len(data) < size:
        piece = table.transaction_version(f"{key}.{len(data) // CHUNK}") or 0
        data += piece.to_bytes(min(size - len(data), CHUNK))
    return data.decode("ascii")


def topic_key(job: str, topic: str) -> str:
    """How the names of a job's `txn` actions for a topic begin."""
    return f"ratchet-sink/{job}/{topic}"


def stored_offsets(table: DeltaTable, job: str, topic: str) -> dict[int, int]:
    """Next offset of each partition, by the `txn` actions."""
    key = topic_key(job, topic)
    count = table.transaction_version(f"{key}/partitions") or 0
    versions = {partition: table.transaction_version(f"{key}/{partition}") for partition in range(count)}
    return {partition: offset for partition, offset in versions.items() if offset is not None}


def generation_key(job: str) -> str:
    """Under which the log keeps the number of a job's newest holder."""
    return f"ratchet-sink/{job}/generation"


def newest_generation(table: DeltaTable, job: str) -> int:
    """Number of the newest holder; 0: there was none."""
    return table.transaction_version(generation_key(job)) or 0
