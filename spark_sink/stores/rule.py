"""By which rule a job's rows have come into its table: kind, key and sums, kept as one text beside its offsets.

By another rule, rows that are there count twice or are overwritten, and the columns may be the same.
"""

from __future__ import annotations

import json

from kafka_ratchet.spark_sink.errors import RuleDiffers
from kafka_ratchet.spark_sink.rows.write_mode import Shape


def rule_of(shape: Shape) -> str:
    """The rule as it is stored: ASCII, and the same for the same columns in another order."""
    return json.dumps({"kind": shape.kind, "key": sorted(shape.key), "sums": sorted(shape.sums)})


def require_rule(where: object, job: str, stored: str, shape: Shape) -> None:
    """Compare the rule of the rows that are there with the job's.

    Args:
        where: the store, for people.
        job: the job's name.
        stored: as `rule_of` has it; empty: the job has committed nothing, or an earlier version did.
        shape: the job's.

    Raises:
        RuleDiffers: they are not the same.
    """
    wanted = rule_of(shape)
    if stored in {"", wanted}:
        return
    raise RuleDiffers(
        f"{where}: job {job} has committed by {_said(stored)}, and is set to {_said(wanted)}. Rows that are there "
        "would count twice or be overwritten. Put the setting back, or choose another table or another `sink.name` "
        "(both begin at the topic's beginning). `ratchet sink resume --from stored --reason TEXT --execute` decides "
        "that the job goes on here by the new rule"
    )


def _said(rule: str) -> str:
    parts = json.loads(rule)
    lists = [f"{name} {', '.join(parts[name])}" for name in ("key", "sums") if parts[name]]
    return f"kind {parts['kind']}" + (f" ({'; '.join(lists)})" if lists else "")
