"""Output of a run for its operator: log lines, and in a terminal a bar."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kafka_ratchet.spark_sink.errors import SparkFailed
from kafka_ratchet.spark_sink.job.run_state import RunState
from kafka_ratchet.spark_sink.spark.errors import ranges
from kafka_ratchet.spark_sink.spark.terminal import progress_bar

log = logging.getLogger("spark_sink")


def log_run(run: RunState) -> None:
    """Log each commit, each measured lag and each failure; called after every step of a run."""
    commit = run.last_commit
    if run.step == "committed" and commit is not None:
        log.info(
            "commit %d: %d rows, %d rejects in %.2f s, offsets %s",
            commit.number,
            commit.rows,
            commit.rejects,
            commit.seconds,
            ranges(commit.start, commit.end),
        )
    elif run.step == "looked" and run.age_s is not None:
        left = sum(run.lag.values())
        log.info("lag: %d offsets, the oldest record among them is %.1f s old", left, run.age_s)
    elif run.step == "failed" and isinstance(run.error, SparkFailed):
        log.warning("%s; the job reads the table's offsets again and goes on", run.error)
    elif run.step == "failed":
        log.warning("%s; the running job tries again by itself, and goes on after an answer", run.error)


ENDS: Final = {"batch": "is up to date", "replay": "has the replayed rows"}
"""Description of the table after a run, by mode; other modes run until they are stopped."""


def log_end(run: RunState, where: object, mode: str) -> None:
    """Log the summary of a successful run, as its last line."""
    log.info(
        "%s %s: %d rows added in %d commits, %d rejects, %.1f s (%.1f s in commits, the longest %.2f s), "
        "generation %d, %d offsets left",
        where,
        ENDS.get(mode, "was stopped after a commit"),
        run.rows,
        run.commits,
        run.rejects,
        run.seconds(),
        run.commit_s,
        run.longest_commit_s,
        run.generation,
        sum(run.lag.values()),
    )


@contextmanager
def bar_of(run: RunState, total: int) -> Iterator[None]:
    """Show a bar in a terminal that moves with each commit.

    Args:
        run: the observed run.
        total: offsets to read, over all partitions.
    """
    with progress_bar("Committing offsets", total) as advance:

        def move(run: RunState) -> None:
            if run.step == "committed" and run.last_commit is not None:
                advance(sum(run.last_commit.end.values()) - sum(run.last_commit.start.values()))

        with run.observed(move):
            yield
