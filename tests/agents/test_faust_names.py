"""Somebody who writes as for Faust is told what stands for it."""

from __future__ import annotations

from typing import Any

import faust
import pytest

from kafka_ratchet import App, RatchetError
from kafka_ratchet.agents.program import INSTEAD


def test_there_is_no_faust_app_behind_an_app() -> None:
    app: Any = App()
    with pytest.raises(RatchetError, match=r"@app.agent\(app.stream\(...\)\).*app.Table\(...\).*from-faust.md"):
        app.app.agent("orders")


def test_names_that_an_app_lacks_are_sentences_and_typing_errors_are_not() -> None:
    app: Any = App()
    assert all(hasattr(faust.App, name) for name in INSTEAD if name not in ("app", "conf"))
    for name in (name for name in INSTEAD if name not in dir(app)):
        with pytest.raises(RatchetError, match=r"from-faust\.md"):
            getattr(app, name)
        assert not hasattr(app, name)
    with pytest.raises(AttributeError, match="has no 'tabel'"):
        app.tabel("totals")
