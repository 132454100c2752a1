"""Spread of several figures of one thing."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median


def spread(values: Iterable[float], digits: int = 3) -> dict[str, float]:
    """Median, minimum and maximum, rounded."""
    found = sorted(values)
    return {"median": round(median(found), digits), "min": round(found[0], digits), "max": round(found[-1], digits)}
