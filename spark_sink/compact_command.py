"""Command `... spark_sink compact`: merges small files of a table, without Spark and without Kafka."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence

from kafka_ratchet.spark_sink.job.access import Access
from kafka_ratchet.spark_sink.options import add_location_options
from kafka_ratchet.spark_sink.stores.compact import TARGET_BYTES, Compaction, compact
from kafka_ratchet.spark_sink.stores.open_store import require_path

MIB = 1024 * 1024


def run_compact(arguments: Sequence[str]) -> None:
    """Plan a compaction, run it with --execute, and print the numbers of files and bytes.

    Args:
        arguments: the command line after the word `compact`.

    Raises:
        SinkError: see `stores.compact.compact`.
    """
    parser = argparse.ArgumentParser(
        prog="spark_sink compact",
        description="Put small files of a Delta or Iceberg table together, also while jobs commit to it.",
    )
    add_location_options(parser)
    parser.add_argument(
        "--target-size", type=_mebibytes, default=TARGET_BYTES / MIB, metavar="MIB", help="size of a new file (128)"
    )
    parser.add_argument("--execute", action="store_true", help="do it; without this option nothing changes")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args(arguments)
    access = Access.from_environment()
    access.hide()
    location = access.location(options.store, options.path, options.table)
    require_path(location)
    found = compact(location, int(options.target_size * MIB), execute=options.execute)
    print(summary(found, execute=options.execute), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(as_dict(found, execute=options.execute)))


def summary(found: Sequence[Compaction], *, execute: bool) -> str:
    """Return the output of the command: a line for each table."""
    lines = []
    for each in found:
        files, size = sum(map(len, each.groups)), sum(file.bytes for group in each.groups for file in group)
        line = f"{each.table}: {each.files:,} files, {each.bytes:,} bytes; "
        if not execute or not each.groups:
            line += f"{files:,} of them ({size:,} bytes) would become {len(each.groups):,}"
        else:
            line += f"{each.replaced:,} of them have become {each.written:,}"
        if each.given_up:
            line += f"; {each.given_up:,} were given up, because another writer has changed them since"
        lines.append(line)
    if not execute:
        lines.append("nothing was changed; --execute does it")
    return "\n".join(lines)


def as_dict(found: Sequence[Compaction], *, execute: bool) -> dict[str, object]:
    """Return the fields of the line that `--json` prints."""
    return {
        "executed": execute,
        "tables": [
            {
                "table": each.table,
                "files": each.files,
                "bytes": each.bytes,
                "small_files": sum(map(len, each.groups)),
                "small_bytes": sum(file.bytes for group in each.groups for file in group),
                "would_become": len(each.groups),
                "replaced": each.replaced,
                "written": each.written,
                "given_up": each.given_up,
            }
            for each in found
        ],
    }


def _mebibytes(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and 0 < number <= MIB):
        raise argparse.ArgumentTypeError(f"{text} is not a size in MiB. Write a number of at most {MIB}, such as 128")
    return number
