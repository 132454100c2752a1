"""Publishing under a name: what was sent before a crash is not sent into the void, and nothing is left out.

A producer has a name, every record a sequence, and both travel in headers (PIP-6). `Producer` sends and remembers in
Kafka how far its name has come; a `Source` can be read again from any sequence; `publish` brings the two together. The
room needs confluent-kafka and nothing else of Ratchet, except the error tree.
"""

from producers._client import END_OF_PARTITION, PASSING
from producers._files import FileSource, Format
from producers._headers import PRODUCER_HEADER, SEQUENCE_HEADER
from producers._producer import Producer
from producers._progress import PROGRESS_TOPIC, Progress
from producers._publish import Published, publish
from producers._source import Record, Source
from producers._topics import TopicShape, admin_client, create_topic, describe_topic

__all__ = [
    "END_OF_PARTITION",
    "PASSING",
    "PRODUCER_HEADER",
    "PROGRESS_TOPIC",
    "SEQUENCE_HEADER",
    "FileSource",
    "Format",
    "Producer",
    "Progress",
    "Published",
    "Record",
    "Source",
    "TopicShape",
    "admin_client",
    "create_topic",
    "describe_topic",
    "publish",
]
