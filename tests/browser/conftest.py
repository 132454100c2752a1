"""These tests need chromium and chromedriver: they run only with `-m browser` or `--all`."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if "browser" in config.getoption("markexpr") or config.getoption("--all") else True
