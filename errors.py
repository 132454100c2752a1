"""Exception tree of Ratchet.

    RatchetError                    everything that Ratchet raises on purpose
    ├── SetupError                  this machine lacks something (Java, jars, a free port)
    ├── SettingsError               a setting is wrong; names the setting and the remedy
    │   └── NotInApp                the program uses an attribute of faust.App that kafka_ratchet.App lacks
    ├── BrokerUnavailable           Kafka did not answer within the limit
    │   └── KafkaRefused            Kafka rejects the client's login, or the client rejects Kafka's certificate
    ├── TopicError                  a topic is missing, or has an unfit partition count, configuration or writer
    │   ├── TopicMissing
    │   ├── TopicReplaced           a topic was deleted, and perhaps created again under the same name
    │   ├── PartitionsDiffer        a topic has another partition count than it must have
    │   └── TopicTaken              another application or stream writes to a topic that must have one writer
    ├── SourceError                 a source to publish or compare, or its stored progress, cannot be used
    ├── ReaderError                 a reader with a database of its own cannot continue
    │   ├── ReaderFenced            another process has taken over partitions of the reader
    │   ├── BatchUnread             librdkafka reads a record batch only in part
    │   ├── DatabaseUnavailable     its database does not answer within the limit
    │   ├── PositionNotStored       its database stored another position than the reader wrote
    │   └── ReaderMisused           the program ended the reader's transaction, or used the reader in a forbidden way
    ├── FaultRunFailed              a setup or worker under injected faults did not recover, or cannot be measured
    ├── BenchFailed                 a bench cannot be built, does not start, or does not reach the end of its input
    ├── TransportError              a partition cannot be processed further until something changes
    │   ├── CorruptBatch            fetched bytes are not a valid record batch
    │   ├── BatchTooLarge           a batch unpacks to more than max_batch_mb
    │   ├── PositionLost            the committed offset is outside the topic's present records
    │   ├── LogTruncated            a partition's log lost records already read; new records may have the same offsets
    │   ├── FormUnclear             sequences seem to have another format than this stream decodes
    │   ├── RecordTooLarge          a record exceeds max.message.bytes of its destination topic
    │   ├── RecordRefused           Kafka rejects a record, now and at every further try
    │   ├── ProducerFenced          a newer producer has taken over the name of this producer
    │   └── TransactionError        a transaction has failed
    │       ├── Fenced              another worker has taken over the partition
    │       └── Aborted             the transaction is not known to be committed; the lane restarts
    ├── AgentFailed                 an agent or timer raised, returned, or held its transaction too long
    ├── SendRefused                 an agent sent a record without a current event, or to a forbidden topic
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
    """Root of Ratchet's error classes: an error with a text for the operator."""


class SetupError(RatchetError):
    """Machine that lacks something Ratchet needs, or on which a part of Ratchet could not be started."""


class SettingsError(RatchetError):
    """Setting that is unknown, has a bad value, or contradicts another."""


class NotInApp(SettingsError, AttributeError):
    """Use of an attribute of faust.App that kafka_ratchet.App lacks; the message names the replacement."""


class BrokerUnavailable(RatchetError):
    """Kafka cluster that did not answer within the time limit."""


class KafkaRefused(BrokerUnavailable):
    """Login rejected by Kafka, or certificate rejected by either side. Retrying does not help."""


class TopicError(RatchetError):
    """Topic that is missing, or has an unfit partition count, configuration or writer."""


class TopicMissing(TopicError):
    """Missing topic that Ratchet must not create."""


class TopicReplaced(TopicError):
    """Topic that was deleted, and perhaps created again: its earlier records are lost."""


class PartitionsDiffer(TopicError):
    """Topic with a partition count other than the required one."""


class TopicTaken(TopicError):
    """Topic with another writer: an application or stream that has claimed it, or a foreign program."""


class SourceError(RatchetError):
    """Source of records to publish or compare that cannot be used, or its stored progress."""


