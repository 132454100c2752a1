"""Commands for this machine: `ratchet broker`, `ratchet demo` and `ratchet setup`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_ratchet.app.cli.options import Json


def broker(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", help="Folder for topics and logs. Default: a temporary one, removed when the broker stops."
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    with_parent: Annotated[
        bool,
        typer.Option("--with-parent", help="Stop when standard input ends, that is, together with the parent process."),
    ] = False,
) -> None:
    """Run a single-node Kafka in the foreground until Ctrl-C.

    The first line on standard output is the address for clients (bootstrap).
    """
    import os
    import signal
    import sys
    import threading

    from rich.console import Console

    from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
    from kafka_ratchet.errors import SetupError

    stopping = threading.Event()

    def stop(*_: object) -> None:
        stopping.set()

    def stop_at_end_of_input() -> None:
        try:
            while os.read(sys.stdin.fileno(), 4096):
                pass
        except (OSError, ValueError):  # closed while it was read: as good as its end
            pass
        finally:
            stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    if with_parent:
        threading.Thread(target=stop_at_end_of_input, daemon=True).start()

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with EmbeddedBroker(folder, port=port or None, console=console) as kafka:
        print(kafka.bootstrap, flush=True)
        console.print(f"Kafka runs at {kafka.bootstrap}. Other terminals: export RATCHET_BOOTSTRAP={kafka.bootstrap}")
        console.print(f"Its log: {kafka.log_file}. Ctrl-C stops it.")
        while not stopping.wait(0.5):
            if not kafka.is_running:
                raise SetupError(f"the broker has ended. Its log {kafka.log_file} has the reason")
        console.print("Stopping Kafka ...")


def demo(
    files: Annotated[
        list[Path] | None, typer.Argument(help="NDJSON files of events. Default: the data that come with Ratchet.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Run the whole pipeline on this machine, kill a publisher and a worker, and prove that each event counts once."""
    from kafka_ratchet.app.demo import run

    if not run(files or [], keep=keep, as_json=as_json):
        raise typer.Exit(1)


def setup() -> None:
    """Fetch the Kafka and Spark jars, compile the kernels, and start Spark once. Needs access to the network."""
    from concurrent.futures import ThreadPoolExecutor

    from rich.console import Console

    from kafka_ratchet.app.local.jars import kafka_jars, spark_jars
    from kafka_ratchet.app.local.spark_classes import write_classes
    from kafka_ratchet.app.worker.compile import compile_kernels
    from kafka_ratchet.transport.publishing.encode import compile_publishing

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("Fetching the jars, compiling the kernels and starting Spark, once")

    def spark() -> tuple[list[Path], Path | None]:
        return spark_jars(Console(quiet=True)), write_classes()

    # Side by side: fetching waits for the network, compiling for the processor. A terminal shows one bar at a time,
    # which is that of the longer list.
    with ThreadPoolExecutor(2) as beside:
        fetched, started = beside.submit(kafka_jars, console), beside.submit(spark)
        compile_kernels()
        compile_publishing()
    console.print("Kernels: compiled")
    of_spark, classes = started.result()
    for name, jars in (("Kafka", fetched.result()), ("Spark", of_spark)):
        size = sum(jar.stat().st_size for jar in jars) / 1e6
        console.print(f"{name}: {len(jars)} jars, {size:.0f} MB, verified, in {jars[0].parent}")
    if classes is None:
        console.print("Spark: its classes could not be kept, so that starts take somewhat longer")
    else:
        console.print(f"Spark: classes for quicker starts, {classes.stat().st_size / 1e6:.0f} MB, in {classes}")
