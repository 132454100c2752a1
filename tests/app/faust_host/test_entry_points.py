"""The entry points by which Faust finds the host, in a clone as in an installed package."""

from __future__ import annotations

import asyncio
import configparser
import tomllib
from email.parser import HeaderParser
from importlib.metadata import EntryPoint
from typing import Any

import faust
from faust import transport
from faust.types import TP

from kafka_ratchet.app.faust_host.store import LaneStore
from kafka_ratchet.app.faust_host.transport import Transport, forward_signals
from tests.folders import ROOT

CLONE = ROOT / "kafka_ratchet.egg-info"


def test_a_clone_has_the_entry_points_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = configparser.ConfigParser()
    found.read(CLONE / "entry_points.txt")
    assert {group: dict(found[group]) for group in found.sections()} == project["entry-points"]
    about = HeaderParser().parsestr((CLONE / "PKG-INFO").read_text("utf-8"))
    assert (about["Name"], about["Version"]) == (project["name"], project["version"])


def test_entry_points_name_what_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    loaded = [
        EntryPoint(name, value, group).load()
        for group, points in project["entry-points"].items()
        for name, value in points.items()
    ]
    assert loaded == [Transport, LaneStore]


def test_faust_finds_the_transport_by_its_url() -> None:
    assert transport.by_url("ratchet://127.0.0.1:9092") is Transport


def test_signals_of_the_group_reach_the_program() -> None:
    member, app = (faust.App(name, broker="kafka://127.0.0.1:9") for name in ("member", "program"))
    told: list[Any] = []

    @app.on_partitions_assigned.connect
    async def assigned(sender: Any, assigned: Any, **_: Any) -> None:
        told.append((sender, assigned))

    @app.on_partitions_revoked.connect
    async def revoked(sender: Any, revoked: Any, **_: Any) -> None:
        told.append((sender, revoked))

    @app.on_rebalance_complete.connect
    async def complete(sender: Any, **_: Any) -> None:
        told.append((sender, None))

    async def signal() -> None:
        await member.on_partitions_assigned.send({TP("program-changelog.orders", 1), TP("other", 2)})
        await member.on_partitions_revoked.send(set())
        await member.on_rebalance_complete.send()

    forward_signals(member, app, {"program-changelog.orders": "orders"})
    asyncio.run(signal())
    assert told == [(app, {TP("orders", 1), TP("other", 2)}), (app, set()), (app, None)]
