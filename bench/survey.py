"""`ratchet survey`: how fast it reads next to a bare client that does nothing with the records, and what it counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.load import Load, fill
from bench.sending import run_module
from bench.spread import spread
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import BenchFailed

TOPIC = "survey"


def survey(load: Load, rounds: int, say: Callable[[str], None]) -> dict[str, object]:
    """Read one input by each in turn, `rounds` times, after one round that does not count.

    Raises:
        BenchFailed: one of them fails, or counts what is not so.
    """
    rates: dict[str, list[float]] = {"survey": [], "bare": []}
    with TemporaryDirectory(prefix="ratchet-bench-kafka-") as folder, EmbeddedBroker(Path(folder)) as broker:
        truth = fill(broker.bootstrap, TOPIC, load)
        for number in range(rounds + 1):
            told = json.loads(run_module("kafka_ratchet", "survey", TOPIC, "--bootstrap", broker.bootstrap, "--json"))
            _check(told, load, load.records - truth.fresh)
            count, seconds = run_module("bench.peers.consume", broker.bootstrap, TOPIC).split()
            if int(count) != load.records:
                raise BenchFailed(f"the bare client read {count} records of {load.records}")
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
