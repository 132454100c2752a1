"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_ratchet.app.partitioner import Partitioner

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings file (TOML). Default: RATCHET_CONFIG, else ratchet.toml."),
]
Stream = Annotated[
    str | None, typer.Option("--stream", help="Name of the stream. May be left out if the settings have only one.")
]
FromInput = Annotated[
    bool,
    typer.Option(
        "--from-input",
        help="Read the stream's input, and let Spark judge it. As from_input = true in the sink's section.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON at the end, for scripts.")]
WhichPartitioner = Annotated[
    Partitioner,
    typer.Option(
        "--partitioner",
        help="How the producers choose the partition of a key. murmur2: Java's; crc32: librdkafka's and Ratchet's own.",
    ),
]
