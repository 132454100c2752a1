"""The programs of docs/guide/reader.md, from the first to the last."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.reader.conftest import Fill

PAGE = Path(__file__).parents[2] / "docs/guide/reader.md"


def test_the_programs_of_the_guide_count_each_event_once(
    broker: str, new_topic: Callable[..., str], fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"BOOTSTRAP": broker}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        fill(topic, 20, first=20 * number)
        exec(compile(block.replace("orders.once", topic), "guide", "exec"), names)  # noqa: S102 - ours
    asyncio.run(names["main"]())
    found = names["sqlite3"].connect("bill.db").execute("select amount from bill").fetchall()
    assert sorted(int(amount) for (amount,) in found) == list(range(60))
