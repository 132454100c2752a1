"""Exception tree of Ratchet.

    RatchetError                    everything that Ratchet raises on purpose
    ├── SetupError                  this machine lacks something (Java, jars, a free port)
    ├── SettingsError               a setting is wrong; names the setting and the remedy
    │   └── NotInApp                Faust's App has the name, an App of kafka_ratchet has not
    ├── BrokerUnavailable           Kafka did not answer within the limit
    │   └── KafkaRefused            Kafka does not let this client in, or has a certificate that it refuses
    ├── TopicError                  a topic is missing or has the wrong shape
    │   ├── TopicMissing
    │   ├── TopicReplaced           a topic's name belongs to another topic than before, or none
    │   ├── PartitionsDiffer        partition counts that must be equal are not
    │   └── TopicTaken              another application or stream writes to a topic that must have one writer
    ├── SourceError                 a file to publish cannot be read
    ├── ReaderError                 a reader with a database of its own cannot go on
    │   ├── ReaderFenced            another process has taken over the reader's partitions
    │   ├── DatabaseUnavailable     its database does not answer within the limit
    │   └── ReaderMisused           the program has ended the reader's transaction, or uses one that has ended
    ├── FaultRunFailed              a site under injected faults did not come back, or cannot be counted
    ├── BenchFailed                 a bench cannot be built, does not start, or does not come to its end
    ├── TransportError              a partition cannot go on as it is
    │   ├── CorruptBatch            fetched bytes are not a valid record batch
    │   ├── BatchTooLarge           a batch unpacks to more than max_batch_mb
    │   ├── PositionLost            the committed offset is outside the topic's present records
    │   ├── LogTruncated            the log lost its end after it was read; others may stand at its offsets
    │   ├── FormUnclear             sequences seem to be written in another form than they are read in
    │   ├── RecordTooLarge          a record does not fit the topic it has to go to
    │   ├── RecordRefused           Kafka does not take a record into the topic it has to go to
    │   ├── ProducerFenced          a newer producer has taken over this one's name
    │   └── TransactionError
    │       ├── Fenced              another owner of the partition has taken over
    │       └── Aborted             nothing of the transaction is visible; the lane starts it again
    ├── AgentFailed                 an agent raised, returned, or was abandoned
    ├── SendRefused                 a record was sent without a current event, or to a topic of the stream's own
    └── StateError                  the local state cannot be used
        ├── TableError              a key or value does not fit its table, or a table is used outside its agent
        ├── StateFolderInUse        another worker holds the folder
        ├── StateFileRefused        the file of `ratchet verify --state` cannot be used
        ├── StoreDamaged            the local store's files are damaged; it is rebuilt
        ├── StateAhead              the local store is ahead of the changelog it stems from
        ├── ChangelogLost           the changelog lacks counted records
        ├── ForeignOffset           another client has committed in the group
        ├── OwnerDiffers            the changelog is another application's, stream's or rule's, or of a newer format
        └── PolicyLost              the policy topic ends before a partition's last policy

spark_sink/ ships alone to Spark clusters and imports nothing of the other packages, so its errors
(`SinkError`, `Fenced`) have a root of their own in spark_sink/errors.py.

A message says what happened, to which topic, partition, offset and identity, and what to do.
"""


class RatchetError(Exception):
    """Root of the tree: an error with a text for the operator."""


class SetupError(RatchetError):
    """This machine lacks something Ratchet needs, or a part could not be started."""


class SettingsError(RatchetError):
    """A setting is unknown, has a bad value, or contradicts another."""


class NotInApp(SettingsError, AttributeError):
    """Faust's App has the name, an App of kafka_ratchet has not; the text says what stands for it."""


class BrokerUnavailable(RatchetError):
    """Kafka did not answer within the limit."""


class KafkaRefused(BrokerUnavailable):
    """Refusal of a login or certificate, by Kafka or by this client. Another try does not help."""


class TopicError(RatchetError):
    """A topic is missing or has the wrong shape."""


