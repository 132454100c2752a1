"""Mutation testing: search for small changes of the code (mutants) that no test notices.

    python -m bench.mutants --part commit --seed 35 --number 200

A mutant changes one operator, constant, condition or statement, drawn by the seed. First, the tests of a part run once
over the unchanged code, and the lines are recorded that each test runs (`trials.py`). Then, for each mutant, the tests
run that run its line, the quickest first; no other test could notice it. One process collects the tests and starts
broker, Spark and databases; the tests of a mutant run in a fork of it. The files of the code stay unchanged.

A mutant is killed if a test fails or takes too long, and undecided if the process crashes; otherwise it survives. So a
mutant of a line that no test runs survives. If a file has functions that Numba compiles, its tests run apart, with
Numba switched off, because Numba's cache would have the unchanged functions. Texts, log lines, errors and annotations
are not changed, nor is code that Spark runs in its own Python processes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.mutants.drawing import PACKAGES, ROOT, Mutant, chosen, code_of, is_compiled
from bench.mutants.trials import CRASHED, Measured, Tests, Trial

SELECTED: Final = {"rule": ["--quick"], "commit": ["--quick"], "stores": ["--all", "-m", "not long"]}
"""Pytest options that select the tests of a part. `--all` adds the tests of MySQL, and more of other stores."""
PRELOADED: Final = ("numba", "confluent_kafka", "aiokafka", "faust", "pyarrow", "pytest", "rocksdict")


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seed", type=int, default=35)
    asked.add_argument("--number", type=int, default=200, help="of mutants, a third of them in each part")
    asked.add_argument("--part", choices=PACKAGES, action="append")
    asked.add_argument("--minutes", type=float, default=60.0, help="of each part and kind of kernels")
    asked.add_argument("--only", help="mutants of files with this in their path")
    asked.add_argument("--tests", action="append", help="instead of all tests of the part")
    asked.add_argument("--default", action="store_true", help="the default tests, those with a broker too")
    asked.add_argument("--measured", action="store_true", help="use the lines that the last run recorded")
    asked.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants")
    arguments = asked.parse_args()
    os.chdir(ROOT)
    for name in PRELOADED:
        __import__(name)
    parts = arguments.part or [*PACKAGES]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    share = -(-arguments.number // len(parts))
    drawn = [mutant for part in parts for mutant in chosen(part, arguments.seed, share)]
    if arguments.only:
        drawn = [mutant for mutant in drawn if arguments.only in mutant.file]
    results = list[bool | None]()
    for part, plain in sorted({(each.part, is_compiled(each.file)) for each in drawn}):
        name = f"{part}-plain" if plain else part
        folders = [str(ROOT / folder) for folder in PACKAGES[part][0]]
        tests = Tests(
            name,
            arguments.tests or [*PACKAGES[part][1]],
            ["--plain-kernels"] if plain else SELECTED[part],
            folders,
            plain=plain,
        )
        measured = tests.recorded(arguments.folder) if arguments.measured else tests.measure(arguments.folder)
        print(f"{name}: {len(measured.seconds)} tests pass in {measured.total_s:.0f} s", flush=True)
        mutants = [each for each in drawn if each.part == part and is_compiled(each.file) == plain]
        results += _tried(tests, measured, mutants, arguments.folder, arguments.minutes * 60)
    killed, survived, undecided = map(results.count, (False, True, None))
    print(f"{len(results)} mutants: {killed} killed, {survived} survived, {undecided} undecided")
    return 0


def _tried(tests: Tests, measured: Measured, mutants: list[Mutant], folder: Path, limit_s: float) -> list[bool | None]:
    """Return for each mutant True if it survived, None if undecided; print all but the killed ones."""
    trials = [
        Trial(str(ROOT / each.file), code_of(each), *measured.tests_of(str(ROOT / each.file), each.lines))
        for each in mutants
    ]
    results, began = list[bool | None](), time.monotonic()
    with (folder / f"{tests.name}.ndjson").open("w") as report:
        for number, lives, seconds, failed in tests.try_all(trials, measured, folder, began + limit_s):
            mutant = mutants[number]
            results.append(None if failed.startswith(CRASHED) else lives)
            row = {
                **asdict(mutant),
                "survived": lives,
                "seconds": round(seconds, 1),
                "tests": len(trials[number].tests),
            }
            report.write(json.dumps({**row, "failed": failed}) + "\n")
            report.flush()
            if results[-1] is None:
                print(
                    f"undecided: {mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}: {failed}", flush=True
                )
            elif lives:
                unread = "" if trials[number].tests else " (no test runs the line)"
                print(f"survived: {mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}{unread}", flush=True)
    killed = results.count(False)
    print(f"{tests.name}: {killed} of {len(results)} killed in {time.monotonic() - began:.0f} s", flush=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
