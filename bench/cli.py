"""`ratchet bench`: measures Ratchet's programs next to other programs on the same machine."""

from __future__ import annotations

import json as json_text
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Json

if TYPE_CHECKING:
    from bench.load import Load
    from bench.measure import Measured

bench = typer.Typer(no_args_is_help=True)

Records = Annotated[int, typer.Option(help="Records of the input. A fifth are duplicates, for totals none.")]
Keys = Annotated[int, typer.Option(help="Number of identities; for totals: of users.")]
CommitMs = Annotated[int, typer.Option(help="Milliseconds between commits.")]
Compression = Annotated[str, typer.Option(help="Compression of the input: none, gzip, snappy, lz4 or zstd.")]
Duplicates = Annotated[str, typer.Option(help="Duplicates: spread, or resent in a row.")]
Partitions = Annotated[int, typer.Option(help="Partitions of input and output.")]
ValueBytes = Annotated[int, typer.Option(help="Size of a value in bytes, at least 80.", min=80)]
BatchBytes = Annotated[int, typer.Option(help="Largest batch of the input, in bytes.")]
Rounds = Annotated[int, typer.Option(help="Runs of each subject.")]


@bench.callback()
def prepare() -> None:
    """Measure the worker next to other programs on the same machine."""
    # An installed worker has its bytecode, as a peer has its jar: to compile 230 modules takes 0.25 s at each start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@bench.command()
def run(
    subject: Annotated[str, typer.Argument(help="ratchet, kafka-streams, loop, floor, agent, ...")],
    records: Records = 2_000_000,
    keys: Keys = 10_000,
    commit_ms: CommitMs = 100,
    compression: Compression = "none",
    duplicates: Duplicates = "spread",
    partitions: Partitions = 4,
    value_bytes: ValueBytes = 200,
    batch_bytes: BatchBytes = 1_000_000,
    rounds: Rounds = 1,
    warm_up: Annotated[bool, typer.Option(help="Run it once before, without counting.")] = True,
) -> None:
    """Run one program on a preloaded input; one line of JSON a run. Exit code 1 if an output is wrong."""
    load = _load(records, keys, compression, duplicates, partitions, value_bytes, batch_bytes)
    _compared([subject], load, commit_ms, rounds, json=True, runs_only=True, warm_up=warm_up)


@bench.command()
def compare(
    subjects: Annotated[list[str], typer.Argument(help="The first is compared with each of the others.")],
    records: Records = 2_000_000,
    keys: Keys = 10_000,
    commit_ms: CommitMs = 100,
    compression: Compression = "none",
    duplicates: Duplicates = "spread",
    partitions: Partitions = 4,
    value_bytes: ValueBytes = 200,
    batch_bytes: BatchBytes = 1_000_000,
    rounds: Rounds = 3,
    json: Json = False,
) -> None:
    """Run programs in turn on one input and print their ratios, in Markdown. Exit code 1 if an output is wrong."""
    load = _load(records, keys, compression, duplicates, partitions, value_bytes, batch_bytes)
    _compared(subjects, load, commit_ms, rounds, json=json, runs_only=False)


@bench.command()
def latency(
    subjects: Annotated[list[str], typer.Argument(help="Programs, run in turn.")],
    rate: Annotated[int, typer.Option(help="Records a second.")] = 10_000,
    seconds: Annotated[float, typer.Option(help="Seconds of each run, after the warm-up.")] = 30.0,
    warm_up: Annotated[float, typer.Option(help="Seconds before anything counts.")] = 15.0,
    commit_ms: CommitMs = 100,
    rounds: Rounds = 3,
) -> None:
    """Measure a program's latency at a steady rate; one line of JSON a run, in milliseconds."""
    from bench.compare import stage
    from bench.latency import latency as measured
    from bench.load import Load

    with stage(Load(records=1, keys=1)) as here:
        # Not counted: a new broker answers late.
        measured(subjects[0], here.broker.bootstrap, rate, seconds, warm_up, commit_ms)
        for _ in range(rounds):
            for subject in subjects:
                one = measured(subject, here.broker.bootstrap, rate, seconds, warm_up, commit_ms)
                print(json_text.dumps(one.as_dict()), flush=True)


