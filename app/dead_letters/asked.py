"""Dead-letter requests from the command line and the page."""

from __future__ import annotations

import asyncio
from typing import Final

from kafka_ratchet.app.dead_letters.reading import LetterFilter, connected
from kafka_ratchet.app.dead_letters.replay import Options, Replay, ReplayResult
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import SettingsError

MOST: Final = 2**63 - 1


def wanted_of(reason: str | None, partition: str | None, offset: str | None, limit: str | None) -> LetterFilter:
    """Return a selection of dead letters, parsed from the texts of options; None: option not given.

    Raises:
        SettingsError: a text is not a number, or an offset is given without a partition.
    """
    if offset is not None and partition is None:
        raise SettingsError("--offset names a record of one partition, but --partition is missing. Add --partition")
    return LetterFilter(reason, _number("partition", partition), _number("offset", offset), _number("limit", limit))


def replay_letters(
    settings: Settings, bootstrap: str, name: str, wanted: LetterFilter, options: Options, *, dry_run: bool
) -> ReplayResult:
    """Send the selected dead letters of a stream to its input again; with `dry_run`, only count them.

    Raises:
        RatchetError: Kafka does not answer, or refuses the request.
    """

    async def run() -> ReplayResult:
        async with connected(settings, bootstrap, name) as letters:
            work = Replay(letters, wanted, options, bootstrap)
            return await (work.plan() if dry_run else work.execute())

    return asyncio.run(run())


def sentences(outcome: ReplayResult) -> list[str]:
    """Return the result of a replay as sentences for display."""
    counts = outcome.counts
    if outcome.dry_run:
        lines = [f"{counts.to_replay:,} dead letters would be sent to {outcome.input}. Nothing was changed."]
    else:
        lines = [f"{outcome.replayed:,} dead letters were sent to {outcome.input}."]
    if counts.done:
        lines.append(f"{counts.done:,} were replayed before, and are not sent twice.")
    if counts.held_back:
        lines.append(
            f"{counts.held_back:,} come from a replay: their record failed again. --again sends them once more."
        )
    if counts.too_often:
        lines.append(f"{counts.too_often:,} were replayed so often that they are not sent any more.")
    if counts.others:
        lines.append(f"{counts.others:,} are not dead letters of this stream, and are left alone.")
    if counts.too_old and outcome.dry_run:
        lines.append(f"{counts.too_old:,} are older than what {outcome.input} keeps: --now would be needed.")
    return lines


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(MOST)) or int(text) > MOST:
        raise SettingsError(f"--{name} must be a number from 0 on (given: {text[:40]!r})")
    return int(text)
