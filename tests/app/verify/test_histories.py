"""Searches for histories that `ratchet verify` accuses though they are right, or calls right though they are not."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest

from kafka_ratchet.app import verify as proof
from kafka_ratchet.app.verify import ExitCode, verify
from kafka_ratchet.errors import StateFileRefused
from tests.app.verify.history import DAMAGES, DEAD, IN, OUT, History, MemoryReader, damage

QUICK, MANY = 100, 20_000


def told(history: History, state: Path | None = None) -> proof.Report:
    MemoryReader.history = history
    try:
        return verify(history.settings, state=state, independent=True)
    except StateFileRefused:  # it is of another rule or topic
        assert state is not None
        state.unlink()
        return verify(history.settings, state=state, independent=True)


def search(seeds: range, folder: Path) -> dict[str, int]:
    done: dict[str, int] = {}
    for seed in seeds:
        choose = random.Random(seed)
        history = History(choose)
        state = folder / f"state-{seed}"
        for _ in range(choose.randrange(4, 40)):
            history.step()
            if choose.random() < 0.05:
                assert told(history).counts == {}, (seed, history.steps)
                assert told(history, state).counts == {}, (seed, history.steps)
        waits = history.position < history.logs[IN].end
        report = told(history)
        assert report.counts == {}, (seed, history.steps)
        assert report.is_waiting is waits, (seed, history.steps)
        history.finish()
        for report in (told(history), told(copy.deepcopy(history), state)):
            why = (seed, history.steps, report.findings[:3], report.unproven())
            assert report.counts == {}, why
            assert report.exit_code() is ExitCode.PROVEN or (history.in_doubt and report.undecided), why
        for kind in DAMAGES:
            damaged = copy.deepcopy(history)
            if damage(damaged, kind, choose):
                done[kind] = done.get(kind, 0) + 1
                code = told(damaged).exit_code()
                in_doubt = history.in_doubt and code is ExitCode.NOT_ALL_PROVEN
                assert in_doubt or code is ExitCode.WRONG, (seed, kind, history.steps)
        retained = copy.deepcopy(history)
        for name in (IN, OUT, DEAD):
            log = retained.logs[name]
            log.begin = choose.randint(0, log.end)
            log.records = {offset: each for offset, each in log.records.items() if offset >= log.begin}
        report = told(retained)
        assert report.counts == {}, (seed, "retention", history.steps, report.findings[:3])
        done[""] = done.get("", 0) + 1
    return done


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "TopicReader", MemoryReader)


def test_verify_is_0_exactly_where_nothing_is_wrong(tmp_path: Path) -> None:
    done = search(range(QUICK), tmp_path)
    assert done[""] == QUICK
    assert set(done) == {"", *DAMAGES}


@pytest.mark.long
def test_verify_is_0_exactly_where_nothing_is_wrong_in_many_histories(tmp_path: Path) -> None:
    assert search(range(QUICK, QUICK + MANY), tmp_path)[""] == MANY
