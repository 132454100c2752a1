"""These tests need chromium and chromedriver: they run only where they are asked for, with `-m browser`."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if "browser" in config.getoption("markexpr") else True
