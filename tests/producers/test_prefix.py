import random
from collections import deque

from kafka_ratchet.producers.prefix import REPORT_EVERY, AcknowledgedPrefix


def send(prefix: AcknowledgedPrefix, partition: int, sequence: int) -> bool:
    reported = prefix.needs_report(partition)
    prefix.count_sent(partition, sequence, is_reported=reported)
    return reported


def reached(prefix: AcknowledgedPrefix) -> int:
    prefix.advance()
    return prefix.sequence


def test_waits_for_the_partition_that_lags() -> None:
    a, b = 0, 1
    prefix = AcknowledgedPrefix()
    assert [send(prefix, *record) for record in ((a, 1), (b, 2), (a, 3))] == [True, True, False]
    prefix.acknowledge(a)
    assert send(prefix, a, 4)  # for 3 as well, whose end nobody would have heard of
    assert (reached(prefix), prefix.highest) == (1, 1)
    prefix.acknowledge(a)
    assert (reached(prefix), prefix.highest) == (1, 4)
    prefix.acknowledge(b)
    assert (reached(prefix), prefix.records, prefix.reported) == (4, 4, 4)


def test_a_run_without_a_report_waits_until_all_is_settled() -> None:
    prefix = AcknowledgedPrefix()
    send(prefix, 0, 1)
    send(prefix, 0, 2)
    prefix.acknowledge(0)
    assert reached(prefix) == 1
    prefix.acknowledge_all()
    assert (reached(prefix), prefix.highest, prefix.records) == (2, 2, 2)


def test_a_report_about_a_record_that_was_not_counted() -> None:
    prefix = AcknowledgedPrefix()
    prefix.acknowledge(0)  # sent, then interrupted
    send(prefix, 0, 1)
    prefix.acknowledge(0)
    assert (reached(prefix), prefix.records) == (1, 1)


def test_publishing_again_counts_only_what_is_above_the_reached() -> None:
    prefix = AcknowledgedPrefix(reached=100)
    assert reached(prefix) == -1
    for sequence in (0, 50, 100, 150):
        send(prefix, 0, sequence)
    prefix.acknowledge(0)
    assert (reached(prefix), prefix.records) == (0, 0)
    prefix.acknowledge_all()
    assert (reached(prefix), prefix.records) == (150, 1)


def test_never_past_a_hole_and_in_the_end_past_everything() -> None:
    chance = random.Random(3)
    for _ in range(100):
        prefix = AcknowledgedPrefix()
        under_way: list[deque[tuple[int, bool]]] = [deque() for _ in range(4)]
        sequence = last_reached = 0
        for _ in range(1500):
            if chance.random() < 0.6:
                sequence += chance.randint(1, 3)
                partition = min(int(chance.expovariate(1.5)), 3)  # some are busy, some hardly ever written to
                under_way[partition].append((sequence, send(prefix, partition, sequence)))
            elif any(under_way):
                partition = chance.choice([p for p in range(4) if under_way[p]])
                for _ in range(chance.randint(1, len(under_way[partition]))):
                    if under_way[partition].popleft()[1]:
                        prefix.acknowledge(partition)
            missing = min((ahead[0][0] for ahead in under_way if ahead), default=sequence + 1)
            assert last_reached <= reached(prefix) + 1 <= missing
            last_reached = prefix.sequence
            # At most what one report stands for is not known yet, for each partition.
            assert prefix.reported >= prefix.taken - sum(map(len, under_way)) - 4 * REPORT_EVERY
        prefix.acknowledge_all()
        assert reached(prefix) == prefix.highest == sequence
