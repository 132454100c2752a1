"""Write mode of a job's rows in its table, stored as one text with the offsets.

If a job continued with another mode, its existing rows would count twice or be overwritten, even with the same columns.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from kafka_ratchet.spark_sink.errors import RuleDiffers, StoreError, WriteModeDiffers
from kafka_ratchet.spark_sink.rows.judging.rule import described
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode

FORMAT: Final = 1
"""Newest format of a job's state that this version reads. A text in a later format than 1 contains the number as
"format"."""


def write_mode_text(write_mode: WriteMode) -> str:
    """Return the write mode as ASCII text for the store; the order of the columns does not matter."""
    parts: dict[str, object] = {
        "kind": write_mode.kind,
        "key": sorted(write_mode.key),
        "sums": sorted(write_mode.sums),
    }
    if write_mode.windows is not None:
        parts["windows"] = asdict(write_mode.windows)
    # Unused parts are left out: a table of counts and sums has the text of earlier versions.
    parts |= {name: sorted(names) for name, names in write_mode.lists.items() if names and name != "sums"}
    if write_mode.judged is not None:
        parts["judged"] = write_mode.judged.as_dict()
    return json.dumps(parts)


def require_write_mode(where: object, job: str, stored: str, write_mode: WriteMode) -> None:
    """Refuse a write mode other than that of the existing rows.

    Args:
        where: the table, as messages name it.
        job: the job's name.
        stored: text from `write_mode_text`; empty: the store has no such text of the job.
        write_mode: write mode of the job.

    Raises:
        RuleDiffers: the rules for judging records differ; or workers judged the existing rows and the sink is to judge
            new records, or the reverse.
        WriteModeDiffers: the write modes differ in another way.
        StoreError: a newer version of Ratchet has committed.
    """
    wanted = write_mode_text(write_mode)
    if stored in {"", wanted}:
        return
    if (known := json.loads(stored).get("format", FORMAT)) != FORMAT:
        raise StoreError(
            f"{where}: job {job} has committed in format {known} of a newer Ratchet, and this version reads format "
            f"{FORMAT}. Run the newer version"
        )
    was, becomes = (json.loads(text).get("judged") for text in (stored, wanted))
    if was != becomes:
        raise RuleDiffers(
            f"{where}: job {job} has committed {described(was)}, and is set to commit {described(becomes)}. The "
            "new rule could add records once more, or leave others out. Restore the former settings (from_input, and "
            "the stream's input, identity and sequence), or choose another table and another `sink.name`"
        )
    raise WriteModeDiffers(
        f"{where}: job {job} has committed by {_described(stored)}, and is set to {_described(wanted)}. Existing rows "
        "would count twice or be overwritten. Restore the former setting, or choose another table, for which the job "
        "reads the topic from its beginning. `ratchet sink resume --from stored --reason TEXT --execute` lets the job "
        "continue in this table with the new setting"
    )


def has_key(stored: str) -> bool:
    """Return whether a write mode changes existing rows.

    Args:
        stored: text from `write_mode_text`.
    """
    return bool(stored) and json.loads(stored)["kind"] != "append"


def _described(text: str) -> str:
    parts = json.loads(text)
    lists = [f"{name} {', '.join(names)}" for name, names in parts.items() if isinstance(names, list) and names]
    if windows := parts.get("windows"):
        slide = "" if windows["slide_s"] == windows["length_s"] else f", each {windows['slide_s']} s"
        lists.append(f"windows of {windows['length_s']} s{slide}, by {windows['time']}")
    return f"kind {parts['kind']}" + (f" ({'; '.join(lists)})" if lists else "")
