"""Errors of a program, with the line that raised them."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_ratchet.agents.program_errors import OURS, TEXT_MOST, describe_error
from kafka_ratchet.errors import TableError


def raised_by(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each test compares the text
        call()
    return describe_error(raised.value)


def loaded(path: Path) -> Callable[[], object]:
    """Return a function of a file that need not exist: a call of json with a bad text, in its second line."""
    names: dict[str, Callable[[], object]] = {}
    exec(compile("def read():\n    json.loads('{')\n", str(path), "exec"), {"json": json}, names)  # noqa: S102 - ours
    return names["read"]


def test_the_line_is_the_programs_and_not_a_librarys() -> None:
    text = raised_by(lambda: json.loads("{"))
    assert text.startswith("raised JSONDecodeError: ")
    assert f"({__file__}:" in text
    assert "json/decoder" not in text


def test_an_installed_program_is_named_and_not_python(tmp_path: Path) -> None:
    beside_ours = Path(f"{OURS.rstrip('/')}_shop")  # no folder of this package, though its name begins like one
    for folder in (Path(sysconfig.get_path("purelib")) / "shop", beside_ours, tmp_path):
        path = folder / "orders.py"
        with pytest.raises(ValueError, match="Expecting") as raised:
            loaded(path)()
        assert raised.value.__traceback__ is not None
        # As in a worker: no line of the tests is above the program's.
        error = raised.value.with_traceback(raised.value.__traceback__.tb_next)
        assert describe_error(error).endswith(f"({path}:2)")


def test_errors_of_tables_have_no_class_and_long_texts_an_end() -> None:
    assert describe_error(TableError("table totals: no number")) == "table totals: no number"
    assert describe_error(ValueError("x" * 5000)) == f"raised ValueError: {'x' * TEXT_MOST}..."
    assert describe_error(ValueError()) == "raised ValueError"
    assert describe_error(ValueError("\ud800")) == "raised ValueError: \\ud800"
