"""A worker whose Faust finds no topics the first few times it assigns, as after a restart of Kafka."""

from typing import Any

from faust.assignor.partition_assignor import PartitionAssignor

from kafka_ratchet.app.cli import main

FORGETS = 2
whole = PartitionAssignor._get_copartitioned_groups
asked = 0


def forgetful(cls: Any, topics: set[str], cluster: Any, subscriptions: Any) -> Any:
    global asked
    asked += 1
    return whole(set() if asked <= FORGETS else topics, cluster, subscriptions)


if __name__ == "__main__":
    PartitionAssignor._get_copartitioned_groups = classmethod(forgetful)
    main()
