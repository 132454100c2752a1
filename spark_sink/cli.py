"""Command line of the job, for `python -m kafka_ratchet.spark_sink` and for spark-submit."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.compact_command import run_compact
from kafka_ratchet.spark_sink.errors import Fenced, SinkError
from kafka_ratchet.spark_sink.extras import missing_extra
from kafka_ratchet.spark_sink.job.access import Access
from kafka_ratchet.spark_sink.job.job import run_batch, run_stream
from kafka_ratchet.spark_sink.job.metrics import served, write_file
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.replay import run_replay
from kafka_ratchet.spark_sink.job.run_log import log_end, log_run
from kafka_ratchet.spark_sink.job.run_state import RunState
from kafka_ratchet.spark_sink.job.spec import JobSpec
from kafka_ratchet.spark_sink.job.structured import run_structured
from kafka_ratchet.spark_sink.log_lines import JsonFormatter
from kafka_ratchet.spark_sink.options import job_spec
from kafka_ratchet.spark_sink.parent_process import end_with_parent
from kafka_ratchet.spark_sink.secrets import HidingFormatter, hidden, hide_in_tracebacks
from kafka_ratchet.spark_sink.spark.session import spark_session, under_spark_submit
from kafka_ratchet.spark_sink.stores.store import require_local_master
from kafka_ratchet.spark_sink.vacuum_command import run_vacuum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_OK = 0
EXIT_REFUSED = 2
"""Exit code for any other error with a remedy, which the message on standard error names. argparse uses the same
number."""
EXIT_FENCED = 3
"""Exit code after a newer run of the job has taken the table over. A scheduler that lets runs overlap can ignore
this code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, or its command `vacuum` or `compact`.

    Args:
        arguments: the command line without the program's name; None: the process's own.

    Returns:
        The exit code: 0 done, 2 refused, 3 fenced.
    """
    end_with_parent()
    words = sys.argv[1:] if arguments is None else list(arguments)
    upkeep = {"compact": run_compact, "vacuum": run_vacuum}.get(next(iter(words), ""))
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    for name in ("py4j", "httpx2"):  # lines between processes
        logging.getLogger(name).setLevel(logging.WARNING)
    hide_in_tracebacks()
    for handler in logging.getLogger().handlers:
        if handler.formatter is not None and not isinstance(handler.formatter, HidingFormatter):
            handler.setFormatter(HidingFormatter(handler.formatter))
    try:
        if upkeep is not None:
            upkeep(words[1:])
        else:
            spec = job_spec(words)
            if spec.log_format == "json":
                _log_json(spec)
            _run(spec)
    except Fenced as error:
        _say_end(f"fenced: {error}")
        return EXIT_FENCED
    except SinkError as error:
        _say_end(f"refused: {error}")
        return EXIT_REFUSED
    except ModuleNotFoundError as error:
        if (sentence := missing_extra(error)) is None:
            raise
        _say_end(f"refused: {sentence}")
        return EXIT_REFUSED
    return EXIT_OK


def _log_json(spec: JobSpec) -> None:
    """Switch log lines and Python's warnings to JSON; lines of Spark's JVM keep their own format."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter({"sink": spec.name, "topic": spec.topic}))
    logging.captureWarnings(True)


def _say_end(sentence: str) -> None:
    """Write the reason for the job's end to standard error, as JSON if the job logs JSON."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        logging.getLogger("spark_sink").error(sentence)
    else:
        print(hidden(sentence), file=sys.stderr)


def _run(spec: JobSpec) -> None:
    run = RunState(log_run)
    access = Access.from_environment()
    access.hide()
    Access(spec.kafka_options, spec.spark_kafka_options).hide()
    pipeline = spec.pipeline(access)
    pipeline.known_schema()  # refuses mistakes in it before the first request to Kafka and the start of Spark
    job = spec.job(pipeline, access)
    spec.result_store(pipeline, access, 0)  # refuses bad names and paths before the first request to Kafka
    planner = TopicPlanner(job.bootstrap, job.topic, job.client_options)
    store = spec.result_store(pipeline, access, planner.topic_id())
    if not under_spark_submit():
        require_local_master(store, spec.master)

    def session() -> AbstractContextManager[SparkSession]:
        return spark_session(f"sink-{job.name}", list(spec.jars), spec.master)

    stop = Event()
    with served(run, job.name, job.topic, spec.metrics_host, spec.metrics_port):
        if spec.mode == "batch":
            run_batch(job, planner, store, session, run)
        elif spec.mode == "replay":
            run_replay(job, planner, store, session, run)
        else:
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            if spec.mode == "stream":
                run_stream(job, planner, store, session, spec.interval_s, stop, run)
            else:
                run_structured(
                    job,
                    planner,
                    store,
                    session,
                    spec.interval_s,
                    stop,
                    run,
                    state_is_lost=spec.state_is_lost,
                    scratch=None if spec.scratch is None else Path(spec.scratch),
                )
    log_end(run, spec.location(access), spec.mode)
    # A stopped stream never rewrites the file, and a replay of some range is no run of the schedule.
    if spec.metrics_file is not None and spec.mode == "batch":
        write_file(run, job.name, job.topic, spec.metrics_file)
    if spec.print_json:
        print(json.dumps({**run.as_dict(), "seconds": round(run.seconds(), 3)}))
