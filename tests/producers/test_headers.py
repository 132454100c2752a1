import pytest

from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.producers import headers
from kafka_ratchet.rule import identity as tables


def test_names_and_limits_are_those_the_worker_reads() -> None:
    assert headers.PRODUCER_HEADER == tables.PRODUCER_HEADER
    assert headers.SEQUENCE_HEADER == tables.SEQUENCE_HEADER
    assert headers.SEQUENCE_MAX == tables.SEQUENCE_MAX
    assert headers.MAX_NAME_BYTES <= tables.MAX_IDENTITY_BYTES


@pytest.mark.parametrize("name", ["a", "é" * 128, "x" * 256, "orders/2024 ☃", " "])
def test_names_that_are_fine(name: str) -> None:
    assert headers.name_bytes(name).decode() == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "is empty"),
        ("x" * 257, "257 bytes"),
        ("é" * 129, "258 bytes"),
        ("a\nb", "U\\+000A"),
        ("a\x00", "U\\+0000"),
        ("\x9b", "U\\+009B"),
        ("\ud800", "U\\+D800"),
    ],
)
def test_names_that_are_refused(name: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        headers.name_bytes(name)


def test_sequences() -> None:
    assert headers.sequence_bytes(0) == bytes(8)
    assert headers.sequence_bytes(2**63 - 1) == b"\x7f" + b"\xff" * 7
    for sequence in (-1, 2**63):
        with pytest.raises(SourceError, match="not within 0 and 2\\^63-1"):
            headers.sequence_bytes(sequence)
