"""MirrorMaker 2 as people run it: one process between two Kafkas, at least once.

After raising Kafka's version, write the lock file anew with `python -m tests.mirror.mirror_maker`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from rich.console import Console

from kafka_ratchet.app.local.jars import KAFKA_VERSION, JarSet, lock_lines, read_lock, resolve
from kafka_ratchet.app.local.java import find_java

LOCK_FILE: Final = Path(__file__).with_name("jars.lock")
MIRROR_MAKER: Final = JarSet(
    "mirror-maker",
    (
        f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ),
)
SETTINGS: Final = """
clusters = here, there
here.bootstrap.servers = {here}
there.bootstrap.servers = {there}
here->there.enabled = true
there->here.enabled = false
here->there.topics = {topic}
# The topic keeps its name: whoever reads it there reads it under the settings from here.
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
here->there.emit.heartbeats.enabled = false
here->there.emit.checkpoints.enabled = false
here->there.sync.topic.acls.enabled = false
refresh.topics.interval.seconds = 1
tasks.max = 1
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
config.storage.replication.factor = 1
status.storage.replication.factor = 1
# Kafka's defaults of Connect: at least once, offsets once a minute. One that is killed copies a minute's records again.
"""


class MirrorMaker:
    """Copies a topic from one Kafka to the other."""

    def __init__(self, folder: Path, here: str, there: str, topic: str) -> None:
        """here, there: host:port."""
        self.config, self.log = folder / "mirror.properties", folder / "mirror.log"
        self.config.write_text(SETTINGS.format(here=here, there=there, topic=topic))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        jars = resolve(MIRROR_MAKER, Console(stderr=True), lock=read_lock(MIRROR_MAKER.name, LOCK_FILE))
        command = [str(find_java()), "-Xmx256m", "-cp", ":".join(map(str, jars))]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "org.apache.kafka.connect.mirror.MirrorMaker", str(self.config)], stdout=log, stderr=log
            )

    def kill(self) -> None:
        """SIGKILL; nothing where it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None


if __name__ == "__main__":
    print("# SHA-256 of every jar of MirrorMaker 2. Written by `python -m tests.mirror.mirror_maker`; do not edit.")
    print(*lock_lines(MIRROR_MAKER, Console(stderr=True)), sep="\n")
