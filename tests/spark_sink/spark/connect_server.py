"""The real server of Spark Connect, from pyspark's own distribution."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka_ratchet.app.local.jars import spark_jars
from tests.spark_sink.spark.standalone import SPARK_HOME, environment, kill_group, wait_for


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """The address of a server; its log is in connect.log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    words = [str(SPARK_HOME / "bin" / "spark-submit"), "--master=local[2]"]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    words += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    words += [f"--jars={','.join(map(str, spark_jars()))}", "spark-internal"]
    with (folder / "connect.log").open("wb") as log:
        server = subprocess.Popen(words, env=environment(), cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for("the server listens", lambda: server.poll() is not None or _listens(port))
        assert server.poll() is None, (folder / "connect.log").read_text("utf-8", "replace")[-5_000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        kill_group(server)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
