"""How long a lane's transaction stays open."""

from __future__ import annotations

from typing import Final

WORTH_A_COMMIT: Final = 10_000
"""Records that pay for a transaction, whose ends take about 3 ms: with so many, and nothing more to read, a lane
commits before its time, so that whoever catches up has its results at once."""
BEHIND_S: Final = 0.1
"""A lane that is behind lets a smaller transaction wait for that many, up to so long: what it reads has waited longer.
At 10 ms the ends of transactions took most of the broker's time, and with it more than half of the throughput."""


def open_s(interval_s: float, records: int, *, left: int | None) -> float:
    """Seconds after its first record when a transaction is to be committed, as things are now.

    A lane is behind when at least `WORTH_A_COMMIT` more records wait to be read. Fewer say nothing: while records come
    one after the other, some are always there.

    Args:
        interval_s: that the settings ask for
        records: in the transaction so far
        left: offsets to the input's end when it was last asked; None: nobody knows
    """
    is_behind = left is None or left >= WORTH_A_COMMIT
    return max(interval_s, BEHIND_S) if is_behind and records < WORTH_A_COMMIT else interval_s