@bench.command()
def recovery(
    subjects: Annotated[
        list[str] | None, typer.Argument(help="Programs, run in turn. Default: ratchet kafka-streams.")
    ] = None,
    keys: Keys = 1_000_000,
    records: Records = 2_000_000,
    commit_ms: CommitMs = 100,
    lost: Annotated[bool, typer.Option(help="Remove the local state while the subject is away.")] = False,
    away: Annotated[float, typer.Option(help="Seconds between the kill and the new start.")] = 15.0,
    processes: Annotated[
        int,
        typer.Option(
            min=1, max=4, help="Processes of ratchet; above 1, one of them is killed, and its parent replaces it."
        ),
    ] = 1,
    rounds: Rounds = 1,
) -> None:
    """Measure the seconds from a program's restart after `kill -9` to its first new output."""
    from bench.compare import stage
    from bench.load import Load
    from bench.recovery import ratios
    from bench.recovery import recovery as measured

    load, told = Load(records, keys), []
    with stage(load) as here:
        for _ in range(rounds):
            for subject in subjects or ["ratchet", "kafka-streams"]:
                one = measured(
                    subject,
                    here.broker.bootstrap,
                    here.topic,
                    load,
                    commit_ms,
                    lost=lost,
                    away_s=away,
                    processes=processes,
                )
                told.append(one)
                print(json_text.dumps(one.as_dict()), flush=True)
    if compared := ratios(told):
        print(json_text.dumps(compared), flush=True)


@bench.command()
def producer(
    records: Annotated[int, typer.Option(help="Records that each producer sends.")] = 1_000_000,
    value_bytes: Annotated[int, typer.Option(help="Bytes of each value.", min=1)] = 200,
    rounds: Rounds = 4,
) -> None:
    """Measure the producer next to a bare client; one line of JSON a run, and one with the ratios."""
    from bench.sending import sending

    print(json_text.dumps(sending(records, value_bytes, rounds, _say).as_dict()), flush=True)


@bench.command()
def publish(
    records: Annotated[int, typer.Option(help="Lines of the file.")] = 1_000_000,
    line_bytes: Annotated[int, typer.Option(help="Bytes of each line, about.", min=60)] = 200,
    rounds: Rounds = 4,
) -> None:
    """Measure publishing an NDJSON file next to a bare client over its lines."""
    from bench.publishing import publishing

    print(json_text.dumps(publishing(records, line_bytes, rounds, _say)), flush=True)


@bench.command()
def reader(
    records: Annotated[int, typer.Option(help="Records of the topic.")] = 400_000,
    value_bytes: ValueBytes = 200,
    rounds: Rounds = 4,
) -> None:
    """Measure Ratchet's reader into PostgreSQL next to a loop written by hand."""
    from bench.reading import reading

    print(json_text.dumps(reading(records, value_bytes, rounds, _say)), flush=True)


@bench.command()
def restart(
    sizes: Annotated[list[int] | None, typer.Option("--size", help="Records published before.")] = None,
    rounds: Rounds = 5,
) -> None:
    """Measure the seconds from the start of `ratchet publish` to its first new record, by number of earlier records."""
    from bench.sending import restart as measured

    print(json_text.dumps(measured(sizes or [1_000_000, 10_000_000], rounds, _say)), flush=True)


@bench.command()
def survey(
    records: Records = 2_000_000,
    keys: Keys = 10_000,
    compression: Compression = "none",
    partitions: Partitions = 4,
    value_bytes: ValueBytes = 200,
    rounds: Rounds = 3,
) -> None:
    """Measure `ratchet survey` next to a bare client that reads the topic and does nothing; one line of JSON."""
    from bench.read_commands import survey as measured

    load = _load(records, keys, compression, "spread", partitions, value_bytes, 1_000_000)
    print(json_text.dumps(measured(load, rounds, _say)), flush=True)


