"""A fault run knows the worker's errors by their texts; a reworded error must not make it wait in vain."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from faults.environment import HALTS
from kafka_ratchet.transport.owner import POLICY
from tests.folders import package_files


def texts() -> Iterator[str]:
    """Yield the strings of the product, with a gap for each formatted value."""
    for path in package_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.parametrize("halt", HALTS)
def test_an_error_of_the_product_has_the_text(halt: str) -> None:
    text_of_product = halt.replace(POLICY, "{}")
    assert any(text_of_product in text for text in texts())
