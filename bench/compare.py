"""Comparison of subjects that process one input in turn (A B A B): their ratios, and a picture of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench import ids, load, totals
from bench.ids import Ids
from bench.load import ExpectedOutput, Load
from bench.measure import Measured, measure
from bench.spread import spread
from bench.subjects import SUBJECTS
from bench.totals import Totals
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import BenchFailed

Expected = ExpectedOutput | Ids | Totals
FILLS: Final[dict[str, Callable[[str, str, Load], Expected]]] = {
    "deduplicate": load.fill,
    "ids": ids.fill,
    "totals": totals.fill,
}


class Stage:
    """Kafka with the inputs of a comparison. A subject with a limit of records gets a shorter input.

    Attributes:
        topic: topic of the whole input
    """

    def __init__(self, broker: EmbeddedBroker, load: Load, program: str = "deduplicate") -> None:
        """Create the topic of the whole input, and send its records. program: task of the subjects."""
        self.broker, self.load = broker, load
        self._fill = FILLS[program]
        self._inputs: dict[int, tuple[str, Load, Expected]] = {}
        self.topic, _, _ = self._input(None)

    def _input(self, most: int | None) -> tuple[str, Load, Expected]:
        records = self.load.records if most is None else min(most, self.load.records)
        if records not in self._inputs:
            topic, load = f"bench.in.{records}", replace(self.load, records=records)
            self._inputs[records] = topic, load, self._fill(self.broker.bootstrap, topic, load)
        return self._inputs[records]

    def run(self, subject: str, commit_ms: int) -> Measured:
        """Run a subject once, and return its measures. commit_ms: its commit interval, in ms."""
        run = f"{subject}-{uuid.uuid4().hex[:8]}"
        topic, load, truth = self._input(SUBJECTS[subject].most)
        return measure(subject, self.broker, topic, load, truth, commit_ms, run)


@contextmanager
def stage(load: Load, program: str = "deduplicate") -> Iterator[Stage]:
    """Yield a stage on a new embedded Kafka."""
    with TemporaryDirectory(prefix="ratchet-bench-kafka-") as folder, EmbeddedBroker(Path(folder)) as broker:
        yield Stage(broker, load, program)


@dataclass(slots=True)
class Comparison:
    """Runs of all subjects by name; the first subject is compared with each of the others."""

    runs: dict[str, list[Measured]] = field(default_factory=dict)

    def ratios(self, peer: str, value: Callable[[Measured], float]) -> dict[str, float]:
        """Return median, minimum and maximum of the ratios, by round, of the first subject to a peer.

        value: function that returns the measure to compare
        """
        first = next(iter(self.runs))
        return spread(value(a) / value(b) for a, b in zip(self.runs[first], self.runs[peer], strict=True))

    @property
    def verified(self) -> bool:
        """Return True if every checked output was right."""
        return all(run.verified is not False for runs in self.runs.values() for run in runs)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as a JSON object, with ratios to the first peer; `peers` has the ratios to all."""
        peers = list(self.runs)[1:]
        told = {
            peer: {
                "throughput_ratio": self.ratios(peer, lambda run: run.records_per_s),
                "cpu_ratio": self.ratios(peer, lambda run: run.cpu_s),
            }
            for peer in peers
        }
        runs = {name: [run.as_dict() for run in runs] for name, runs in self.runs.items()}
        return {**(told[peers[0]] if peers else {}), "verified": self.verified, "peers": told, "runs": runs}

    def as_markdown(self) -> str:
        """Return a Markdown table with each subject's medians, and the ratios of the first subject to it."""
        first = next(iter(self.runs))
        lines = [
            "| subject | records/s | CPU s per million | broker CPU s | peak MB | verified | throughput | CPU |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, runs in self.runs.items():
            rate, cpu, broker = (
                median(getattr(run, field) for run in runs) for field in ("records_per_s", "cpu_s", "broker_cpu_s")
            )
            peak = max(run.peak_mb for run in runs)
            right = {None: "-", True: "yes", False: "NO"}[
                None if runs[0].verified is None else all(run.verified for run in runs)
            ]
            ratio = [
                "{median} ({min}-{max})".format(**self.ratios(name, value)) if name != first else ""
                for value in (lambda run: run.records_per_s, lambda run: run.cpu_s)
            ]
            what = SUBJECTS[name].what
            lines.append(
                f"| {what} | {rate:,.0f} | {cpu:.2f} | {broker:.2f} | {peak} | {right} | {ratio[0]} | {ratio[1]} |"
            )
        return "\n".join(lines)


def compare(
    subjects: list[str],
    load: Load,
    commit_ms: int,
    rounds: int,
    say: Callable[[Measured], None],
    *,
    warm_up: bool = True,
) -> Comparison:
    """Run subjects in turn, `rounds` times.

    Args:
        subjects: names of the subjects; the first one is compared with each of the others.
        load: content of the input.
        commit_ms: commit interval of all subjects, in ms.
        rounds: runs of each subject.
        say: function called with each run at its end.
        warm_up: True: run the first subject once before, without counting that run. Else its first counted run would
            be slower, because the broker has not compiled its code and read its files yet.

    Raises:
        BenchFailed: there is no such subject, or one does not finish.
    """
    unknown = [name for name in subjects if name not in SUBJECTS]
    if unknown:
        raise BenchFailed(f"no subject {', '.join(unknown)}. The subjects are: {', '.join(SUBJECTS)}")
    programs = {name: SUBJECTS[name].program for name in subjects}
    if len(set(programs.values())) > 1:
        told = ", ".join(f"{name}: {program}" for name, program in programs.items())
        raise BenchFailed(f"subjects with different tasks cannot be compared ({told})")
    comparison = Comparison({name: [] for name in subjects})
    with stage(load, programs[subjects[0]]) as here:
        if warm_up:
            here.run(subjects[0], commit_ms)
        for _ in range(rounds):
            for name in subjects:
                run = here.run(name, commit_ms)
                comparison.runs[name].append(run)
                say(run)
    return comparison


OURS: Final = "#0b7285"
OTHERS: Final = "#adb5bd"
WIDTH_IN: Final = 8.0
ROW_IN: Final = 0.42
FRAME_IN: Final = 0.9


def plot(told: Path, picture: Path) -> None:
    """Draw the last line of `ratchet bench compare --json` as SVG: medians as bars, and a line from min to max.

    told: file with the output of the command; picture: file to write

    Raises:
        BenchFailed: the file is not such an output, or matplotlib is not installed.
    """
    runs = _runs(told)
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise BenchFailed("matplotlib is not installed; ./ratchet setup --dev installs it") from None

    # Text stays text, and the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ratchet", "font.size": 9}):
        figure = Figure(figsize=(WIDTH_IN, FRAME_IN + ROW_IN * len(runs)), layout="constrained")
        rates, costs = figure.subplots(1, 2, sharey=True)
        names = [SUBJECTS[name].what for name in runs]
        for axes, field, title in (
            (rates, "records_per_s", "thousand records/s"),
            (costs, "cpu_s", "CPU seconds per million records"),
        ):
            scale = 1_000 if field == "records_per_s" else 1
            values = [[run[field] / scale for run in each] for each in runs.values()]
            middles = [median(each) for each in values]
            spread = [
                [middle - min(each) for middle, each in zip(middles, values, strict=True)],
                [max(each) - middle for middle, each in zip(middles, values, strict=True)],
            ]
            colours = [OURS if name.startswith(("ratchet", "agent")) else OTHERS for name in runs]
            bars = axes.barh(names, middles, xerr=spread, color=colours, error_kw={"elinewidth": 1})
            axes.bar_label(bars, fmt="{:,.0f}" if scale > 1 else "{:.1f}", padding=6)
            axes.set_title(title, fontsize=9)
            axes.margins(x=0.18)
            axes.spines[["top", "right"]].set_visible(False)
        rates.invert_yaxis()
        figure.savefig(picture, format="svg", metadata={"Date": None})


def _runs(told: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        runs = json.loads(told.read_text("utf-8").splitlines()[-1])["runs"]
        found = {name: list(each) for name, each in runs.items()}
        if all(each and name in SUBJECTS and all("cpu_s" in run for run in each) for name, each in found.items()):
            return found
    except (OSError, UnicodeDecodeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BenchFailed(f"{told}: not an output of `ratchet bench compare --json`: {error}") from None
    raise BenchFailed(f"{told}: not an output of `ratchet bench compare --json`")
