"""A whole fault run: the schedule and the separate scenarios, with one result."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from faults import scenarios
from faults.count import Difference, Result
from faults.environment import Environment, Style
from faults.kafka import EmbeddedKafka
from faults.operations import operations
from faults.schedule import FaultCounts, Schedule


@dataclass(frozen=True, slots=True)
class RunExtent:
    """Extent of a run.

    events: minimum number of events sent into every stream.
    """

    events: int
    schedule: FaultCounts
    node_restarts: int
    full_disks: int


SHORT = RunExtent(
    events=20_000,
    schedule=FaultCounts(
        worker_kills=3,
        zombies=1,
        broker_restarts=1,
        rebalances=2,
        network_faults=1,
        damaged_stores=1,
        clock_jumps=1,
        open_transactions=1,
        foreign_commits=1,
        strangers=2,
    ),
    node_restarts=1,
    full_disks=1,
)
"""Form for every change: each fault at least once."""
LONG = RunExtent(
    events=1_000_000,
    schedule=FaultCounts(
        worker_kills=200,
        zombies=20,
        broker_restarts=40,
        rebalances=300,
        network_faults=20,
        damaged_stores=30,
        clock_jumps=20,
        open_transactions=10,
        foreign_commits=10,
        strangers=10,
    ),
    node_restarts=10,
    full_disks=5,
)
"""Form for a night, or before a release."""


@dataclass(slots=True)
class RunResult(Result):
    """Injected faults and findings of a run."""

    events: int = 0
    worker_kills: int = 0
    zombies: int = 0
    broker_restarts: int = 0
    rebalances: int = 0
    network_faults: int = 0
    damaged_stores: int = 0
    clock_jumps: int = 0
    process_kills: int = 0
    frozen_processes: int = 0
    open_transactions: int = 0
    foreign_commits: int = 0
    strangers: int = 0
    full_disks: int = 0
    refused_partitions: int = 0
    refused_operations: int = 0
    crash_points: int = 0
    """Points at which a worker with agents was killed; 0 without agents."""
    table_lost: int = 0
    """Events missing in the agents' tables."""
    table_doubled: int = 0
    """Events that the agents' tables count twice."""
    table_wrong: int = 0
    """Wrong entries of a Faust program's tables."""
    ready_s: list[float] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Return True if every event counted exactly once, in the outputs and in the tables."""
        return self.tables == 0 == self.lost == self.doubled == self.reordered

    @property
    def tables(self) -> int:
        """Return the number of errors in tables."""
        return self.table_lost + self.table_doubled + self.table_wrong

    def add(self, difference: Difference) -> None:
        """Add the findings of one count."""
        Result.add(self, difference)
        self.table_lost += difference.table_lost
        self.table_doubled += difference.table_doubled
        self.table_wrong += difference.table_wrong

    def as_dict(self) -> dict[str, Any]:
        """Return the result for `--json`; ready_s becomes its median and its maximum, in seconds."""
        ready = self.ready_s
        summary = {"median": round(median(ready), 1), "max": round(max(ready), 1)} if ready else None
        return {**Result.as_dict(self), "ready_s": summary}

    def add_scenario(self, difference: Difference, events: int) -> None:
        """Add one scenario's count and the number of its events."""
        self.add(difference)
        self.events += events


def run(
    form: RunExtent,
    seed: int,
    say: Callable[[str], None],
    folder: Path | None = None,
    *,
    style: Style = Style.RECORDS,
    processes: int = 1,
) -> RunResult:
    """Inject the faults of the form into workers, and count.

    Args:
        form: SHORT, LONG or one of your own.
        seed: seed of events, faults and their order. Their timing also depends on the machine.
        say: function called with each event, a line at a time.
        folder: new folder for logs and data, which is kept. None: a temporary one, removed when all is well.
        style: program of the workers. With a Faust program, scenarios that no program influences are left out.
        processes: number of processes of each worker. Above 1, single processes are killed and frozen as well. The
            scenarios with a Kafka or a worker of another shape are then left out, because the number of processes does
            not influence them.

    Raises:
        FaultRunFailed: a part did not recover without help. The folder is kept; `say` has named it.
    """
    began, result = time.monotonic(), RunResult(seed)
    kept = Path(tempfile.mkdtemp(prefix="ratchet-faults-")) if folder is None else folder
    say(f"seed {seed}; logs and data in {kept}")
    _schedule(form, kept / "schedule", result, say, style=style, processes=processes)
    if processes == 1 and style is not Style.FAUST:
        _run_scenarios(form, kept, result, say, style=style)
    if processes == 1 and style is not Style.RECORDS:
        say("a worker killed at every point of a transaction")
        result.add_scenario(*scenarios.killed_around_commits(kept / "scenario-6", seed + 6, style=style))
        result.crash_points = len(scenarios.AROUND_A_COMMIT)
    result.seconds = time.monotonic() - began
    if folder is None and result.ok:
        shutil.rmtree(kept, ignore_errors=True)
    return result


def _run_scenarios(form: RunExtent, kept: Path, result: RunResult, say: Callable[[str], None], *, style: Style) -> None:
    """Run the scenarios, each with a Kafka of its own."""
    seed = result.seed
    for number, (name, times, scenario) in enumerate(
        (
            ("nodes of three restarted in turn", form.node_restarts, scenarios.three_nodes),
            ("the disk of a worker is full", form.full_disks, scenarios.full_disk_of_a_worker),
            ("the disk of the broker is full", form.full_disks, scenarios.full_disk_of_the_broker),
        ),
        1,
    ):
        say(f"{name}, {times} times")
        result.add_scenario(*scenario(kept / f"scenario-{number}", times, seed + number, style=style))
    result.broker_restarts += form.node_restarts
    result.full_disks += 2 * form.full_disks
    say("changelogs with lost data")
    difference, result.refused_partitions = scenarios.lost_changelogs(kept / "scenario-4", seed + 4, style=style)
    result.add(difference)
    say("operators' actions: policies recreated, a rule edited, an application renamed, partitions moved back")
    difference, events, refused = operations(kept / "scenario-5", seed + 5, style=style)
    result.refused_operations = refused
    result.add_scenario(difference, events)


def _schedule(
    form: RunExtent, folder: Path, result: RunResult, say: Callable[[str], None], *, style: Style, processes: int
) -> None:
    plan = form.schedule
    if processes > 1:
        plan = replace(plan, process_kills=plan.worker_kills, frozen_processes=plan.zombies)
    with (
        EmbeddedKafka(folder / "kafka", nodes=1, workers=3) as kafka,
        Environment(
            kafka,
            folder / "environment",
            workers=3,
            seed=result.seed,
            style=style,
            kinds=style.kinds,
            processes=processes,
        ) as environment,
    ):
        schedule = Schedule(environment, kafka, random.Random(result.seed), say)  # noqa: S311
        schedule.run(plan, form.events)
        sent, difference, caught_up_s = environment.finish()
        say(f"{len(sent)} events sent, lag 0 after {caught_up_s:.1f} s")
    for name, count in schedule.counts.items():
        setattr(result, name, getattr(result, name) + count)
    result.ready_s += schedule.ready_s
    result.add_scenario(difference, len(sent))
