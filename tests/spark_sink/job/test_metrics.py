"""What a run says of itself: the terminal, the log, one line of JSON, Prometheus."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Event

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.cli import EXIT_OK, EXIT_REFUSED, main
from kafka_ratchet.spark_sink.job import lag as lag_module
from kafka_ratchet.spark_sink.job.job import run_batch, run_stream
from kafka_ratchet.spark_sink.job.metrics import served, write_file
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_log import log_run
from kafka_ratchet.spark_sink.job.run_state import RunState
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from tests.spark_sink.sites import duckdb_store

Write = Callable[..., None]


def samples(text: str) -> dict[tuple[str, str | None], float]:
    """Value by name and, where there is one, partition or bucket."""
    return {
        (sample.name, sample.labels.get("partition", sample.labels.get("le"))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if (sample.labels["sink"], sample.labels["topic"]) == ("job", sample.labels["topic"])
    }


def test_the_metrics_of_a_stream_and_of_a_run_after_it(
    broker: str,
    new_topic: Callable[..., str],
    write: Write,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(lag_module, "LAG_EVERY_S", 0.0)
    caplog.set_level(logging.INFO, "spark_sink")
    topic, stop = new_topic(partitions=2), Event()
    scraped: list[dict[tuple[str, str | None], float]] = []
    planner = TopicPlanner(broker, topic, {})
    pipeline = RowPipeline("n long", rejects=True)
    store = duckdb_store(
        str(tmp_path / "x.duckdb"), "results", "job", topic, planner.topic_id(), rejects=record_schema()
    )
    state, offset_range = RunState(log_run), planner.offset_range

    def scrape_and_go_on() -> object:
        """Before each look: what is served, then the next step."""
        served_at = re.search(r"metrics at http://127\.0\.0\.1:(\d+)", caplog.text)
        assert served_at is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{served_at[1]}/metrics") as answer:
            scraped.append(samples(answer.read().decode()))
        if len(scraped) == 1:
            write(topic, [b'{"n":1}', b"broken", b'{"n":2}'], 1)
        if len(scraped) == 2:
            write(topic, [b'{"n":3}'], 1, commit=False)
        if len(scraped) == 3:
            stop.set()
        return offset_range()

    monkeypatch.setattr(planner, "offset_range", scrape_and_go_on)
    job = Job(broker, topic, "job", pipeline, max_records=100)
    with served(state, "job", topic, "127.0.0.1", 0):
        outcome = run_stream(job, planner, store, lambda: nullcontext(spark), 0.0, stop, state)
    assert (outcome.commits, outcome.rows, outcome.rejects) == (2, 2, 1)
    first, second, third = scraped
    assert first["ratchet_sink_commits_total", None] == 0
    assert second["ratchet_sink_rows_total", None] == 2
    assert second["ratchet_sink_rejects_total", None] == 1
    assert (
        second["ratchet_sink_commit_seconds_count", None] == second["ratchet_sink_commit_seconds_bucket", "+Inf"] == 1
    )
    assert second["ratchet_sink_generation", None] == 1
    for name, value in {"position": 4, "end": 4, "lag": 0, "lag_seconds": 0}.items():
        assert second[f"ratchet_sink_{name}", "1"] == value, name
    assert second["ratchet_sink_last_commit_timestamp_seconds", None] > 1.6e9
    assert (third["ratchet_sink_commits_total", None], third["ratchet_sink_position", "1"]) == (2, 6)
    said = [record.getMessage() for record in caplog.records]
    assert any(re.fullmatch(r"commit 1: 2 rows, 1 rejects in \d+\.\d\d s, offsets 1: 0-4", line) for line in said), said
    assert any(re.fullmatch(r"lag: 4 offsets, the oldest record among them is \d+\.\d s old", line) for line in said)
    # An aborted record waits for nobody.
    assert "lag: 2 offsets, the oldest record among them is 0.0 s old" in said

    # A batch run is over before anybody asks: a file has the same.
    monkeypatch.setattr(planner, "offset_range", offset_range)
    state, file = RunState(log_run), tmp_path / "sink.prom"
    outcome = run_batch(job, planner, store, lambda: nullcontext(spark), state)
    write_file(state, "job", topic, str(file))
    written = samples(file.read_text())
    assert (written["ratchet_sink_position", "1"], written["ratchet_sink_generation", None]) == (6, 1)
    assert written["ratchet_sink_finished_timestamp_seconds", None] > 1.6e9
    assert ("ratchet_sink_last_commit_timestamp_seconds", None) not in written  # there was nothing to commit
    assert state.as_dict() == {
        "rows": 0,
        "commits": 0,
        "offsets": {0: 0, 1: 6},
        "rejects": 0,
        "undeclared_fields": [],
        "generation": 1,
        "lag": 0,
        "commit_seconds": {"sum": 0.0, "max": 0.0},
        "last_commit": None,
    }


def test_a_run_that_only_starts_tells_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as clock:
        clock.setattr("time.time", lambda: 1.7e9)
        run = RunState()
    write_file(run, "job", "events", str(tmp_path / "sink.prom"))
    written = samples((tmp_path / "sink.prom").read_text())
    assert written["ratchet_sink_started_timestamp_seconds", None] == 1.7e9
    assert ("ratchet_sink_finished_timestamp_seconds", None) not in written


def test_what_cannot_be_served_is_refused(
    broker: str,
    new_topic: Callable[..., str],
    table: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "spark_sink")
    arguments = [f"--bootstrap={broker}", f"--topic={new_topic()}", f"--path={table}", "--name=job"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([*arguments, f"--metrics-port={taken.getsockname()[1]}"]) == EXIT_REFUSED
    assert "refused: metrics cannot be served on 127.0.0.1 port" in capsys.readouterr().err
    assert main([*arguments, f"--metrics-file={table}/no/such/folder.prom"]) == EXIT_REFUSED
    assert "refused: metrics cannot be written to" in capsys.readouterr().err
    assert main([*arguments, "--metrics-port=0"]) == EXIT_OK
    assert re.search(r"metrics at http://127\.0\.0\.1:\d+/metrics", caplog.text)
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(arguments) == EXIT_OK
    assert main([*arguments, "--metrics-port=0"]) == EXIT_REFUSED
    assert "need prometheus-client" in capsys.readouterr().err


COMMITS = """
import logging, sys
from kafka_ratchet.spark_sink.job.run_log import bar_of, log_run
from kafka_ratchet.spark_sink.job.run_state import Commit, RunState
logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s", level=logging.INFO)
run = RunState(log_run)
with bar_of(run, 10):
    for number in (1, 2):
        run.note_commit(Commit(number, 5, {0: 5 * number - 5}, {0: 5 * number}, 0.5))
