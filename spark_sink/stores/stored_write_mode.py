"""Write mode of a job's rows in its table, kept as one text with its offsets.

With another mode, existing rows would count twice or be overwritten, even if the columns are the same.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from kafka_ratchet.spark_sink.errors import RuleDiffers, StoreError, WriteModeDiffers
from kafka_ratchet.spark_sink.rows.judging.rule import described
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode

FORMAT: Final = 1
"""Newest format of a job's state in any store that this version reads. The text has it as "format" if it is above 1."""


def write_mode_text(write_mode: WriteMode) -> str:
    """Return the stored text: ASCII, and the same for the same columns in another order."""
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
    """Compare the write mode of the existing rows with the job's.

    Args:
        where: the store, as messages name it.
        job: the job's name.
        stored: text of `write_mode_text`; empty: the job has committed nothing, or an earlier version did.
        write_mode: the job's.

    Raises:
        RuleDiffers: the rows were judged by another rule, or workers judge one of the two.
        WriteModeDiffers: they differ otherwise.
        StoreError: a newer version of the job has committed.
    """
    wanted = write_mode_text(write_mode)
    if stored in {"", wanted}:
        return
    if (known := json.loads(stored).get("format", FORMAT)) != FORMAT:
        raise StoreError(
            f"{where}: job {job} has committed in format {known}, as a newer Ratchet does, and this one reads format "
            f"{FORMAT}. Run the newer one"
        )
    was, becomes = (json.loads(text).get("judged") for text in (stored, wanted))
    if was != becomes:
        raise RuleDiffers(
            f"{where}: job {job} has committed {described(was)}, and is set to commit {described(becomes)}. Known "
            "records would be added once more, or others left out: neither rule knows the other's records. Put the "
            "settings back (from_input, and the stream's input, identity and sequence), or choose another table and "
            "another `sink.name`"
        )
    raise WriteModeDiffers(
        f"{where}: job {job} has committed by {_described(stored)}, and is set to {_described(wanted)}. Existing rows "
        "would count twice or be overwritten. Put the setting back, or choose another table or another `sink.name` "
        "(both begin at the topic's beginning). `ratchet sink resume --from stored --reason TEXT --execute` decides "
        "that the job goes on here with the new setting"
    )


def has_key(stored: str) -> bool:
    """Return whether later commits change rows.

    Args:
        stored: text of `write_mode_text`.
    """
    return bool(stored) and json.loads(stored)["kind"] != "append"


def _described(text: str) -> str:
    parts = json.loads(text)
    lists = [f"{name} {', '.join(names)}" for name, names in parts.items() if isinstance(names, list) and names]
    if windows := parts.get("windows"):
        slide = "" if windows["slide_s"] == windows["length_s"] else f", each {windows['slide_s']} s"
        lists.append(f"windows of {windows['length_s']} s{slide}, by {windows['time']}")
    return f"kind {parts['kind']}" + (f" ({'; '.join(lists)})" if lists else "")
