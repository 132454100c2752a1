"""Errors of the Spark job: `SinkError`, and below it one class for each reason.

The package ships alone to Spark clusters, so this tree has a root of its own.
"""

from __future__ import annotations

from typing import NoReturn


class SinkError(Exception):
    """Error that the job raises on purpose, with a text for its operator."""


def first_line(error: Exception) -> str:
    """Return the sentence of a library's error, without full stop and further lines.

    delta-rs, for one, appends a native stack trace where RUST_BACKTRACE is set.
    """
    return str(error).partition("\n")[0].rstrip(".")


class OptionRefused(SinkError):
    """Refusal of an argument: unknown, contradictory, or with a bad value."""


class KafkaUnavailable(SinkError):
    """Failure of Kafka to answer within the limit, or its refusal of the request."""


class TopicMissing(SinkError):
    """Absence of the topic to read."""


class OffsetsLost(SinkError):
    """Loss of the record that the table needs next; going on would skip events silently."""


class TopicRecreated(SinkError):
    """Mismatch of topics: the stored offsets belong to another one of that name.

    Going on would skip or repeat events silently.
    """


class RowsLost(SinkError):
    """Mismatch of rows and offsets: the table alone was put back, emptied or replaced.

    Going on would skip rows silently.
    """


class SchemaDiffers(SinkError):
    """Mismatch of columns or types between the result table and the job."""


class SecondJob(SinkError):
    """Second job for a topic in one table: every row would be added once more."""


class WriteModeDiffers(SinkError):
    """Mismatch of kind, key or sums between the job and its rows.

    Going on would double or overwrite rows silently.
    """


class RuleDiffers(SinkError):
    """Mismatch of rules: the job's rows were judged by another one, or by workers.

    Going on would double or drop records silently.
    """


class SequencesLost(SinkError):
    """Loss of the last sequences of a job that judges, or their mismatch with its rows."""


class SparkFailed(SinkError):
    """Failure of Spark to read or compute a range's records. The table knows its own offsets."""


class RegistryUnavailable(SinkError):
    """Failure of the schema registry to answer, or to answer sensibly.

    No value is judged until it does.
    """


class RegistryRefused(SinkError):
    """Refusal of our credentials by the schema registry."""


class StoreError(SinkError):
    """Failure to open, read or write the result table."""


class Fenced(SinkError):
    """Take-over by another job of the same name; this one's later commits stay invisible."""


class RuleBroken(StoreError):
    """Refusal of a row by a foreign rule of the table; nothing of the commit is in it."""


NOTHING = "Nothing was added and no offset moved"
"""Extent of a refusal of a whole commit."""


def refuse_rule(where: object, reason: str, rules: str = "", extent: str = NOTHING) -> NoReturn:
    """Raise the refusal of a table's own rule.

    Args:
        where: the store, as messages name it.
        reason: sentence of the database, with the rule's name.
        rules: other rules of the table that may be the cause; empty: `reason` names it.
        extent: extent of the refusal.
    """
    named = f" The table has: {rules}." if rules else ""
    raise RuleBroken(
        f"{where}: a rule of the table refuses a row: {reason.rstrip('.')}.{named} {extent}. Drop or change the rule, "
        "and run again: every row is added then. Or let the job write no such row"
    ) from None


def refuse(where: object, error: Exception, look_at: str) -> NoReturn:
    """Raise an error of a store's library or the disk as `StoreError`.

    Args:
        where: the store, as messages name it.
        error: the raised error.
        look_at: place that shows the reason.
    """
    raise StoreError(f"{where}: {first_line(error)}. Look at {look_at}, then run again") from None
