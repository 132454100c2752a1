"""The entry points by which Faust finds the host, in a clone as in an installed package."""

from __future__ import annotations

import configparser
import tomllib
from email.parser import HeaderParser
from importlib.metadata import EntryPoint

from faust import transport

from kafka_ratchet.app.faust_host.store import LaneStore
from kafka_ratchet.app.faust_host.transport import Transport
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
