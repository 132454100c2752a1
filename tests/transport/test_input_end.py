"""Until when an input is judged: each answer stands with the time before its question, in whatever order they come."""

from __future__ import annotations

from kafka_ratchet.transport.input_end import InputEnd


def test_an_answer_holds_as_of_its_question() -> None:
    end = InputEnd()
    assert end.judged_until_ms(0) is None  # nobody has asked
    end.told(7, end.known_ms)
    assert (end.judged_until_ms(6), end.judged_until_ms(7)) == (None, 0)  # nobody knows since when
    end.appended(1_000)
    asked = end.known_ms
    end.appended(5_000)
    end.appended(4_000)  # another broker's clock is behind
    assert end.known_ms == 5_000
    assert end.judged_until_ms(7) == 0  # what was appended since says nothing of the input
    end.told(9, 5_000)
    assert (end.judged_until_ms(8), end.judged_until_ms(9)) == (None, 5_000)
    end.told(8, asked)  # a fetch that was under way for longer: it says less, and of an earlier time
    assert (end.judged_until_ms(7), end.judged_until_ms(8)) == (None, 1_000)
