"""Errors of the Spark job: `SinkError`, and a subclass for each reason.

The package ships alone to Spark clusters, so its errors have a base class of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


class SinkError(Exception):
    """Error that the job raises on purpose, with a text for its operator."""


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message, without its full stop.

    Further lines may be a native stack trace, as from delta-rs with RUST_BACKTRACE set.
    """
    return str(error).partition("\n")[0].rstrip(".")


class OptionRefused(SinkError):
    """Error for an invalid argument: unknown, contradictory, or with a bad value."""


class KafkaUnavailable(SinkError):
    """Error for a request that Kafka refuses, or does not answer within the time limit."""


class TopicMissing(SinkError):
    """Error for a missing input topic."""


class OffsetsLost(SinkError):
    """Error for a deleted record that the table needs next. To continue would skip events silently."""


class TopicRecreated(SinkError):
    """Error for stored offsets that belong to another topic of the same name.

    To continue would skip or repeat events silently.
    """


class RowsLost(SinkError):
    """Error for a table that was restored, emptied or replaced while the stored offsets stayed.

    To continue would skip rows silently.
    """


class RowsAhead(RowsLost):
    """Error for a table with rows after the stored offsets.

    The offsets were removed, or restored without the rows. To continue would add these rows a second time.
    """


class SchemaDiffers(SinkError):
    """Error for a result table with other columns or types than the job's."""


class SecondJob(SinkError):
    """Error for a second job that reads the same topic, or the same events, into one table.

    To continue would add every row twice.
    """


class WriteModeDiffers(SinkError):
    """Error for a job with another kind of result, key or sums than its table's rows.

    To continue would double or overwrite rows silently.
    """


class RuleDiffers(SinkError):
    """Error for a job with other deduplication settings than its table's rows.

    To continue would double or drop records silently.
    """


class SequencesLost(SinkError):
    """Error for a deduplicating job if its stored last sequences are lost, or belong to other rows."""


class SparkFailed(SinkError):
    """Error for Spark's failure to read or compute records. The table's stored offsets remain valid."""


class RegistryUnavailable(SinkError):
    """Error for a schema registry without a usable answer.

    Until the registry answers, no value is accepted or rejected.
    """


class RegistryRefused(SinkError):
    """Error for credentials that the schema registry refuses."""


class StoreError(SinkError):
    """Error for a result table that cannot be opened, read or written."""


class Interrupted(StoreError):
    """Error of a query that a signal ended; the program has to stop, and must not try again."""


class Fenced(SinkError):
    """Error for a job fenced by a newer job of its name; later commits of the older job stay invisible."""


class TablePutBack(SinkError):
    """Error for a table put back to an earlier state while the job ran.

    No newer run has taken over: the next run goes on from the table's offsets.
    """


class RuleBroken(StoreError):
    """Error for a row that a constraint of the table refuses. The message tells how much of the commit was refused."""


NOTHING = "Nothing was added and no offset moved"
"""Sentence for errors after which the table has nothing of a commit."""


def refuse_rule(where: object, reason: str, rules: str = "", extent: str = NOTHING) -> NoReturn:
    """Raise the error for a row refused by a constraint of the table.

    Args:
        where: the store, for the message.
        reason: the database's message, which may name the constraint.
        rules: constraints that may be the cause; empty if `reason` names the constraint.
        extent: sentence that tells how much of the commit was refused.
    """
    named = f" The table has: {rules}." if rules else ""
    raise RuleBroken(
        f"{where}: a constraint of the table refuses a row: {reason.rstrip('.')}.{named} {extent}. Drop or change "
        "the constraint and run the job again, which then adds every row. Or change the job so that it writes no "
        "such row"
    ) from None


def refuse_several_rows(where: object, key: Sequence[str]) -> NoReturn:
    """Refuse a commit that changes a key with several rows in the table.

    Args:
        where: the table, for the message.
        key: names of the key columns.
    """
    raise StoreError(
        f"{where}: the table has several rows of one key ({', '.join(key)}), and the commit changes such a row. "
        f"{NOTHING}. Make one row of them and run the job again, or choose another table or key. If the job then "
        "refuses the changed table, give 'ratchet sink resume --from stored' first"
    )


def refuse(where: object, error: Exception, look_at: str) -> NoReturn:
    """Raise a `StoreError` for an error of a store's library or the disk.

    Args:
        where: the store, for the message.
        error: the raised error.
        look_at: noun phrase for the message: the component that the operator should check.
    """
    raise StoreError(f"{where}: {first_line(error)}. Look at {look_at}, then run again") from None
