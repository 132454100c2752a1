"""The errors of the Spark job: `SinkError`, and below it one class for each reason.

The package ships alone to Spark clusters, so this tree has a root of its own.
"""

from __future__ import annotations

from typing import NoReturn


class SinkError(Exception):
    """What the job raises on purpose; the text is meant for the person who runs it."""


def first_line(error: Exception) -> str:
    """What a library's error says, without a full stop and without the detail that some add in further lines.

    delta-rs, for one, appends a native stack trace where RUST_BACKTRACE is set.
    """
    return str(error).partition("\n")[0].rstrip(".")


class OptionRefused(SinkError):
    """An argument is unknown, has a bad value, or contradicts another."""


class KafkaUnavailable(SinkError):
    """Kafka did not answer within the limit, or refused the request."""


class TopicMissing(SinkError):
    """The topic to read does not exist."""


class OffsetsLost(SinkError):
    """The topic no longer holds the record that the table needs next; going on would skip events silently."""


class TopicRecreated(SinkError):
    """The stored offsets belong to another topic of that name; going on would skip or repeat events silently."""


class RowsLost(SinkError):
    """The table was put back, emptied or replaced, and its offsets were not; going on would skip rows silently."""


class SchemaDiffers(SinkError):
    """The result table has other columns, or other types, than the job wants to write."""


class SecondJob(SinkError):
    """A job of another name has committed this topic to the table; a second one would add every row once more."""


class WriteModeDiffers(SinkError):
    """The job's rows came into the table by another kind, key or sums; going on would double or overwrite silently."""


class RuleDiffers(SinkError):
    """The job's rows were judged by another rule, or by workers; going on would double or drop records silently."""


class SequencesLost(SinkError):
    """The last sequences that the job judges by are gone, or are not those of its rows."""


class SparkFailed(SinkError):
    """Spark could not read or compute the records of a range; how far the table is, the table knows."""


class RegistryUnavailable(SinkError):
    """The schema registry does not answer, or answers nonsense; no value is judged until it does."""


class RegistryRefused(SinkError):
    """The schema registry does not take our credentials."""


class StoreError(SinkError):
    """The result table cannot be opened, read or written."""


class Fenced(SinkError):
    """Another job of the same name has taken over; nothing of this one becomes visible any more."""


class RuleBroken(StoreError):
    """A foreign rule of the table does not take a row; nothing of the commit is in it."""


NOTHING = "Nothing was added and no offset moved"
"""Extent of a refusal of a whole commit."""


def refuse_rule(where: object, reason: str, rules: str = "", extent: str = NOTHING) -> NoReturn:
    """Raise the refusal of a table's own rule.

    Args:
        where: the store, as messages name it.
        reason: sentence of the database, with the rule's name.
        rules: other rules of the table that may be the cause; empty: `reason` names it.
        extent: of the refusal.
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
        error: what was raised.
        look_at: where the reason is to be found.
    """
    raise StoreError(f"{where}: {first_line(error)}. Look at {look_at}, then run again") from None
