"""Fixtures of the tests that run Faust programs in the process of the tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _other_objects_out_of_search() -> Iterator[None]:
    """Exclude the objects of earlier tests from the search for a program's topics.

    Each start of a program searches all objects that the garbage collector follows. After some thousand tests that
    takes ten seconds a program.
    """
    gc.freeze()
    yield
    gc.unfreeze()
