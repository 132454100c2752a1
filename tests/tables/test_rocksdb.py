import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from kafka_ratchet.errors import StateError, StateFolderInUse, StoreDamaged
from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.store import Store
from kafka_ratchet.tables.totals import Progress
from tests.tables.fetched_records import Sent, fetched, judged

WRITER = """
import sys
from pathlib import Path
from kafka_ratchet.tables.store import Store
from kafka_ratchet.tables.totals import PROGRESS, Progress

store = Store(Path(sys.argv[1]))
number, _, _ = store.stands_for
while True:
    number += 1
    value = number.to_bytes(8, "big")
    entries = [(b"i%d" % n, value) for n in range(200)]
    store.write([*entries, (PROGRESS, Progress(number, number, number, number).pack())], number, 1)
    if number % 10 == 0:
        print(number, flush=True)
"""


def value(number: int) -> bytes:
    return number.to_bytes(8, "big")


@contextmanager
def writer(path: Path) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Another process that writes without end."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
        finally:
            process.kill()


def test_entries_and_position_agree_after_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "0"
    written = 0
    for _ in range(3):
        with writer(path) as (process, lines):
            target = written + 300
            while written < target:
                written = int(lines.readline())
            process.send_signal(signal.SIGKILL)
            process.wait()
            written = int(([*lines] or [str(written)])[-1])
        store = Store(path)
        position, _, _ = store.stands_for
        assert position >= written
        assert list(store.entries()) == sorted((b"i%d" % n, value(position)) for n in range(200))
        assert store.progress == Progress(position, position, position, position)
        store.close()


def test_another_process_has_the_folder(tmp_path: Path) -> None:
    with writer(tmp_path / "0") as (_, lines):
        assert lines.readline() == "10\n"
        with pytest.raises(StateFolderInUse, match="another process has this store open") as raised:
            Store(tmp_path / "0")
        assert str(tmp_path / "0") in str(raised.value)


def test_the_folder_is_free_once_the_store_is_closed(tmp_path: Path) -> None:
    store = Store(tmp_path / "0")
    store.write([], 1, 0)
    with pytest.raises(StateFolderInUse):
        Store(tmp_path / "0")
    store.close()
    Store(tmp_path / "0").close()


COUNT = 20_000