@bench.command()
def verify(
    kinds: Annotated[list[str] | None, typer.Argument(help="columns, independent; default: both.")] = None,
    records: Records = 2_000_000,
    keys: Keys = 10_000,
    compression: Compression = "none",
    partitions: Partitions = 4,
    value_bytes: ValueBytes = 200,
    rounds: Rounds = 3,
) -> None:
    """Measure `ratchet verify` over a worker's output; a line of JSON a run, and one with spreads."""
    from bench.read_commands import KINDS, verifying

    for kind in kinds or []:
        if kind not in KINDS:
            raise typer.BadParameter(f"no kind {kind!r} (there are: {', '.join(KINDS)})")
    load = _load(records, keys, compression, "spread", partitions, value_bytes, 1_000_000)
    told = verifying(load, rounds, lambda run: print(run, flush=True), tuple(kinds or KINDS))
    print(json_text.dumps(told), flush=True)


@bench.command()
def sink(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(
            help="delta, postgres, mysql (a MariaDB), duckdb, iceberg, usual, nothing; default: all that can run here."
        ),
    ] = None,
    records: Annotated[int, typer.Option(help="Records of the topic.")] = 2_000_000,
    value_bytes: Annotated[int, typer.Option(help="Bytes of each value, about.")] = 200,
    at_a_time: Annotated[int, typer.Option(help="Offsets per commit.")] = 250_000,
    rounds: Rounds = 3,
) -> None:
    """Measure the Spark job with each store, next to checkpoint and foreachBatch, and to a job that writes nothing."""
    from bench.results import OTHERS, RATCHET, results
    from faults.servers import can_run

    for kind in kinds or []:
        if kind not in (*RATCHET, *OTHERS):
            raise typer.BadParameter(f"no kind {kind!r} (there are: {', '.join((*RATCHET, *OTHERS))})")
    here = [kind for kind in RATCHET if can_run(kind)]
    chosen = kinds or [*here[:1], *OTHERS, *here[1:]]
    told = results(chosen, records, value_bytes, at_a_time, rounds, lambda run: _say(json_text.dumps(run.as_dict())))
    print(json_text.dumps(told), flush=True)


