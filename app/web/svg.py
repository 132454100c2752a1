"""Small pictures as SVG: points of lines, for templates to draw."""

from __future__ import annotations

from collections.abc import Sequence


def sparkline(points: Sequence[tuple[int, int]], begin: int, end: int, width: int = 120, height: int = 24) -> list[str]:
    """Points of polylines, one for each run without a gap.

    Args:
        points: (time, value) in the order of time, usually a minute apart
        begin: time of the left end
        end: time of the right end
        width: of the picture
        height: of the picture
    """
    most, span = max((value for _, value in points), default=0) or 1, max(1, end - begin)
    lines: list[list[str]] = []
    before = None
    for moment, value in points:
        if before is None or moment - before > 120:
            lines.append([])
        lines[-1].append(f"{(moment - begin) / span * width:.1f},{height - 1 - value / most * (height - 2):.1f}")
        before = moment
    return [" ".join(line if len(line) > 1 else line * 2) for line in lines]
