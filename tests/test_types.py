"""Gate for types: mypy checks tests as it checks the package, and passes over none."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent


def test_no_module_is_passed_over() -> None:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]
    assert settings["strict"]
    assert "tests" in settings["packages"]
    assert not [each["module"] for each in settings["overrides"] if each.get("ignore_errors")]