class ReaderError(RatchetError):
    """Failure of a reader that stores rows and offsets in the user's database."""


class BatchUnread(ReaderError):
    """Record batch that librdkafka reads only in part, such as a gzip batch of several members."""


class ReaderFenced(ReaderError):
    """Takeover of a reader's partitions by another process. The transaction of the former process is rolled back."""


class DatabaseUnavailable(ReaderError):
    """Database that does not answer within the limit, or that another process has locked."""


class PositionNotStored(ReaderError):
    """Database that stored another position than the reader wrote. The transaction is rolled back."""


class ReaderMisused(ReaderError):
    """Forbidden use of a reader by the program.

    The program ended the reader's transaction, used it after its end, began another loop, or used the reader outside
    `with` or in two threads at once.
    """


class FaultRunFailed(RatchetError):
    """Setup or test worker that did not recover from injected faults, or that cannot be measured."""


class BenchFailed(RatchetError):
    """Bench subject that cannot be built, does not start, or does not reach the end of its input."""


class TransportError(RatchetError):
    """Partition that cannot be processed further until something changes."""


class CorruptBatch(TransportError):
    """Fetched bytes that are no valid record batch. The partition halts, as Kafka's own consumers do."""


class BatchTooLarge(TransportError):
    """Batch larger than max_batch_mb after decompression. Its partition halts, and the other partitions continue."""


class PositionLost(TransportError):
    """Next offset to read that lies outside the partition's present records."""


class LogTruncated(TransportError):
    """Loss of a partition's newest records after they were read (KIP-320, KIP-595).

    Other records may have the same offsets now.

    Attributes:
        is_certain: True if the leader's epochs prove the loss. False if the leader does not know the epoch of the
            records read; this also happens after a change of leaders
    """

    is_certain = False


class FormUnclear(TransportError):
    """Sequences that seem to have another format than this stream decodes.

    Decoded in the stream's format, new records would count as duplicates and be dropped.
    """


class RecordTooLarge(TransportError):
    """Record larger than max.message.bytes of its destination topic."""

    sequence: int | None = None
    """Sequence of the record, if the producer of batches refused it; None: it is unknown."""


class RecordRefused(TransportError):
    """Record that Kafka rejects, now and at every further try."""


class ProducerFenced(TransportError):
    """Takeover of a producer's name by a newer producer. Kafka accepts nothing more from the older one."""


class TransactionError(TransportError):
    """Kafka transaction that failed."""


class Fenced(TransactionError):
    """Takeover of a partition by another worker. The former owner's open transaction never becomes visible."""


class Aborted(TransactionError):
    """Transaction that is not known to be committed. The lane rereads its partition from the last commit."""


class AgentFailed(RatchetError):
    """Agent or timer that raised an exception, returned, or held its transaction too long.

    Its partition starts again or halts.
    """


class SendRefused(RatchetError):
    """Send without a current event, to the agent's own input, or to a topic that the app does not declare."""


class StateError(RatchetError):
    """State of a partition that cannot be used."""


class StateFolderInUse(StateError):
    """State folder that another worker has locked."""


class StateFileRefused(StateError):
    """File of `ratchet verify --state` that is damaged, belongs to another check, or cannot be read or written."""


class StoreDamaged(StateError):
    """Damaged local store. The worker rebuilds it from the changelog."""


class StateAhead(StateError):
    """Local store with newer entries than its changelog, which was perhaps deleted and created again."""


class ChangelogLost(StateError):
    """Changelog that lacks entries committed together with the input offset. Duplicates would pass."""


class ForeignOffset(StateError):
    """Offset that another client committed in the worker's group. It does not show which records were judged."""


class OwnerDiffers(StateError):
    """Changelog written by another application or stream, under another rule, or in a newer format."""


class PolicyLost(StateError):
    """Loss of the policy topic's last records after a partition had applied a policy from them.

    The present policy is unknown.
    """


class TableError(StateError):
    """Key or value that does not fit its table, or a table used without a current partition."""
