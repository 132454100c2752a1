"""docs/reference/addresses.md says what the page and a worker answer, and with which keys."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from kafka_ratchet.app.status import answers, history, identities, model, own_tables, producers
from kafka_ratchet.app.web.pages import overview, streams, workers
from kafka_ratchet.app.web.routes import PAGES
from kafka_ratchet.app.why.answer import InputRecord

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "addresses.md").read_text("utf-8")
ROWS = {
    address: entry
    for entry in re.findall(r"^- `/.*(?:\n  .*)*", TEXT, re.MULTILINE)
    for address in re.findall(r"`(/[^`]*)`", re.split(r":|\n", entry)[0])
}
BODIES: dict[str, list[Any]] = {
    "/": [model.Overview, overview.StreamRates],
    "/history": [history.History, history.StreamPoints],
    "/streams/{stream}": [streams.StreamPage],
    "/streams/{stream}/identities": [identities.IdentitiesPage],
    "/lookup": [model.Lookup, model.KnownIdentity],
    "/event": [InputRecord],
    "/producers": [producers.ProducersPage],
    "/tables/{table}": [own_tables.TablePage],
    "/workers": [workers.WorkersPage, workers.ServingWorker],
    "/status": [answers.WorkerStatus],
    "/status/identity": [answers.IdentityAnswer],
    "/status/identities": [identities.IdentitiesAnswer],
    "/status/producers": [producers.ProducersAnswer],
    "/status/table": [own_tables.TableAnswer],
    "/status/history": [history.HistoryAnswer],
    "/status/events": [history.EventsAnswer],
    "/status/intervals": [history.IntervalsAnswer, history.Interval],
}
RARE = {"cannot_forget", "cannot_replay"}
"""Answers of workers of an earlier version."""


def test_every_page_is_there() -> None:
    fragments = {"/tables", "/events", "/streams/{stream}/partitions"}
    assert {page.path for page in PAGES} - fragments <= set(ROWS)
    assert all(f"`{each}`" in TEXT for each in fragments)


@pytest.mark.parametrize("address", BODIES)
def test_every_key_is_there(address: str) -> None:
    said = set(re.findall(r"`([a-z_0-9]+)`", ROWS[address]))
    keys = {field.name for body in BODIES[address] for field in dataclasses.fields(body)}
    assert keys - said - RARE - ({"stream"} if address == "/" else set()) == set()
