"""A model of the whole commit path: whatever happens in whatever order, what is committed is what the oracle says.

Real are the lane, the transactional producer, the tables, RocksDB and the deduplicating agent; Kafka is in memory
(memory_kafka.py). Hypothesis draws what arrives and who works (modelled_runs.py), what fails and who dies
(modelled_failures.py), and after every step (modelled_commit_path.py) the committed output, dead letters, position,
changelog and totals must be those of ten obvious lines (modelled_oracle.py). Where the stream has bounds, who goes
is the worker's choice; what it writes down of that must be allowed, also by what waits in the input, and a duplicate
passes after that and never before.

Half of the runs have agents with tables of their own (modelled_program.py): outputs, dead letters and the tables'
entries must be those of a plain reading of their program, and so must what the last worker has in its tables. Broken on
purpose, the model has found each of these within a hundred runs: tables not rolled back; entries left out of the
transaction, all of them, nulls, or all but two; a store written before the commit; a store or a recovery without the
tables, or whose position is ahead of them; a run that goes on after a rollback, may write then, or shares its outputs
and its place in the batch with the next one; a failed record whose changes or outputs stay; outputs of the last batch
that come again.

And half of them have a reorder window, perhaps with conflicts and dense, and other ones after the next start
(modelled_windows.py): verdicts, entries in the changelog and what is missing must be what a set of the sequences that
were seen says.

In a search of its own (modelled_decisions.py) another client commits in the group, deduplication is off for a while,
and an operator moves the partition, forgets, and ends what Kafka has left open. As many records must pass once more as
were counted before.

A failure prints the steps that lead to it, shortened, and a `@reproduce_failure` line; the whole run is repeated with
`./ratchet test tests/transport/test_commit_path.py --hypothesis-seed=N`, whose N stands above it. 20,000 runs:
`./ratchet test -m long tests/transport/test_commit_path.py`.
"""

from __future__ import annotations

import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from tests.transport.modelled_commit_path import CHECKS, EVICTED_IN_ALL, CommitPath
from tests.transport.modelled_decisions import FOREIGN_COMMIT, Decided
from tests.transport.modelled_runs import ANY_BOUNDS
from tests.transport.modelled_taken_away import INPUTS_END, TAKEN_AWAY, TakenAway
from tests.transport.modelled_worker import CHANGELOG, INPUT

MATRIX = pytest.mark.matrix
OFTEN = (INPUT, CHANGELOG, INPUTS_END)
"""Parts that the default tests take away."""


class Unbounded(CommitPath):
    bounds_of_a_run = st.none()


class Displacing(CommitPath):
    bounds_of_a_run = st.sampled_from([bounds for bounds in ANY_BOUNDS if not bounds.inactive_s])


class Forgetting(CommitPath):
    bounds_of_a_run = st.sampled_from([bounds for bounds in ANY_BOUNDS if bounds.inactive_s])


def search(machine: type[CommitPath], runs: int, attempt: int) -> None:
    """Run the machine that often.

    Where Hypothesis always draws the same examples, as in CI, the number of the attempt chooses which ones.
    """
    chosen = settings(max_examples=runs, **CHECKS)
    run_state_machine_as_test(seed(attempt)(machine) if chosen.derandomize else machine, settings=chosen)


@pytest.mark.timeout(900)  # three runs a second where nothing else runs; beside other tests far fewer
@pytest.mark.parametrize(
    ("machine", "runs", "evicts"),
    [
        (Unbounded, 20, None),
        (Displacing, 12, "displaced"),
        (Forgetting, 12, "inactive"),
        (Decided, 10, FOREIGN_COMMIT),
    ],
)
def test_the_commit_path(machine: type[CommitPath], runs: int, evicts: str | None) -> None:
    EVICTED_IN_ALL.clear()
    search(machine, runs, 20)
    for attempt in range(20):
        if evicts is None or EVICTED_IN_ALL[evicts]:
            return
        search(machine, 10, attempt)
    pytest.fail(f"there was never any of this: {evicts}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", [pytest.param(what, marks=() if what in OFTEN else MATRIX) for what in TAKEN_AWAY])
def test_what_is_taken_away(what: str) -> None:
    machine = type("TakenAwayNow", (TakenAway,), {"kinds": st.just(what)})
    EVICTED_IN_ALL.clear()
    for attempt in range(20):  # ten runs need not come to it
        search(machine, 10, attempt)
        if EVICTED_IN_ALL[what]:
            return
    pytest.fail(f"{what} was never taken away")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(20))  # so that one sees how far it is, and a failure does not end the rest
def test_the_commit_path_at_length(part: int) -> None:
    machine = Decided if part % 4 == 3 else CommitPath
    search(machine, 1_000, part)
