"""Replayed dead letters of an export, imported into their own partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.app.operations.state_import import ImportOptions, StateImport
from kafka_ratchet.app.operations.state_rows import Row
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.replays import LETTER


@pytest.mark.parametrize("identity", [Identity.KEY, Identity.PARTITION, Identity.PRODUCER])
def test_a_replayed_letter_stays_where_its_record_goes(identity: Identity) -> None:
    importing: Any = SimpleNamespace(
        _how=ImportOptions(reason="moved"),
        _stream=SimpleNamespace(identity=identity, input="in"),
        partitions=3,
        _is_internal=False,
    )
    for partition, places in ((0, [0]), (2, [2]), (7, [0, 1, 2]), (None, [0, 1, 2])):
        row = Row(LETTER + b"dead/id/0/1", 0, partition, 3)
        assert list(StateImport._places(importing, 1, row)) == places
