"""The picture of a comparison: how many records a second each subject moved, and at what cost."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.subjects import SUBJECTS
from kafka_ratchet.errors import BenchFailed

OURS: Final = "#0b7285"
OTHERS: Final = "#adb5bd"
WIDTH_IN: Final = 8.0
ROW_IN: Final = 0.42
FRAME_IN: Final = 0.9


def plot(told: Path, picture: Path) -> None:
    """Draw the last line of `ratchet bench compare --json` as SVG: medians as bars, and a line from min to max.

    Raises:
        BenchFailed: the file is not such an output, or matplotlib is not there.
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
