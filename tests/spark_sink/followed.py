"""A stream written by hand and the table that a job fills from its output, for verify and repair."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from pydantic import SecretStr
from pyspark.sql import SparkSession

from kafka_ratchet.app.settings import Settings, SinkSettings
from kafka_ratchet.app.status.results import access_of, spec_of
from kafka_ratchet.app.verify import RecordView, Report, verify_results
from kafka_ratchet.spark_sink.job.control import TopicPosition
from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.stores.store import ResultStore
from tests.app.written_stream import Stage, record
from tests.spark_sink.sites import Site


class Followed:
    """A stream written by hand, and its table."""

    def __init__(self, stage: Stage, site: Site, spark: SparkSession, **sink: Any) -> None:
        location = site.location
        kept = SinkSettings(
            name="job",
            store=location.kind,
            path=location.path or "unused",
            table=location.table,
            url=SecretStr(location.url) if location.url else None,
            password=SecretStr(location.password) if location.password else None,
            **sink,
        )
        self.stage, self.site, self.spark = stage, site, spark
        self.settings = stage.settings.model_copy(update={"sink": kept})
        self.spark_starts = 0

    def pass_on(self, partition: int, records: list[RecordView]) -> None:
        """Fresh records: into the input and, unchanged, into the output."""
        for topic in (0, 1):
            self.stage.write(topic, partition, records)

    @property
    def pipeline(self) -> RowPipeline:
        return spec_of(self.settings, self.stage.topics[1], self.stage.broker).pipeline()

    def run(self, max_records: int = 1_000, start: TopicPosition | None = None) -> RunSummary:
        pipeline, topic = self.pipeline, self.stage.topics[1]
        planner = TopicPlanner(self.stage.broker, topic, {})
        store = self.store(planner.topic_id())
        job = Job(self.stage.broker, topic, "job", pipeline, max_records, start=start)
        return run_batch(job, planner, store, lambda: nullcontext(self.spark))

    def run_by_settings(self, topic: int) -> RunSummary:
        """Run the job over a topic of the stage, as the settings say it."""
        spec = spec_of(self.settings, self.stage.topics[topic], self.stage.broker)
        access = access_of(self.settings)
        pipeline = spec.pipeline(access)
        planner = TopicPlanner(self.stage.broker, self.stage.topics[topic], {})
        store = spec.result_store(pipeline, access, planner.topic_id())
        return run_batch(spec.job(pipeline, access), planner, store, lambda: nullcontext(self.spark))

    def store(self, topic_id: int = 0) -> ResultStore:
        """Return the job's store, not open."""
        pipeline = self.pipeline
        rejects = record_schema() if pipeline.rejects else None
        return self.site.make("job", self.stage.topics[1], topic_id, pipeline.write_mode, rejects)

    def offsets(self) -> dict[int, int]:
        """Return the stored offsets."""
        return self.store().offsets()

    def generation(self) -> int:
        """Return the number of the newest holder."""
        return self.store().generation()

    def verify(self) -> Report:
        return verify_results(self.settings, None, self._session)

    def _session(self) -> AbstractContextManager[SparkSession]:
        self.spark_starts += 1
        return nullcontext(self.spark)


Follow = Callable[..., Followed]


def values(*texts: str, producer: bytes = b"a", first: int = 0) -> list[RecordView]:
    """Return records with these values."""
    return [replace(record(first + n, producer), value=text.encode()) for n, text in enumerate(texts)]


def as_toml(settings: Settings) -> str:
    """Return the settings as a file has them."""
    (stream,) = settings.streams.values()
    sink = settings.sink.model_dump(
        exclude_none=True, exclude={"url", "password", "key", "sums", "averages", "mins", "maxes"}
    )
    for name in ("url", "password"):
        if (secret := getattr(settings.sink, name)) is not None:
            sink[name] = secret.get_secret_value()
    lines = [f"app = {json.dumps(settings.app)}", f"bootstrap = {json.dumps(settings.bootstrap)}", "[streams.events]"]
    lines += [f"{name} = {json.dumps(getattr(stream, name))}" for name in ("input", "output", "dead_letters")]
    return "\n".join(
        [*lines, "[sink]", *(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in sink.items())]
    )
