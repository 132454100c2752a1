"""Whether a change has made the worker slower: a few short runs, each next to the floor, and what was recorded before.

What counts are ratios to the floor of the same round, which a slow machine leaves about as they are. They still differ
from run to run, so only a case all of whose rounds are worse than every recorded one is called slower.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.load import Load, Truth, fill
from bench.measure import Measured, measure
from bench.spread import spread
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import BenchFailed

RECORDED: Final = Path(__file__).with_name("regress.json")
WORSE: Final = 0.1
"""A case is slower when its median is worse by more than this as well: a hundredth more is nothing to look for."""
FLOOR: Final = "floor"


@dataclass(frozen=True, slots=True)
class Case:
    """One way to run the worker.

    Attributes:
        subject: of `bench.subjects`
        load: the input; cases of equal loads share it
        commit_ms: between commits
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
"""The first is what the others are measured against."""

Ratios = dict[str, dict[str, dict[str, float]]]
"""By case and measure ("throughput", "cpu"), median, min and max of its rounds against the floor."""


def regress(rounds: int, say: Callable[[str, Measured], None]) -> tuple[Ratios, bool]:
    """Run every case in turn, `rounds` times, on one new broker.

    Args:
        rounds: each case runs so often
        say: is told each run as it ends, with its case's name

    Returns:
        the ratios, and whether every output was right

    Raises:
        BenchFailed: a run does not come to its end.
    """
    runs: dict[str, list[Measured]] = {name: [] for name in CASES}
    with TemporaryDirectory(prefix="ratchet-bench-kafka-") as folder, EmbeddedBroker(Path(folder)) as broker:
        inputs: dict[Load, tuple[str, Truth]] = {}

        def run(case: Case) -> Measured:
            if case.load not in inputs:
                topic = f"bench.in.{len(inputs)}"
                inputs[case.load] = topic, fill(broker.bootstrap, topic, case.load)
            topic, truth = inputs[case.load]
            name = f"{case.subject}-{uuid.uuid4().hex[:8]}"
            return measure(case.subject, broker, topic, case.load, truth, case.commit_ms, name)

        run(CASES[FLOOR])  # not counted: whoever comes first waits for what the broker has to compile
        for _ in range(rounds):
            for name, case in CASES.items():
                measured = run(case)
                runs[name].append(measured)
                say(name, measured)
    return ratios(runs), all(each.verified is not False for found in runs.values() for each in found)


def ratios(runs: dict[str, list[Measured]]) -> Ratios:
    """Of each case to the floor, round by round."""
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
    """What the repository has; nothing where there is no such file.

    Raises:
        BenchFailed: the file is not what `record` writes.
    """
    try:
        found: Ratios = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BenchFailed(f"{path.name}: {error}. Write it anew with `./ratchet bench regress --record`") from None
    return found


def record(found: Ratios, path: Path = RECORDED) -> None:
    """Keep these for later runs to be compared with."""
    path.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


def is_worse(measure: str, now: dict[str, float], before: dict[str, float]) -> bool:
    """Whether every round of now is worse than every one of before, and the median by more than `WORSE`."""
    if measure == "cpu":
        return now["min"] > before["max"] and now["median"] > before["median"] * (1 + WORSE)
    return now["max"] < before["min"] and now["median"] < before["median"] * (1 - WORSE)


def slower(now: Ratios, before: Ratios) -> list[str]:
    """Names of cases that are worse in either measure than what was recorded; one that was not recorded is not."""
    return [
        name
        for name, measures in now.items()
        if name in before and any(is_worse(each, measures[each], before[name][each]) for each in measures)
    ]


def as_markdown(now: Ratios, before: Ratios) -> str:
    """A table: each case's ratios to the floor now and as recorded, median (min-max)."""
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