logging.getLogger("spark_sink").info("afterwards")
"""


def on_a_terminal(words: list[str], **environment: str) -> tuple[int, list[str], str]:
    """Exit code, the lines of the terminal that is its standard error, and its standard output."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment}
    with subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        screen = b""
        try:
            while block := os.read(ours, 65_536):
                screen += block
        except OSError:  # the last writer has closed it
            pass
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(ours)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode("utf-8", "replace"))
    return process.returncode, [line.strip() for line in re.split(r"[\r\n]+", shown)], out


def test_a_terminal_shows_a_bar_and_a_line_for_each_commit() -> None:
    """Lines stand above the bar, and do not run into it."""
    code, lines, _ = on_a_terminal([sys.executable, "-c", COMMITS])
    assert code == 0, lines
    assert "INFO commit 1: 5 rows, 0 rejects in 0.50 s, offsets 0: 0-5" in lines
    assert "INFO commit 2: 5 rows, 0 rejects in 0.50 s, offsets 0: 5-10" in lines
    assert "INFO afterwards" in lines
    assert any(line.startswith("Committing offsets") and "10/10" in line for line in lines), lines


START = """
import logging, sys, time
from rich import progress
from kafka_ratchet.spark_sink.spark.terminal import starting
logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s", level=logging.INFO)
render, shown = progress.TimeElapsedColumn.render, set()
def noted(column, task):
    text = render(column, task)
    shown.add(str(text))
    return text
progress.TimeElapsedColumn.render = noted
with starting("Spark"):
    logging.getLogger("spark_sink").info("meanwhile")
    while sys.__stderr__.isatty() and len(shown) < 3:
        time.sleep(0.05)
logging.getLogger("spark_sink").info("afterwards")
"""


def test_a_terminal_shows_how_long_a_start_takes() -> None:
    words = [sys.executable, "-c", START]
    code, lines, _ = on_a_terminal(words)
    assert code == 0, lines
    assert len({line[-7:] for line in lines if re.search(r"Starting Spark 0:00:\d\d$", line)}) > 1, (
        lines
    )  # seconds pass
    assert [line for line in lines if line.startswith("INFO")] == ["INFO meanwhile", "INFO afterwards"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["INFO starting Spark", "INFO meanwhile", "INFO afterwards"]


@pytest.mark.long
def test_the_command_hands_its_terminal_on_to_the_job(
    broker: str, new_topic: Callable[..., str], write: Write, table: str, tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b"x"] * 9)
    settings = tmp_path / "ratchet.toml"
    settings.write_text(
        f"bootstrap = {json.dumps(broker)}\n[streams.events]\ninput = 'in'\noutput = {json.dumps(topic)}\n"
        f"dead_letters = 'dead'\n[sink]\npath = {json.dumps(table, ensure_ascii=False)}\n",
        "utf-8",
    )
    words = [sys.executable, "-m", "kafka_ratchet", "sink", "--config", str(settings), "--max-records=5", "--json"]
    code, lines, out = on_a_terminal(words, JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1")
    assert code == 0, lines
    assert any(line.startswith("Committing offsets") and "10/10" in line for line in lines), lines
    for number, moved in ((1, "0: 0-5"), (2, "0: 5-10")):
        assert any(f"commit {number}: " in line and line.endswith(f"offsets {moved}") for line in lines), lines
    told = json.loads(out.splitlines()[-1])
    assert (told["rows"], told["commits"], told["generation"], told["lag"]) == (9, 2, 1, 0)
    assert told["commit_seconds"]["sum"] >= told["commit_seconds"]["max"] > 0
    assert told["last_commit"]
