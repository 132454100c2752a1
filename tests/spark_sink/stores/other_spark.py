"""Another Spark, with Delta's writer and Iceberg's runtime, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka_ratchet.app.local.jars import JarSet, resolve
from tests.spark_sink.spark.environment import python_with

RELEASE = "4.0"
"""Of the other Spark. Iceberg has no runtime for 4.2 yet, and both have one for 4.0."""
DELTA = JarSet(
    "delta-spark-4.0",
    ("io.delta:delta-spark_2.13:4.0.0",),
    # pyspark ships these.
    ("org.scala-lang:*", "org.antlr:*", "org.apache.spark:*"),
)
DELTA_LOCK = {
    "delta-spark_2.13-4.0.0.jar": "538511702aae0ef6973a6a70af3d4543c9009f8edbed786a00737e2d3cd7f04e",
    "delta-storage-4.0.0.jar": "9bdb9fb450f1e119eba53feb427f331b0d09072d26485b8273883ad72c9a2e1d",
}
ICEBERG = JarSet("iceberg-spark", ("org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",))
ICEBERG_LOCK = {
    "iceberg-spark-runtime-4.0_2.13-1.11.0.jar": "63c3b812549dc232c1920865ff42436df8604a9bbacd693930985c06bd97e6dc"
}
SQLITE = JarSet("sqlite-jdbc", ("org.xerial:sqlite-jdbc:3.46.1.3",), ("org.slf4j:*",))
"""With it, Iceberg's own catalog over JDBC opens the catalog that the job keeps in a file of SQLite."""
SQLITE_LOCK = {"sqlite-jdbc-3.46.1.3.jar": "4a4832720a65eaf7f4d6fd7ede52087b994dc5633c076f9e994dc0c8b4b0b4fa"}

Execute = Callable[[str], list[dict[str, Any]]]


@contextmanager
def other_spark(warehouse: Path) -> Iterator[Execute]:
    """Yield a function that executes a statement and returns its rows. warehouse: of Iceberg's catalog `ratchet`."""
    jars = [
        *resolve(DELTA, lock=DELTA_LOCK),
        *resolve(ICEBERG, lock=ICEBERG_LOCK),
        *resolve(SQLITE, lock=SQLITE_LOCK),
    ]
    python = str(python_with(RELEASE))
    words = [python, str(Path(__file__).with_name("other_writer.py")), ",".join(map(str, jars)), str(warehouse)]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python}
    with subprocess.Popen(
        words, env=environment, cwd=warehouse, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, answers = process.stdin, process.stdout

        def run(statement: str) -> list[dict[str, Any]]:
            print(json.dumps(statement), file=told, flush=True)
            answer = json.loads(answers.readline())
            assert "error" not in answer, f"{statement}: {answer['error']}"
            found: list[dict[str, Any]] = answer["rows"]
            return found

        yield run
        told.close()
        process.wait(60)
