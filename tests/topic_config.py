"""Topics that a test changes: their settings, and topics that are deleted and created again."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

LIMIT_S = 60
NEXT = "file.delete.delay.ms"
"""Setting that no test looks at."""


def set_topic_config(admin: AdminClient, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic, and wait until the broker works by it.

    Kafka answers once the controller has written the change. The broker names it a little later, and its log works by
    it later still. A broker applies one change after another, so when it names the next one, this one is in force, and
    so is what the caller changed before, such as access rules.
    """
    _set(admin, topic, name, value)
    for next_value in ("60001", "60000"):
        _set(admin, topic, NEXT, next_value)


def _set(admin: AdminClient, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    deadline = time.monotonic() + LIMIT_S
    asked = ConfigResource(ResourceType.TOPIC, topic)
    while admin.describe_configs([asked])[asked].result(30)[name].value != value:
        assert time.monotonic() < deadline, f"{topic}: the broker does not name {name}={value}"
        time.sleep(0.02)


def recreate_topic(broker: str, topic: str, partitions: int = 1) -> None:
    """Delete a topic, create it again, and wait until each partition has a leader."""
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + LIMIT_S
    while (answer := admin.create_topics([NewTopic(topic, partitions, 1)])[topic].exception(30)) is not None:
        assert "already exists" in str(answer)  # Kafka answers before the deletion is done
        assert time.monotonic() < deadline, f"{topic} is still there"
        time.sleep(0.05)
    wait_for_partitions(broker, topic, partitions)


def wait_for_partitions(broker: str, topic: str, partitions: int) -> None:
    """Wait until Kafka names this number of partitions, each with a leader."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = AdminClient({"bootstrap.servers": broker}).list_topics(topic, timeout=60).topics[topic].partitions
        if len(found) == partitions and all(partition.leader >= 0 for partition in found.values()):
            return
        assert time.monotonic() < deadline, f"{topic} never had {partitions} partitions with a leader"
        time.sleep(0.05)
