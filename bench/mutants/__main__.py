"""Mutation testing: search for small changes of the code (mutants) that no test notices.

    python -m bench.mutants --part commit --seed 35 --number 200

A mutant changes one operator, constant, condition or statement, drawn by the seed. First, the tests of a part run once
over the unchanged code, and the lines are recorded that each test runs (`trials.py`). Then, for each mutant, the tests
run that run its line, the quickest first; no other test could notice it. One process collects the tests and starts the
broker; the tests of a mutant run in a fork of it. The files of the code stay unchanged. A fork crashes once its parent
has used Spark. So each fork of the part `stores` starts its own Spark or database. It first runs tests that need
neither, then the tests of the module's own test file, and begins no further test after `--seconds`.

A mutant is killed if a test fails that passes in a fork without the mutant. It survives if all tests pass, or if no
test runs its line. It is undecided if the process crashes, takes too long, or has no time for all tests, or if only
fixtures fail. If a file has functions that Numba compiles, its tests run with Numba switched off, because Numba's cache
would have the unchanged functions. Texts, log lines, errors and annotations are not changed, nor is code that Spark or
a command runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.mutants.drawing import PACKAGES, ROOT, Mutant, chosen, code_of, is_compiled
from bench.mutants.trials import KILLED, SURVIVED, UNDECIDED, Answer, Measured, Tests, Trial

SELECTED: Final = {"rule": ["--quick"], "commit": ["--quick"], "stores": ["--all", "-m", "not long"]}
"""Pytest options that select the tests of a part. `--all` adds the tests of MySQL, and more of other stores."""
OUTCOMES: Final = (KILLED, SURVIVED, UNDECIDED)
APART: Final = ("stores",)
"""Parts with servers of their own for each trial."""
PRELOADED: Final = ("numba", "confluent_kafka", "aiokafka", "faust", "pyarrow", "pytest", "rocksdict")


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seed", type=int, default=35)
    asked.add_argument("--number", type=int, default=200, help="of mutants, a third of them in each part")
    asked.add_argument("--part", choices=PACKAGES, action="append")
    asked.add_argument("--minutes", type=float, default=60.0, help="of each part and kind of kernels")
    asked.add_argument("--only", help="mutants of files with this in their path")
    asked.add_argument("--tests", action="append", help="instead of all tests of the part")
    asked.add_argument("--without", action="append", default=[], help="fixture, such as spark; tests without it")
    asked.add_argument("--default", action="store_true", help="the default tests, those with a broker too")
    asked.add_argument("--seconds", type=float, default=60.0, help="of a mutant of `stores`, to begin tests in")
    asked.add_argument("--measured", action="store_true", help="use the lines that the last run recorded")
    asked.add_argument("--again", action="store_true", help="only mutants that the last run has not killed")
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
    results = list[str]()
    for part, plain in sorted({(each.part, is_compiled(each.file)) for each in drawn}):
        tests = _tests(part, arguments, plain=plain)
        measured = tests.recorded(arguments.folder) if arguments.measured else tests.measure(arguments.folder)
        print(f"{tests.name}: {len(measured.seconds)} tests pass in {measured.total_s:.0f} s", flush=True)
        mutants = [each for each in drawn if each.part == part and is_compiled(each.file) == plain]
        results += _tried(tests, measured, mutants, arguments)
    print(f"{len(results)} mutants: " + ", ".join(f"{results.count(each)} {each}" for each in OUTCOMES))
    return 0


def _tests(part: str, arguments: argparse.Namespace, *, plain: bool) -> Tests:
    selection = [] if arguments.default else SELECTED[part]
    apart = part in APART
    return Tests(
        f"{part}-plain" if plain else part,
        arguments.tests or [*PACKAGES[part][1]],
        ["--plain-kernels"] if plain else selection,
        [str(ROOT / folder) for folder in PACKAGES[part][0]],
        plain=plain,
        apart=apart,
        most_s=arguments.seconds if apart else math.inf,
        without=tuple(arguments.without),
    )


def _tried(tests: Tests, measured: Measured, mutants: list[Mutant], arguments: argparse.Namespace) -> list[str]:
    """Return the outcome of each mutant; print all but the killed ones, and keep all in the part's report."""
    report = arguments.folder / f"{tests.name}.ndjson"
    earlier = report.read_text().splitlines() if arguments.again and report.exists() else []
    rows = {_key(row): row for row in map(json.loads, earlier)}
    mutants = [each for each in mutants if rows.get(_key(asdict(each)), {}).get("outcome") != KILLED]
    trials = [
        Trial(str(ROOT / each.file), code_of(each), *measured.tests_of(str(ROOT / each.file), each.lines))
        for each in mutants
    ]
    began, answers = time.monotonic(), dict[int, Answer]()
    for answer in tests.try_all(trials, measured, arguments.folder, began + arguments.minutes * 60):
        answers[answer.number] = answer
        mutant, number = mutants[answer.number], len(trials[answer.number].tests)
        rows[_key(asdict(mutant))] = {**asdict(mutant), **asdict(answer), "tests": number}
        report.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
        if answer.outcome != KILLED:
            reason = answer.reason or f"{number or 'no'} tests run the line"
            print(f"{answer.outcome}: {mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after} ({reason})")
            sys.stdout.flush()
    print(f"{tests.name}: {len(answers)} of {len(mutants)} tried in {time.monotonic() - began:.0f} s", flush=True)
    return [answer.outcome for answer in answers.values()]


def _key(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("file", "line", "before", "after"))


if __name__ == "__main__":
    sys.exit(main())
