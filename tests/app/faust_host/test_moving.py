"""What the import of Faust's state refuses before it writes anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.app.faust_host.moving import _TakeOver
from kafka_ratchet.app.status.group import Group
from kafka_ratchet.errors import SettingsError


@pytest.mark.parametrize(
    ("after", "said"),
    [({("in", 0): 1}, None), ({("in", 0): 2}, "was 1 .*and is 2 now"), ({}, "was 1 .*and is missing now")],
)
def test_offsets_that_change_while_tables_are_read_are_refused(
    after: dict[tuple[str, int], int], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = [Group("Empty", foreign={("in", 0): 1}), Group("Empty", foreign=after)]
    importing: Any = _TakeOver(SimpleNamespace(stores={}), SimpleNamespace(kafka={}, app="shop"), "")  # type: ignore[arg-type]
    for name, answer in (
        ("_group", lambda: read.pop(0)),
        ("_plan", lambda *_: []),
        ("_refuse_waiting", lambda _: None),
    ):
        monkeypatch.setattr(importing, name, answer)
    if said is None:
        assert importing.run(dry_run=True) == []
        return
    with pytest.raises(SettingsError, match=f"in, partition 0: the group's offset {said}.*Nothing was imported"):
        importing.run(dry_run=True)
