"""Decoding where little of the caller's stack is left."""

from __future__ import annotations

import threading

import pytest

from kafka_ratchet.rule.nesting import decoded


def on_another_stack(text: str) -> int:
    """Decode a number; the stack of the tests' own thread is used up."""
    if threading.current_thread() is threading.main_thread():
        raise RecursionError
    return int(text)


def test_a_stack_that_is_used_up_is_exchanged_for_another() -> None:
    assert decoded(int, "7") == 7
    assert decoded(on_another_stack, "7") == 7


def test_an_error_on_the_other_stack_is_that_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"invalid literal for int.*'seven'"):
        decoded(on_another_stack, "seven")
