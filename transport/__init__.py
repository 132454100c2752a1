"""Kafka record batches in and out: columns, raw fetch, lanes with one transaction per input partition.

A reader's way in: `_lane.py` (one partition from fetch to commit), `_transaction.py` (the one place that talks
transactions), `_record_batch.py` and `_kernels.py` (bytes to columns), `_encoding.py` (columns to bytes), `_cluster.py`
(requests).
"""

from transport._assignor import RULES, RuledAssignor, protocol_of
from transport._by_id import NO_EPOCH, TopicState, id_text
from transport._changelog import Changelog, ChangelogReader, Sighting
from transport._cluster import EARLIEST, LATEST, Cluster
from transport._crash import POINTS as CRASH_POINTS
from transport._crash import SETTLEMENT_POINTS, crash_point
from transport._crash import VARIABLE as CRASH_AT
from transport._delivery import Delivery
from transport._encoding import BATCH_WRITTEN, EncodedBatch, encode_entries, entry_batch, forward, pack_entries
from transport._faust import LaneChannel, Lanes, LaneTableManager
from transport._hanging import Hanging, end_hanging, find_hanging
from transport._lane import Lane
from transport._lane_spec import LaneSpec, LaneState, LaneStatus
from transport._move import PartitionMove
from transport._owner import KEY as OWNER
from transport._owner import Decision, Owner
from transport._owner import Topic as OwnedTopic
from transport._partition_state import PartitionState
from transport._policy import AlwaysOn, Policy, Switch
from transport._record_batch import Header, RecordBatch, read_chunk
from transport._security import client_options
from transport._standby import Standby
from transport._transaction_requests import is_ours
from transport._until_stopped import done_before

__all__ = [
    "BATCH_WRITTEN",
    "CRASH_AT",
    "CRASH_POINTS",
    "EARLIEST",
    "LATEST",
    "NO_EPOCH",
    "OWNER",
    "RULES",
    "SETTLEMENT_POINTS",
    "AlwaysOn",
    "Changelog",
    "ChangelogReader",
    "Cluster",
    "Decision",
    "Delivery",
    "EncodedBatch",
    "Hanging",
    "Header",
    "Lane",
    "LaneChannel",
    "LaneSpec",
    "LaneState",
    "LaneStatus",
    "LaneTableManager",
    "Lanes",
    "OwnedTopic",
    "Owner",
    "PartitionMove",
    "PartitionState",
    "Policy",
    "RecordBatch",
    "RuledAssignor",
    "Sighting",
    "Standby",
    "Switch",
    "TopicState",
    "client_options",
    "crash_point",
    "done_before",
    "encode_entries",
    "end_hanging",
    "entry_batch",
    "find_hanging",
    "forward",
    "id_text",
    "is_ours",
    "pack_entries",
    "protocol_of",
    "read_chunk",
]
