"""Records as a file: CSV for a spreadsheet, NDJSON for a script."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins so for a formula, and runs it (OWASP, CSV injection)."""


def csv_response(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> web.Response:
    """A CSV file of that name (without its ending), with a line for the columns."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([cell(row.get(column)) for column in columns])
    return _file(name, "csv", "text/csv", text.getvalue().encode())


def ndjson_response(name: str, rows: Iterable[Mapping[str, Any]]) -> web.Response:
    """A file with a JSON object in each line."""
    return _file(name, "ndjson", "application/x-ndjson", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def cell(value: Any) -> str:
    """A value as text that no spreadsheet takes for a formula: one that would be has an apostrophe before it."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if isinstance(value, str) and text.startswith(FORMULA):
        return f"'{text}"
    return text


def _file(name: str, ending: str, content_type: str, body: bytes) -> web.Response:
    disposition = {"Content-Disposition": f'attachment; filename="{name}.{ending}"'}
    return web.Response(body=body, content_type=content_type, charset="utf-8", headers=disposition)
