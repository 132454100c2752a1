"""Regression check of the worker's speed: a few short runs, compared with a recorded measurement.

It compares ratios to the floor (`bench.peers.floor`) in the same round, because the machine's speed hardly changes
them. As they still differ from run to run, a case counts as slower only if all its rounds are worse than every
recorded one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.load import ExpectedOutput, Load, fill
from bench.measure import Measured, measure
from bench.spread import spread
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import BenchFailed

RECORDED: Final = Path(__file__).with_name("regress.json")
WORSE: Final = 0.1
"""Minimum loss in the median for a case to count as slower, as a share.

Smaller differences are not worth a search for their cause.
"""
FLOOR: Final = "floor"


@dataclass(frozen=True, slots=True)
class Case:
    """Way to run the worker, or the floor.

    Attributes:
        subject: a name of `bench.subjects.SUBJECTS`
        load: load of the input; cases of equal loads share an input
        commit_ms: commit interval, in ms
    """

    subject: str
    load: Load
    commit_ms: int = 100


BASE: Final = Load(records=600_000)
CASES: Final[dict[str, Case]] = {
    FLOOR: Case("floor", BASE),
    "by key": Case("ratchet", BASE),
    "switched off": Case("ratchet-off", BASE),
    "commit every 10 ms": Case("ratchet", BASE, commit_ms=10),
    "batches of 16 KiB": Case("ratchet", replace(BASE, batch_bytes=16_384)),
    "every key new": Case("ratchet", replace(BASE, keys=1_000_000)),
}
"""Cases by name; each is compared with the first, the floor."""

Ratios = dict[str, dict[str, dict[str, float]]]
"""Median, min and max of the rounds against the floor, by case and measure ("throughput", "cpu")."""


def regress(rounds: int, say: Callable[[str, Measured], None]) -> tuple[Ratios, bool]:
    """Run every case in turn, `rounds` times, on one new broker.

    Args:
        rounds: runs of each case
        say: function called with the case's name and the run, at its end

    Returns:
        the ratios, and True if every output was right

    Raises:
        BenchFailed: a run does not finish.
    """
    runs: dict[str, list[Measured]] = {name: [] for name in CASES}
    with TemporaryDirectory(prefix="ratchet-bench-kafka-") as folder, EmbeddedBroker(Path(folder)) as broker:
        inputs: dict[Load, tuple[str, ExpectedOutput]] = {}

        def run(case: Case) -> Measured:
            if case.load not in inputs:
                topic = f"bench.in.{len(inputs)}"
                inputs[case.load] = topic, fill(broker.bootstrap, topic, case.load)
            topic, truth = inputs[case.load]
            name = f"{case.subject}-{uuid.uuid4().hex[:8]}"
            return measure(case.subject, broker, topic, case.load, truth, case.commit_ms, name)

        run(CASES[FLOOR])  # not counted: the first run waits for the broker's compiler
        for _ in range(rounds):
            for name, case in CASES.items():
                measured = run(case)
                runs[name].append(measured)
                say(name, measured)
    return ratios(runs), all(each.verified is not False for found in runs.values() for each in found)


def ratios(runs: dict[str, list[Measured]]) -> Ratios:
    """Return the ratios of each case to the floor, round by round."""
    floors = runs[FLOOR]
    return {
        name: {
            "throughput": spread(a.records_per_s / b.records_per_s for a, b in zip(found, floors, strict=True)),
            "cpu": spread(a.cpu_s / b.cpu_s for a, b in zip(found, floors, strict=True)),
        }
        for name, found in runs.items()
        if name != FLOOR
    }


def recorded(path: Path = RECORDED) -> Ratios:
    """Return the recorded ratios in the repository; empty if there is no such file.

    Raises:
        BenchFailed: the file is malformed.
    """
    try:
        found: Ratios = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BenchFailed(f"{path.name}: {error}. Write it again with `./ratchet bench regress --record`") from None
    return found


def record(found: Ratios, path: Path = RECORDED) -> None:
    """Write the ratios to the record in the repository."""
    path.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


def is_worse(measure: str, now: dict[str, float], before: dict[str, float]) -> bool:
    """Return True if all rounds now are worse than all recorded ones, and the median by more than `WORSE`.

    measure: "throughput": a lower ratio is worse; "cpu": a higher one is worse
    """
    if measure == "cpu":
        return now["min"] > before["max"] and now["median"] > before["median"] * (1 + WORSE)
    return now["max"] < before["min"] and now["median"] < before["median"] * (1 - WORSE)


def slower(now: Ratios, before: Ratios) -> list[str]:
    """Return the recorded cases with at least one measure worse than recorded."""
    return [
        name
        for name, measures in now.items()
        if name in before and any(is_worse(each, measures[each], before[name][each]) for each in measures)
    ]


def as_markdown(now: Ratios, before: Ratios) -> str:
    """Return a Markdown table of each case's ratios to the floor, now and as recorded, as median (min-max)."""
    worse = slower(now, before)
    lines = ["| case, against the floor | records/s | recorded | CPU | recorded | |", "|---|---|---|---|---|---|"]
    for name, measures in now.items():
        cells: list[str] = []
        for each in ("throughput", "cpu"):
            cells += [_cell(measures[each]), _cell(before.get(name, {}).get(each))]
        lines.append(f"| {name} | {' | '.join(cells)} | {'SLOWER' if name in worse else ''} |")
    return "\n".join(lines)


def _cell(found: dict[str, Any] | None) -> str:
    return "-" if found is None else "{median:.2f} ({min:.2f}-{max:.2f})".format(**found)
