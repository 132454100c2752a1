"""Bench of two commands that read a whole topic, `ratchet verify` and `ratchet survey`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.kafka import create
from bench.load import Load, fill
from bench.measure import END_WITHIN_S, GroupPosition, RunningProcess
from bench.sending import run_module
from bench.spread import spread
from bench.subjects import SUBJECTS, Task
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import BenchFailed

INPUT, OUTPUT, GROUP = "verified.in", "verified.out", "verified"
KINDS: Final = ("columns", "independent")
COMMIT_MS: Final = 100


def verifying(load: Load, rounds: int, say: Callable[[str], None], kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """Let a worker deduplicate an input, and measure `ratchet verify` of each kind in turn.

    There are `rounds` rounds, after one that does not count.

    Raises:
        BenchFailed: a command fails, or does not find everything right.
    """
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with (
        TemporaryDirectory(prefix="ratchet-bench-kafka-") as folder,
        TemporaryDirectory(prefix="ratchet-bench-") as own,
        EmbeddedBroker(Path(folder)) as broker,
    ):
        fresh = fill(broker.bootstrap, INPUT, load).fresh
        config = _judged(broker.bootstrap, load, own)
        for number in range(rounds + 1):
            for kind in kinds:
                began = time.monotonic()
                told = json.loads(run_module("bench.peers.verify_once", config, kind))
                command_s = time.monotonic() - began
                partitions = load.partitions if kind == "columns" else 0
                if (told["proven"], told["delivered"], told["as_columns"]) != (True, fresh, partitions):
                    raise BenchFailed(f"verify ({kind}) did not find the {fresh} records in the topic: {told}")
                run = {
                    "records_per_s": round(load.records / told["seconds"]),
                    "cpu_s": round(told["cpu_s"] / load.records * 1_000_000, 3),
                    "seconds": round(told["seconds"], 3),
                    "command_s": round(command_s, 3),
                    "peak_mb": told["peak_mb"],
                }
                if number:
                    runs[kind].append(run)
                    say(json.dumps({"kind": kind, **run}))
    return {kind: {name: spread((run[name] for run in found), 3) for name in found[0]} for kind, found in runs.items()}


def _judged(bootstrap: str, load: Load, folder: str) -> Path:
    """Let a worker deduplicate the whole input, and return the worker's settings file."""
    create(bootstrap, OUTPUT, partitions=load.partitions)
    reached = GroupPosition(bootstrap, INPUT, GROUP, load.partitions)
    subject = SUBJECTS["ratchet"]
    running = RunningProcess(
        subject.command(Task(bootstrap, INPUT, OUTPUT, GROUP, folder, COMMIT_MS, load.partitions)), subject.started
    )
    try:
        running.wait_until_read(reached, END_WITHIN_S)
        running.stop()
    except BaseException:
        running.kill()
        raise
    finally:
        reached.close()
    return Path(folder) / "ratchet.toml"


TOPIC = "survey"


def survey(load: Load, rounds: int, say: Callable[[str], None]) -> dict[str, object]:
    """Measure `ratchet survey` and a plain client in turn, which read the same input.

    There are `rounds` rounds, after one that does not count.

    Raises:
        BenchFailed: a reader fails, or counts wrongly.
    """
    rates: dict[str, list[float]] = {"survey": [], "bare": []}
    with TemporaryDirectory(prefix="ratchet-bench-kafka-") as folder, EmbeddedBroker(Path(folder)) as broker:
        truth = fill(broker.bootstrap, TOPIC, load)
        for number in range(rounds + 1):
            told = json.loads(run_module("kafka_ratchet", "survey", TOPIC, "--bootstrap", broker.bootstrap, "--json"))
            _check(told, load, load.records - truth.fresh)
            count, seconds = run_module("bench.peers.consume", broker.bootstrap, TOPIC).split()
            if int(count) != load.records:
                raise BenchFailed(f"the plain client read {count} of {load.records} records")
            if number:
                rates["survey"].append(told["records"] / told["seconds"])
                rates["bare"].append(int(count) / float(seconds))
                say(json.dumps({name: round(each[-1]) for name, each in rates.items()}))
    ratios = [ours / bare for ours, bare in zip(*rates.values(), strict=True)]
    candidates = [f"{each['identity']} {each['sequence'] or ''}".strip() for each in told["identities"]]
    return {
        **{name: spread(each, 0) for name, each in rates.items()},
        "ratio_to_bare": spread(ratios),
        "candidates": candidates,
    }


def _check(told: dict[str, object], load: Load, duplicates: int) -> None:
    found = told["identities"]
    assert isinstance(found, list)
    [own] = [each for each in found if each["identity"] == "producer"]
    if (told["records"], own["duplicates"]) != (load.records, duplicates) or own["one_of"] != 1:
        raise BenchFailed(
            f"the survey counted {own['duplicates']} duplicates of {told['records']} records; there are {duplicates} "
            f"of {load.records}"
        )