class TopicMissing(TopicError):
    """Missing topic that Ratchet must not create."""


class TopicReplaced(TopicError):
    """Topic deleted and created again: it lacks the records acknowledged under its name."""


class PartitionsDiffer(TopicError):
    """Topics that must have equal partition counts do not."""


class TopicTaken(TopicError):
    """Another application or stream writes to a topic that must have one writer."""


class SourceError(RatchetError):
    """A source to publish cannot be read as asked."""


class ReaderError(RatchetError):
    """A reader that keeps rows and offsets in a database of the user's own cannot go on."""


class BatchUnread(ReaderError):
    """Batch of records that librdkafka does not read to its end, such as a gzip batch of several members."""


class ReaderFenced(ReaderError):
    """Another process reads under the name; nothing of this one's transaction is in the database."""


class DatabaseUnavailable(ReaderError):
    """The database does not answer within the limit, or another process has it."""


class PositionNotStored(ReaderError):
    """The database has not stored a reader's position as given; nothing of the transaction is in it."""


class ReaderMisused(ReaderError):
    """Reader's transaction ended by the program, or used after its end."""


class FaultRunFailed(RatchetError):
    """Failure under injected faults: the site did not come back, or its results cannot be counted."""


class BenchFailed(RatchetError):
    """Bench subject that cannot be built, does not start, or does not reach the end of its input."""


class TransportError(RatchetError):
    """A partition cannot go on as it is."""


class CorruptBatch(TransportError):
    """Fetched bytes are not a valid record batch; the partition halts, as Kafka's own consumers do."""


class BatchTooLarge(TransportError):
    """A batch unpacks to more than it may; its partition halts, the others go on."""


class PositionLost(TransportError):
    """Committed offset outside the topic's present records."""


class LogTruncated(TransportError):
    """Log that lost its end after it was read (KIP-320, KIP-595).

    Other records may stand at its offsets.

    Attributes:
        is_certain: True where a leader's epochs prove it; False where the leader only lacks the epoch of the read, as
            a replaced one does
    """

    is_certain = False


class FormUnclear(TransportError):
    """Sequences that seem to be written in another form than they are read in; new records would be dropped."""


class RecordTooLarge(TransportError):
    """A record does not fit the topic it has to go to."""


class RecordRefused(TransportError):
    """Record that Kafka does not take into its topic, and will not at the next try either."""


class ProducerFenced(TransportError):
    """A newer producer has taken over the name; this one sends nothing any more."""


class TransactionError(TransportError):
    """A Kafka transaction did not go through."""


class Fenced(TransactionError):
    """Another owner of the partition has taken over; nothing of this one becomes visible any more."""


class Aborted(TransactionError):
    """Transaction without a known commit; the lane reads its partition again from the last one."""


class AgentFailed(RatchetError):
    """Agent that raised, returned, or was abandoned; its partition starts again or halts."""


class SendRefused(RatchetError):
    """A record cannot be sent: no event is at hand, or the topic is not one that this stream's agents may write to."""


class StateError(RatchetError):
    """The local state of a partition cannot be used."""


class StateFolderInUse(StateError):
    """Another worker holds the state folder."""


class StateFileRefused(StateError):
    """The file of `ratchet verify --state` is damaged, of another proof, or cannot be written."""


class StoreDamaged(StateError):
    """Damaged local store. The changelog has everything: it is rebuilt."""


class StateAhead(StateError):
    """The local store is ahead of the changelog it stems from (topic deleted and created again?)."""


class ChangelogLost(StateError):
    """Changelog without the entries committed together with the input position: duplicates would pass."""


class ForeignOffset(StateError):
    """An offset of the group that another client has committed: it does not tell which records were judged."""


class OwnerDiffers(StateError):
    """The changelog was written by another application or stream, under another rule, or in a newer format."""


class PolicyLost(StateError):
    """Policy topic that ends before a partition's last policy: whether to judge would be a guess."""


class TableError(StateError):
    """Key or value that does not fit its table, or a table used without a current partition."""