@bench.command("from-input")
def from_input(
    kinds: Annotated[
        list[str] | None, typer.Argument(help="ratchet, watermark, state; default: the first two.")
    ] = None,
    records: Records = 2_000_000,
    keys: Keys = 1_000_000,
    at_a_time: Annotated[int, typer.Option(help="Offsets per commit.")] = 500_000,
    memory: Annotated[
        bool, typer.Option(help="Instead: the driver's memory for a tenth of the keys and for all, on a small cluster.")
    ] = False,
    lose_checkpoint: Annotated[
        bool, typer.Option(help="Instead: run each, remove the files next to its table, run it again, and count rows.")
    ] = False,
    rounds: Rounds = 3,
) -> None:
    """Measure `ratchet sink --from-input` into Delta next to Spark's own ways; one line of JSON a run.

    The kind state (transformWithState in pandas) sends a request to the JVM for each identity. It did not finish
    200,000 records in nine minutes, so give it fewer.
    """
    from bench.judging import OURS, PEERS, QUICK_PEERS, driver_memory, judging, lost_checkpoint

    if memory:
        print(json_text.dumps(driver_memory(records, [max(1, keys // 10), keys], at_a_time, _say)), flush=True)
        return
    for kind in kinds or []:
        if kind not in (OURS, *PEERS):
            raise typer.BadParameter(f"no kind {kind!r} (there are: {', '.join((OURS, *PEERS))})")
    load = _load(records, keys, "none", "spread", 4, 200, 1_000_000)
    if lose_checkpoint:
        print(json_text.dumps(lost_checkpoint(kinds or [OURS, *QUICK_PEERS], load, at_a_time, _say)), flush=True)
        return
    print(json_text.dumps(judging(kinds or [OURS, *QUICK_PEERS], load, at_a_time, rounds, _say)), flush=True)


@bench.command()
def regress(
    rounds: Annotated[int, typer.Option(help="Runs of each case.", min=1)] = 2,
    record: Annotated[bool, typer.Option(help="Keep the result in bench/regress.json.")] = False,
    json: Json = False,
) -> None:
    """Compare the worker's ratios to the floor with those in the repository's record; takes two minutes.

    Exit code 1 if an output is wrong, not if something is slower.
    """
    from bench import regress as measuring

    def say(case: str, run: Measured) -> None:
        _say(json_text.dumps({"case": case, **run.as_dict()}))

    before = measuring.recorded()
    now, is_right = measuring.regress(rounds, say)
    if record and is_right:
        measuring.record(now)
    told = {"now": now, "recorded": before, "slower": measuring.slower(now, before), "verified": is_right}
    print(json_text.dumps(told) if json else measuring.as_markdown(now, before), flush=True)
    if not is_right:
        raise typer.Exit(1)


@bench.command()
def page(
    partitions: Annotated[int, typer.Option(help="Partitions of the stream.", min=8)] = 1_000,
    identities: Annotated[int, typer.Option(help="Identities of the stream.", min=1_000)] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="Requests of each page.", min=1)] = 7,
    watch: Annotated[float, typer.Option(help="Seconds of each turn of watching; 0: not measured.")] = 60.0,
    sink: Annotated[bool, typer.Option(help="Let a Spark job fill a result table before.")] = True,
) -> None:
    """Measure every page of `ratchet web` in ms, and the worker's CPU for an open page; one line of JSON."""
    from bench.page import page as measured

    print(json_text.dumps(measured(partitions, identities, rounds, watch, sink=sink, say=_say)), flush=True)


@bench.command()
def partitions(
    count: Annotated[int, typer.Option("--partitions", help="Partitions of the stream.", min=8)] = 1_000,
    busy: Annotated[int, typer.Option(help="Partitions with records.", min=1)] = 100,
    records: Records = 2_000_000,
    keys: Keys = 10_000,
    idle: Annotated[float, typer.Option(help="Seconds of watching the worker without records.")] = 60.0,
    rounds: Rounds = 1,
    json: Json = False,
) -> None:
    """Measure one worker with very many partitions next to one with 4: start, idle cost, throughput.

    It prints a line of JSON for each run, and one with the result at the end; with --json, only the last one. Exit code
    1 if an output is wrong.
    """
    from bench.partitions import ManyPartitionsRun
    from bench.partitions import partitions as measured

    def say(run: ManyPartitionsRun) -> None:
        if not json:
            print(json_text.dumps(run.as_dict()), flush=True)
        else:
            _say(json_text.dumps(run.as_dict()))

    if busy > count:
        raise typer.BadParameter("--busy is above --partitions. Give at most as many busy partitions as partitions")
    told = measured(count, busy, records, keys, idle, rounds, say)
    print(json_text.dumps(told), flush=True)
    if not told["verified"]:
        raise typer.Exit(1)


@bench.command()
def plot(
    told: Annotated[Path, typer.Argument(help="Output of `ratchet bench compare --json`.")],
    picture: Annotated[Path, typer.Argument(help="SVG to write.")],
) -> None:
    """Draw the output of `ratchet bench compare --json` as an SVG picture."""
    from bench.compare import plot as draw

    draw(told, picture)


def _say(line: str) -> None:
    import sys

    print(line, file=sys.stderr, flush=True)


def _load(
    records: int, keys: int, compression: str, duplicates: str, partitions: int, value_bytes: int, batch_bytes: int
) -> Load:
    from bench.load import Load

    if duplicates not in ("spread", "resent"):
        raise typer.BadParameter("--duplicates: write spread or resent")
    return Load(records, keys, compression, duplicates, partitions, value_bytes, batch_bytes)  # type: ignore[arg-type]


def _compared(
    subjects: list[str], load: Load, commit_ms: int, rounds: int, *, json: bool, runs_only: bool, warm_up: bool = True
) -> None:
    import sys

    from bench.compare import compare

    def say(run: Measured) -> None:
        print(json_text.dumps(run.as_dict()), file=sys.stdout if runs_only else sys.stderr, flush=True)

    compared = compare(subjects, load, commit_ms, rounds, say, warm_up=warm_up)
    if not runs_only:
        print(json_text.dumps(compared.as_dict()) if json else compared.as_markdown(), flush=True)
    if not compared.verified:
        raise typer.Exit(1)
