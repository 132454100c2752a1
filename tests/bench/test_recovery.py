"""Recovery: of what was killed, and told in ratios."""

from __future__ import annotations

import pytest

from bench.compare import stage
from bench.load import Load
from bench.recovery import Recovery, ratios, recovery


def run(subject: str, every_partition_s: float) -> Recovery:
    return Recovery(subject, 10, "intact", 1, 4, 0.1, every_partition_s)


def test_ratios_are_of_the_first_to_each_other_until_every_partition_is_back() -> None:
    runs = [run("ratchet", 1.0), run("loop", 4.0), run("ratchet", 2.0), run("loop", 10.0)]
    assert ratios(runs) == {"ratchet_to_loop": {"median": 0.225, "min": 0.2, "max": 0.25}}
    assert ratios(runs[:1]) == {}


@pytest.mark.long
@pytest.mark.parametrize("lost", [False, True])
def test_one_process_of_two_is_killed_and_measured_by_its_own_partitions(*, lost: bool) -> None:
    load = Load(records=10_000, keys=1_000)
    with stage(load) as here:
        found = recovery("ratchet", here.broker.bootstrap, here.topic, load, 100, lost=lost, away_s=600, processes=2)
    assert (found.processes, found.partitions, found.store) == (2, 2, "lost" if lost else "intact")
    assert 0 < found.seconds <= found.every_partition_s < 600  # nobody waited for `away_s`