@pytest.fixture(scope="module")
def flushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a file of entries, and a few newer entries in its log only."""
    path = tmp_path_factory.mktemp("flushed") / "block-7"  # "lock" in the name must not look like a lock
    store = Store(path)
    store.write([(b"i%06d" % n, value(1)) for n in range(COUNT)], 1, COUNT)
    store._db.flush()
    for position in range(2, 50):
        store.write([(b"i%06d" % n, value(position)) for n in range(20)], position, COUNT)
    # As kill -9 leaves it: closing would flush the log.
    shutil.copytree(path, path.with_name("as-killed"))
    store.close()
    return path.with_name("as-killed")


def truncate(pattern: str, size: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        os.truncate(only(folder, pattern), size)

    return damage


def flip(pattern: str, part: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = only(folder, pattern)
        content = bytearray(file.read_bytes())
        content[int(len(content) * part)] ^= 0xFF
        file.write_bytes(content)

    return damage


def remove(pattern: str) -> Callable[[Path], None]:
    return lambda folder: only(folder, pattern).unlink()


def only(folder: Path, pattern: str) -> Path:
    (file,) = folder.glob(pattern)
    return file


def read(folder: Path) -> None:
    store = Store(folder)
    try:
        assert list(store.entries())
    finally:
        store.close()


def opened(folder: Path, room: int = sys.maxsize) -> SequencePartition:
    state = SequencePartition(folder, "changelog", 0, Identity.KEY, 1 << 20, lambda: room)
    state.open()
    return state


def test_the_store_before_it_is_damaged(flushed: Path, tmp_path: Path) -> None:
    state = opened(Path(shutil.copytree(flushed, tmp_path / "block-8")))
    assert (len(state), state.position) == (COUNT, 49)
    assert (state.last(b"000000").persisted, state.last(b"000020").persisted) == (49, 1)
    state.close()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(truncate("*.sst", 1_000), id="cut table"),
        pytest.param(truncate("*.sst", 0), id="empty table"),
        pytest.param(remove("*.sst"), id="no table"),
        *(pytest.param(flip("*.sst", part / 10), id=f"flipped table {part}") for part in range(1, 9)),
        pytest.param(truncate("MANIFEST-*", 5), id="cut manifest"),
        pytest.param(truncate("MANIFEST-*", 0), id="empty manifest"),
        pytest.param(flip("MANIFEST-*", 0.1), id="flipped manifest"),
        pytest.param(remove("MANIFEST-*"), id="no manifest"),
        pytest.param(truncate("CURRENT", 5), id="cut current"),
        pytest.param(truncate("CURRENT", 0), id="empty current"),
        pytest.param(remove("CURRENT"), id="no current"),
    ],
)
def test_a_damaged_store_is_never_trusted(flushed: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = Path(shutil.copytree(flushed, tmp_path / "block-8"))
    damage(folder)
    with pytest.raises(StoreDamaged, match="RocksDB cannot read the store") as raised:
        read(folder)
    assert str(raised.value).startswith(f"{folder}: ")
    for _ in range(2):
        state = opened(folder)  # begun anew, for the changelog to fill
        assert (len(state), state.position) == (0, 0)
        state.close()


NAMES = [b"%06d" % n for n in range(COUNT)]
RIGHT = [49] * 20 + [1] * (COUNT - 20)


@pytest.mark.parametrize("part", range(1, 10))
def test_a_damaged_store_is_never_trusted_when_it_is_asked_about_each_identity(
    flushed: Path, tmp_path: Path, part: int
) -> None:
    folder = Path(shutil.copytree(flushed, tmp_path / "0"))
    flip("*.sst", part / 10)(folder)
    state = opened(folder, room=0)
    if part == 9:  # the filter, which RocksDB can do without
        assert [state.last(name).persisted for name in NAMES] == RIGHT
    else:
        again = [Sent(key=name, headers=(("ratchet-sequence", b"1"),)) for name in NAMES]
        with pytest.raises(StoreDamaged, match="RocksDB cannot read the store"):
            judged(state, fetched(again), reader_for(SequenceSource.parse("header:ratchet-sequence")))
        state.open()
        assert (len(state), state.position) == (0, 0)
    state.close()


@pytest.mark.parametrize("part", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("kind", ["cut", "flipped"])
def test_a_damaged_log_leaves_an_exact_prefix(flushed: Path, tmp_path: Path, kind: str, part: float) -> None:
    folder = Path(shutil.copytree(flushed, tmp_path / "0"))
    (log,) = (file for file in folder.glob("*.log") if file.stat().st_size)
    damage = truncate(log.name, int(log.stat().st_size * part)) if kind == "cut" else flip(log.name, part)
    damage(folder)
    state = opened(folder)
    assert 1 <= state.position < 49
    assert {state.last(b"%06d" % n).persisted for n in range(20)} == {state.position}
    assert len(state) == COUNT
    state.close()


def test_a_process_killed_while_it_made_the_database_leaves_no_damage(tmp_path: Path) -> None:
    for name in ("LOCK", "LOG", "IDENTITY", "MANIFEST-000001"):
        (tmp_path / name).write_bytes(b"")
    state = opened(tmp_path)
    assert (len(state), state.position) == (0, 0)
    state.close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "0"):
        with pytest.raises(StateError, match="Choose another state_folder") as raised:
            Store(path)
        assert str(path) in str(raised.value)


def test_who_has_seen_no_files_does_not_write_into_those_that_another_has_made_since(tmp_path: Path) -> None:
    late, first = Store(tmp_path / "0"), Store(tmp_path / "0")
    first.make()
    with pytest.raises(StateFolderInUse, match="another process has this store open"):
        late.make()
    first.write([(b"ia", value(7))], 5, 1)
    first.close()
    for _ in range(2):
        with pytest.raises(StateFolderInUse, match="another process has created this store in the"):
            late.write([(b"ib", value(1))], 3, 1)
    late.close()
    again = Store(tmp_path / "0")
    assert list(again.entries()) == [(b"ia", value(7))]
    again.close()
