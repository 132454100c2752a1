"""The write mode by which a job's rows have come into its table, kept as one text beside its offsets.

With another mode, rows that are there would count twice or be overwritten, even where the columns are the same.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from kafka_ratchet.spark_sink.errors import RuleDiffers, StoreError, WriteModeDiffers
from kafka_ratchet.spark_sink.rows.judging.rule import described
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode

FORMAT: Final = 1
"""Of what a job keeps beside its rows, whichever the store: the newest that is read. It is said in this text, as
"format", where it is more than 1."""


def write_mode_text(write_mode: WriteMode) -> str:
    """The text that is stored: ASCII, and the same for the same columns in another order."""
    parts: dict[str, object] = {
        "kind": write_mode.kind,
        "key": sorted(write_mode.key),
        "sums": sorted(write_mode.sums),
    }
    if write_mode.windows is not None:
        parts["windows"] = asdict(write_mode.windows)
    # What is not used is not said: a table of counts and sums has the text that earlier versions have stored.
    parts |= {name: sorted(names) for name, names in write_mode.lists.items() if names and name != "sums"}
    if write_mode.judged is not None:
        parts["judged"] = write_mode.judged.as_dict()
    return json.dumps(parts)


def require_write_mode(where: object, job: str, stored: str, write_mode: WriteMode) -> None:
    """Compare the write mode of the rows that are there with the job's.

    Args:
        where: the store, as messages name it.
        job: the job's name.
        stored: as `write_mode_text` has it; empty: the job has committed nothing, or an earlier version did.
        write_mode: the job's.

    Raises:
        RuleDiffers: the rows were judged by another rule, or one of both is judged by workers.
        WriteModeDiffers: they are not the same otherwise.
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
            f"{where}: job {job} has committed {described(was)}, and is set to commit {described(becomes)}. Records "
            "that are there would be added once more, or others left out: what one rule has seen the other does not "
            "know. Put the settings back (from_input, and the stream's input, identity and sequence), or choose "
            "another table and another `sink.name`"
        )
    raise WriteModeDiffers(
        f"{where}: job {job} has committed by {_described(stored)}, and is set to {_described(wanted)}. Rows that are "
        "there would count twice or be overwritten. Put the setting back, or choose another table or another "
        "`sink.name` (both begin at the topic's beginning). `ratchet sink resume --from stored --reason TEXT "
        "--execute` decides that the job goes on here with the new setting"
    )


def has_key(stored: str) -> bool:
    """Return if later commits change rows.

    Args:
        stored: as `write_mode_text` has it.
    """
    return bool(stored) and json.loads(stored)["kind"] != "append"


def _described(text: str) -> str:
    parts = json.loads(text)
    lists = [f"{name} {', '.join(names)}" for name, names in parts.items() if isinstance(names, list) and names]
    if windows := parts.get("windows"):
        slide = "" if windows["slide_s"] == windows["length_s"] else f", each {windows['slide_s']} s"
        lists.append(f"windows of {windows['length_s']} s{slide}, by {windows['time']}")
    return f"kind {parts['kind']}" + (f" ({'; '.join(lists)})" if lists else "")
