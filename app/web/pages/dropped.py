"""GET /dead-letters, GET /duplicates: newest dead letters of a stream, and newest dropped records.

With .csv or .ndjson at the end of the path, the answer is a file in that format.

?[stream=S][&reason=TEXT][&identity=TEXT or hex=HEX][&partition=P][&offset=O][&since=TIME][&until=TIME][&limit=N]
[&values=1]
"""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from aiohttp import web

from kafka_ratchet.app.dead_letters.reading import connected
from kafka_ratchet.app.dead_letters.replayed import ReplayedLetters
from kafka_ratchet.app.inspect.dead_letters import DroppedCounts, duplicates_document, letters_document
from kafka_ratchet.app.repartition import judging
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.lookup import QueryError, parse_offset, parse_partition, parse_parts, typed_identity
from kafka_ratchet.app.status.model import Totals
from kafka_ratchet.app.web.readings import BOOTSTRAP, answer, impatient, read
from kafka_ratchet.app.web.render import CLUSTER_VIEW
from kafka_ratchet.app.why.dropped import LOOK_MOST, READ_MOST, NewestRecords, RecordFilter, sample
from kafka_ratchet.errors import RatchetError, SettingsError

FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Characters that begin a formula in a spreadsheet's cell (OWASP, CSV injection)."""


