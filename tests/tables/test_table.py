from collections.abc import Callable, Iterator
from pathlib import Path

import faust
import pytest
from faust.types import TP

from kafka_ratchet.errors import StateError
from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.tables.table import Sequences, SequenceTable
from tests.tables.fetched_records import Sent, fetched, judged

CHANGELOG = "ratchet-events-changelog"


def record(key: bytes, sequence: int) -> Sent:
    return Sent(key=key, headers=(("ratchet-sequence", b"%d" % sequence),))


READ = reader_for(SequenceSource.parse("header:ratchet-sequence"))


@pytest.fixture
def sequences(tmp_path: Path) -> Iterator[Sequences]:
    """Two partitions: b"a" is persisted at 5 and 7, b"b" is only pushed."""
    made = Sequences(tmp_path, CHANGELOG, Identity.KEY, 4096)
    for number, last in ((0, 5), (3, 7)):
        made.partition(number).open()
        judged(made, fetched([record(b"a", last)], partition=number), READ)
        made.partition(number).changes(1)
        made.partition(number).committed(2)
    judged(made, fetched([record(b"a", 9), record(b"b", 1)], 1, partition=3), READ)
    yield made
    for partition in made.partitions.values():
        partition.close()


@pytest.fixture
async def table(sequences: Sequences) -> SequenceTable:
    app = faust.App("tables-test", broker="kafka://127.0.0.1:1", autodiscover=False)
    return SequenceTable(app, name="events", sequences=sequences, partitions=4)


def test_a_partition_is_made_once_and_keeps_its_store_in_its_own_folder(sequences: Sequences, tmp_path: Path) -> None:
    assert sequences.partition(3) is sequences.partition(3)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["0", "3"]
    assert sequences.partition(3).changelog == CHANGELOG


def test_a_batch_is_judged_by_its_own_partition(sequences: Sequences) -> None:
    verdicts, _ = judged(sequences, fetched([record(b"a", 6)], 1, partition=0), READ)
    assert verdicts.tolist() == [0]
    verdicts, _ = judged(sequences, fetched([record(b"a", 6)], 1, partition=3), READ)
    assert verdicts.tolist() == [1]


def test_last_sequences_are_told_by_partition(sequences: Sequences) -> None:
    assert sequences.last(b"a") == {0: (5, 5), 3: (7, 9)}
    assert sequences.last(b"b") == {3: (-1, 1)}
    assert sequences.last(b"nobody") == {}


async def test_faust_sees_what_is_persisted(table: SequenceTable) -> None:
    assert table[b"a"] == 7
    assert b"a" in table
    assert b"b" not in table
    assert b"nobody" not in table
    assert table.get(b"b") is None
    assert len(table) == 2
    with pytest.raises(KeyError):
        table[b"b"]


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda table: table.__setitem__(b"a", 8), id="set"),
        pytest.param(lambda table: table.__delitem__(b"a"), id="delete"),
        pytest.param(lambda table: table.update({b"a": 8}), id="update"),
        pytest.param(lambda table: table.raw_update({b"a": 8}), id="raw update"),
        pytest.param(lambda table: table.setdefault(b"new", 8), id="setdefault"),
        pytest.param(lambda table: table.pop(b"a"), id="pop"),
        pytest.param(lambda table: table.popitem(), id="popitem"),
        pytest.param(lambda table: table.clear(), id="clear"),
        pytest.param(lambda table: table.send_changelog(0, b"a", 8), id="changelog"),
        pytest.param(lambda table: table.data.clear(), id="clear the store"),
        pytest.param(lambda table: table.data.__setitem__(b"a", 8), id="set in the store"),
        pytest.param(lambda table: table.data.__delitem__(b"a"), id="delete in the store"),
        pytest.param(lambda table: table.data.restore_backup(TP(CHANGELOG, 0)), id="restore"),
    ],
)
async def test_only_lanes_write(
    table: SequenceTable, write: Callable[[SequenceTable], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(table.changelog_topic, "send_soon", lambda *args, **kwargs: sent.append((args, kwargs)))
    with pytest.raises(StateError):
        write(table)
    assert sent == []
    assert table.sequences.last(b"a") == {0: (5, 5), 3: (7, 9)}


@pytest.mark.parametrize("all_of", [list, lambda t: list(t.keys()), lambda t: list(t.items()), lambda t: [*t.values()]])
async def test_identities_are_looked_up_not_listed(table: SequenceTable, all_of: Callable[[object], object]) -> None:
    with pytest.raises(StateError, match="cannot be listed; look up one identity"):
        all_of(table)


async def test_faust_has_nothing_to_recover(table: SequenceTable) -> None:
    partition = TP(CHANGELOG, 0)
    assert table.changelog_topic.get_topic_name() == CHANGELOG
    assert table.lane_owned
    assert table.persisted_offset(partition) is None
    assert await table.need_active_standby_for(partition) is False
    table.data.set_persisted_offset(partition, 99)
    table.apply_changelog_batch([])
    table.reset_state()
    with pytest.raises(StateError, match="the changelog is its backup"):
        await table.data.backup_partition(partition)
    assert table[b"a"] == 7
