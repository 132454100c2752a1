"""An operator's decision where a job goes on whose stored offsets do not fit its table or topic, and its record."""

from __future__ import annotations

import datetime
import getpass
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from kafka_ratchet.spark_sink.errors import StoreError

TABLE, STORED, EARLIEST, LATEST = "table", "stored", "earliest", "latest"
"""Where a job can be told to go on: where the rows end, where the offsets say, or at either end of the topic."""


@dataclass(frozen=True)
class StoreCheck:
    """What an operator has to know of a store before such a decision. To ask takes nothing over."""

    stored: dict[int, int]
    """Next offset of each partition as it is stored."""
    row_offsets: dict[int, int] | None
    """Next offset of each partition by the rows that the table really has; None: they do not say."""
    trouble: str
    """Why the job does not go on by itself, in a sentence; empty: nothing is wrong with the table."""
    is_other_topic: bool = False
    """The stored offsets belong to another topic of the name."""


@dataclass(frozen=True)
class Decision:
    """Who has decided where a job goes on, and why."""

    source: str
    """What was asked for, as `--from` has it."""
    reason: str
    who: str
    at: str
    """UTC, ISO 8601."""
    seen: Mapping[int, int] | None = None
    """The stored offsets that were looked at for it; None: they do not matter."""

    def require_seen(self, where: object, stored: Mapping[int, int]) -> None:
        """Refuse what was decided for other offsets than there are: the job has gone on since.

        Raises:
            StoreError: the stored offsets are others.
        """
        if self.seen is not None and dict(self.seen) != dict(stored):
            raise StoreError(
                f"{where}: the job has committed since this was decided (up to {dict(stored)}). Stop it, and look again"
            )

    def as_json(
        self, before: Mapping[int, int], after: Mapping[int, int], write_modes: tuple[str, str] = ("", "")
    ) -> str:
        """One line, to be kept beside the offsets.

        Args:
            before: offsets that were stored.
            after: those that are now.
            write_modes: the stored one and the new one, see `write_mode_text`; kept where they differ.
        """
        was, becomes = write_modes
        changed = {"rule": {"before": json.loads(was), "after": json.loads(becomes)}} if was and was != becomes else {}
        return json.dumps(
            {
                "at": self.at,
                "who": self.who,
                "reason": self.reason,
                "from": self.source,
                "before": {str(partition): offset for partition, offset in before.items()},
                "after": {str(partition): offset for partition, offset in after.items()},
                **changed,
            }
        )


def decide(source: str, reason: str, seen: Mapping[int, int] | None = None) -> Decision:
    """A decision of the user of this process, now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Decision(source, reason, f"{_user()}@{socket.gethostname()}", now, seen)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"
