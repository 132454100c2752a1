"""Diagrams of a survey: age and distance of duplicates, and lateness of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from kafka_ratchet.app.survey.proposal import span_text
from kafka_ratchet.app.survey.report import Bucket, Finding
from kafka_ratchet.errors import SettingsError, SetupError

COLOUR: Final = "#0b7285"
WIDTH_IN, PANEL_IN = 8.0, 2.4
FORMATS: Final = (".svg", ".png")


def checked(picture: Path) -> None:
    """Check that a picture can be drawn, before the topic is read.

    Raises:
        SettingsError: the file is neither SVG nor PNG, or its folder does not exist.
        SetupError: matplotlib is not installed.
    """
    if picture.suffix.lower() not in FORMATS:
        raise SettingsError(f"--plot {str(picture)!r}: name a file that ends in .svg or .png")
    if not picture.parent.is_dir():
        raise SettingsError(f"--plot {str(picture)!r}: its folder does not exist. Create it, or name another")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SetupError("--plot needs the Python package matplotlib: pip install matplotlib") from None


def plot(topic: str, finding: Finding, picture: Path) -> None:
    """Draw the results of one candidate into a file.

    Raises:
        SettingsError: the file cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    numbers = finding.numbers
    panels: list[tuple[str, list[Bucket], Any]] = [
        ("time since the identity came last", finding.ages, span_text),
        ("offsets since the identity came last", finding.distances, "{:,}".format),
    ]
    if numbers is not None and numbers.lates:
        panels.append(("below the highest number, and new", numbers.lates, "{:,}".format))
    # Text stays text, and the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ratchet", "font.size": 9}):
        figure = Figure(figsize=(WIDTH_IN, PANEL_IN * len(panels)), layout="constrained")
        # What strangers wrote is no formula.
        figure.suptitle(
            f"{topic}: {finding.duplicates:,} duplicates by {finding.candidate}", fontsize=9, parse_math=False
        )
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axis, (title, histogram, shown) in zip(axes, panels, strict=True):
            names = [f"≤ {shown(each.most)}" for each in histogram]
            axis.bar(range(len(names)), [each.records for each in histogram], color=COLOUR)
            axis.set_xticks(range(len(names)), names, rotation=60, ha="right")
            axis.set_title(title, fontsize=9)
            axis.spines[["top", "right"]].set_visible(False)
        try:
            figure.savefig(
                picture,
                format=picture.suffix[1:].lower(),
                metadata={"Date": None} if picture.suffix.lower() == ".svg" else None,
            )
        except OSError as error:
            raise SettingsError(f"--plot {str(picture)!r}: cannot be written: {error.strerror}") from None
