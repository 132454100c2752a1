"""`ratchet broker`: Kafka on this machine, without an installation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
                raise SetupError(f"the broker has ended by itself; see {kafka.log_file}")
        console.print("Stopping Kafka ...")
