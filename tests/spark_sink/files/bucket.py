"""A server process that speaks S3, and a result table in it."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.files.bucket import Bucket
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.store import ResultStore
from tests.spark_sink.sites import Rows, Site, delta_store


@contextmanager
def s3_server(*words: str) -> Iterator[dict[str, str]]:
    """Storage options of a server with one bucket, `results`."""
    command = [sys.executable, str(Path(__file__).with_name("s3_server.py")), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("PUT", "/results")
                assert connection.getresponse().status == 200
            yield {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ACCESS_KEY_ID": "someone",
                "aws_secret_access_key": "s3cret",
                "AWS_REGION": "us-east-1",
            }
        finally:
            process.kill()
            process.wait(30)


class BucketSite(Site):
    """A Delta table in the bucket."""

    rejects = False
    committing = ("_write", DeltaError("the answer was lost"))

    def __init__(self, name: str, options: dict[str, str]) -> None:
        self.path, self.options = f"s3://results/{name}/table", options

    @property
    def location(self) -> TableLocation:
        return TableLocation("delta", self.path, storage_options=self.options)

    def make(self, name: str = "job", topic: str = "events", topic_id: int = 0, write_mode: WriteMode = APPEND,
             rejects: StructType | None = None) -> ResultStore:  # fmt: skip
        return delta_store(self.path, name, topic, topic_id, write_mode, storage_options=self.options)

    def rows(self, rejects: bool = False) -> Rows:
        table = DeltaTable(self.path, storage_options=Bucket.of(self.options).for_delta())
        found: Rows = table.to_pyarrow_dataset().to_table().to_pylist()
        return found
