"""The errors of the Spark job.

    SinkError                  everything the job raises on purpose; its text is meant for the person who runs it
    ├── OptionRefused          an argument of the job is wrong
    ├── KafkaUnavailable       Kafka did not answer, or refused to
    ├── TopicMissing           the topic to read does not exist
    ├── OffsetsLost            retention has removed records that the table does not have yet
    ├── TopicRecreated         the table's offsets stem from another topic of the same name
    ├── RowsLost               the table no longer has the rows that its offsets stand for
    ├── SchemaDiffers          the table has other columns than the job wants to write
    ├── WriteModeDiffers            the rows in the table came there by another kind, key or sums
    ├── SparkFailed            Spark could not read or compute the records of a range
    ├── StoreError             the result table cannot be opened, read or written
    └── Fenced                 another job of the same name has taken over

The package ships alone to Spark clusters, so this tree has a root of its own.
"""

from __future__ import annotations


class SinkError(Exception):
    """Root of the tree."""


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


class WriteModeDiffers(SinkError):
    """The job's rows came into the table by another kind, key or sums; going on would double or overwrite silently."""


class SparkFailed(SinkError):
    """Spark could not read or compute the records of a range; how far the table is, the table knows."""


class StoreError(SinkError):
    """The result table cannot be opened, read or written."""


class Fenced(SinkError):
    """Another job of the same name has taken over; nothing of this one becomes visible any more."""
