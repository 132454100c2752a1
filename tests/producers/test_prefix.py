import random

from producers._prefix import AcknowledgedPrefix


def test_waits_for_the_partition_that_lags() -> None:
    prefix = AcknowledgedPrefix()
    for sequence in (1, 2, 3, 4):
        prefix.sent(sequence)
    prefix.acknowledge(1)
    prefix.acknowledge(3)
    prefix.acknowledge(4)
    assert prefix.sequence == 1
    assert len(prefix) == 3
    prefix.acknowledge(2)
    assert prefix.sequence == 4
    assert prefix.records == 4
    assert len(prefix) == 0


def test_a_withdrawn_sequence_is_not_waited_for() -> None:
    prefix = AcknowledgedPrefix(10)
    prefix.sent(11)
    prefix.sent(12)
    prefix.withdraw()
    prefix.acknowledge(11)
    assert (prefix.sequence, len(prefix)) == (11, 0)


def test_publishing_again_does_not_take_back_what_was_reached() -> None:
    prefix = AcknowledgedPrefix(100)
    for sequence in (0, 50, 100, 150):
        prefix.sent(sequence)
    prefix.acknowledge(0)
    prefix.acknowledge(50)
    assert (prefix.sequence, prefix.records) == (100, 0)
    prefix.acknowledge(100)
    prefix.acknowledge(150)
    assert (prefix.sequence, prefix.records) == (150, 1)


def test_never_past_a_hole_in_any_order_of_acknowledgements() -> None:
    chance = random.Random(3)
    for _ in range(200):
        sequences = sorted(chance.sample(range(1000), 30))
        prefix = AcknowledgedPrefix()
        for sequence in sequences:
            prefix.sent(sequence)
        missing = set(sequences)
        for sequence in chance.sample(sequences, len(sequences)):
            prefix.acknowledge(sequence)
            missing.discard(sequence)
            below_hole = [s for s in sequences if not missing or s < min(missing)]
            assert prefix.sequence == (below_hole[-1] if below_hole else -1)
