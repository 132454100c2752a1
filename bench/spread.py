"""Spread of several measurements of one quantity."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median


def spread(values: Iterable[float], digits: int = 3) -> dict[str, float]:
    """Return median, minimum and maximum, rounded."""
    found = sorted(values)
    return {"median": round(median(found), digits), "min": round(found[0], digits), "max": round(found[-1], digits)}
