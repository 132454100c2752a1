"""Settings of topics that a test changes."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

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
