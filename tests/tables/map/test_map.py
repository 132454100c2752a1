"""Size of the map: its slots after packing, and the memory that it will soon need."""

from __future__ import annotations

import pytest

from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.tables.map.slots import FIRST_SLOTS
from tests.tables.map.test_written import judged


def filled(count: int) -> LastSequences:
    table = LastSequences()
    judged(table, [b"user-%d" % n for n in range(count)], [1] * count)
    table.commit()
    return table


@pytest.mark.parametrize(("count", "slots"), [(10, FIRST_SLOTS), (6_000, 1 << 14)])
def test_packing_leaves_the_fewest_slots(count: int, slots: int) -> None:
    table = filled(count)
    table.slots.pack()
    assert len(table.slots.hashes) == slots
    assert len(table) == count


def test_a_nearly_full_map_outgrows_less_than_three_times_its_size() -> None:
    roomy, full = filled(2_000), filled(2_500)
    assert len(roomy.slots.hashes) == len(full.slots.hashes) == FIRST_SLOTS
    for table, is_full in ((roomy, False), (full, True)):
        assert table.outgrows(table.size - 1)
        assert table.outgrows(table.size) is is_full
        assert table.outgrows(table.size * 3 - 1) is is_full
        assert not table.outgrows(table.size * 3)