def csv_response(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> web.Response:
    """Return the response with a CSV file of the rows, with a header line. name: name of the file without .csv."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([cell(row.get(column)) for column in columns])
    return _file(name, "csv", "text/csv", text.getvalue().encode())


def ndjson_response(name: str, rows: Iterable[Mapping[str, Any]]) -> web.Response:
    """Return the response with an NDJSON file of the rows. name: name of the file without .ndjson."""
    return _file(name, "ndjson", "application/x-ndjson", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def cell(value: Any) -> str:
    """Return a value as the text of a CSV cell. A text that would be a formula gets an apostrophe in front."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if isinstance(value, str) and text.startswith(FORMULA):
        return f"'{text}"
    return text


def _file(name: str, ending: str, content_type: str, body: bytes) -> web.Response:
    disposition = {"Content-Disposition": f'attachment; filename="{name}.{ending}"'}
    return web.Response(body=body, content_type=content_type, charset="utf-8", headers=disposition)


SHOWN: Final = 20
SHOWN_MOST: Final = 200
FILE_MOST: Final = 10_000
REASON_MOST: Final = 500
END_S: Final = 1.0
"""Seconds to wait for the end of a reading before cancelling it, if its result is no longer needed."""
FILTERS: Final = ("reason", "identity", "hex", "partition", "offset", "since", "until")
COLUMNS: Final = (
    "partition",
    "offset",
    "timestamp",
    "reason",
    "identity",
    "identity_hex",
    "origin",
    "against",
    "headers",
    "key",
    "value",
)


async def dead_letters_page(request: web.Request) -> web.StreamResponse:
    """Return the page with a stream's newest dead letters, and their counts by reason and by identity."""
    return await _page(request, "dead-letters")


async def duplicates_page(request: web.Request) -> web.StreamResponse:
    """Return the page with a stream's newest dropped records, if the stream has a topic for them.

    Otherwise the page has only their counts, and names the setting for the topic.
    """
    return await _page(request, "duplicates")


async def _page(request: web.Request, kind: str) -> web.StreamResponse:
    view = request.app[CLUSTER_VIEW]
    ending = request.path.rpartition(".")[2]

    async def ask(asked: dict[str, str]) -> Any:
        settings = view.settings
        name = stream_of(settings, asked)
        stream = settings.streams[name]
        topic = stream.dead_letters if kind == "dead-letters" else stream.duplicates
        if topic is None:
            return DroppedCounts(name, await _counts(request, name))
        is_file = ending in ("csv", "ndjson")
        wanted = wanted_of(settings, name, asked, FILE_MOST if is_file else SHOWN_MOST, FILE_MOST if is_file else SHOWN)
        bootstrap = request.app[BOOTSTRAP]
        found, replayed = await read(request, lambda: _look(settings, bootstrap, name, topic, wanted, kind))
        values = asked.get("values") == "1"
        if kind == "dead-letters":
            page = letters_document(found, name, values=values, replayed=replayed)
        else:
            page = duplicates_document(found, name, values=values)
        if ending == "csv":
            columns = (*COLUMNS, "replayed") if kind == "dead-letters" else COLUMNS
            return csv_response(f"{name}-{kind}", columns, [_flat(each.as_dict()) for each in page.records])
        return (
            ndjson_response(f"{name}-{kind}", [each.as_dict() for each in page.records]) if ending == "ndjson" else page
        )

    return await answer(request, "dropped.html", ask, kind=kind)


def _look(
    settings: Settings, bootstrap: str, name: str, topic: str, wanted: RecordFilter, kind: str
) -> tuple[NewestRecords, ReplayedLetters | None]:
    """Return a sample of the records, and the set of re-sent dead letters.

    The set is None for duplicates, or if it is not known.
    """
    if kind != "dead-letters":
        return sample(impatient(settings), bootstrap, name, topic, wanted), None
    return asyncio.run(_letters(impatient(settings), bootstrap, name, topic, wanted))


async def _letters(
    settings: Settings, bootstrap: str, name: str, topic: str, wanted: RecordFilter
) -> tuple[NewestRecords, ReplayedLetters | None]:
    """Read the dead letters, and at the same time the set of the re-sent ones."""
    asking = asyncio.create_task(_replayed(settings, bootstrap, name))
    try:
        found = await asyncio.to_thread(sample, settings, bootstrap, name, topic, wanted)
        if not found.records:
            return found, None
        try:
            return found, await asking
        except RatchetError as error:
            found.problems.append(f"it is not known which dead letters were sent again: {error}")
            return found, None
    finally:
        await asyncio.wait({asking}, timeout=END_S)  # not in the midst of connecting, which would leave a socket open
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def _replayed(settings: Settings, bootstrap: str, name: str) -> ReplayedLetters:
    async with connected(settings, bootstrap, name) as letters:
        return await letters.replayed()


def stream_of(settings: Settings, asked: Mapping[str, str]) -> str:
    """Return the name of the stream in the parameters of an address; without one, the first stream.

    Raises:
        SettingsError: the stream does not exist, or the settings have no stream.
    """
    if asked.get("stream"):
        return settings.stream(asked["stream"])[0]
    if not settings.streams:
        raise SettingsError("the settings name no streams: add a [streams.NAME] section to the settings file")
    return next(iter(judging(settings.streams)))


def wanted_of(settings: Settings, name: str, asked: Mapping[str, str], most: int, usual: int) -> RecordFilter:
    """Return the filter in the parameters of an address. most: greatest limit of records; usual: default limit.

    Raises:
        QueryError: a parameter is malformed, or the offset lacks its partition.
    """
    identity = None
    texts, digits = typed_identity(asked)
    if texts or digits is not None:
        identity = parse_parts(settings.streams[name].identity, texts, digits)
    partition, offset = parse_partition(asked.get("partition")), parse_offset(asked.get("offset"))
    if offset is not None and partition is None:
        raise QueryError("the offset needs a partition. Give partition as well")
    reason = asked.get("reason") or None
    if reason is not None and len(reason) > REASON_MOST:
        raise QueryError(f"the reason has {len(reason):,} characters; it may have {REASON_MOST} at most")
    limit = asked.get("limit") or str(usual)
    if not re.fullmatch(r"[0-9]{1,6}", limit) or not 1 <= int(limit) <= most:
        raise QueryError(f"the limit must be a whole number from 1 to {most}")
    since, until = (_time(each, asked.get(each)) for each in ("since", "until"))
    is_look = usual == SHOWN and not any(asked.get(each) for each in FILTERS)
    return RecordFilter(
        reason, identity, partition, offset, since, until, int(limit), most=LOOK_MOST if is_look else READ_MOST
    )


def _time(name: str, text: str | None) -> int | None:
    """Return the time in a text of ISO 8601, in ms since the epoch; None for an empty text.

    A time without a zone is in UTC. name: parameter, for the error

    Raises:
        QueryError: the text is not a time.
    """
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise QueryError(f"{name} is not a time: write 2026-11-23T06:30, which is UTC") from None


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record's JSON object for CSV, with key and value as texts, or as numbers of bytes."""
    flat = dict(row)
    for name in ("key", "value"):
        flat[name] = row[name].get("text", "" if row[name]["bytes"] is None else f"{row[name]['bytes']} bytes")
    return flat


async def _counts(request: web.Request, name: str) -> dict[str, int | None]:
    overview = await request.app[CLUSTER_VIEW].overview()
    totals: Totals = next(each for each in overview.streams if each.stream == name).totals
    return {each: getattr(totals, each) for each in ("duplicate", "late", "conflict")}
