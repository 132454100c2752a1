"""Command `... spark_sink vacuum`: removes leftover files of killed and fenced jobs, without Spark and Kafka."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence

from kafka_ratchet.spark_sink.job.access import Access
from kafka_ratchet.spark_sink.options import add_location_options
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import require_path
from kafka_ratchet.spark_sink.stores.orphans import Orphan
from kafka_ratchet.spark_sink.stores.vacuum import OLDER_THAN_S, vacuum


def run_vacuum(arguments: Sequence[str]) -> None:
    """Remove orphaned files and staging tables, or list them with --dry-run; print number and size.

    Args:
        arguments: the command line after the word `vacuum`.

    Raises:
        SinkError: see `stores.vacuum.vacuum`.
    """
    parser = argparse.ArgumentParser(
        prog="spark_sink vacuum",
        description="Remove files and staging tables of killed and fenced jobs, which no commit names.",
    )
    add_location_options(parser)
    parser.add_argument(
        "--older-than",
        type=_hours,
        default=OLDER_THAN_S / 3600,
        metavar="HOURS",
        help="keep files of the last HOURS (1)",
    )
    parser.add_argument("--dry-run", action="store_true", help="list, and remove nothing")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args(arguments)
    access = Access.from_environment()
    access.hide()
    location = access.location(options.store, options.path, options.table)
    require_path(location)
    found = vacuum(location, options.older_than * 3600, dry_run=options.dry_run)
    print(summary(location, found, dry_run=options.dry_run), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(as_dict(location, found, dry_run=options.dry_run)))


def summary(location: TableLocation, found: Sequence[Orphan], *, dry_run: bool) -> str:
    """Return the output: number and size of the orphans, after a line for each orphan on a dry run."""
    lines = [f"{orphan.bytes:>15,}  {orphan.name!a}" for orphan in found] if dry_run else []
    size = sum(orphan.bytes for orphan in found)
    return "\n".join([*lines, f"{location}: {len(found):,} {'would be ' if dry_run else ''}removed, {size:,} bytes"])


def as_dict(location: TableLocation, found: Sequence[Orphan], *, dry_run: bool) -> dict[str, object]:
    """Return the fields of the line that `--json` prints."""
    return {
        "store": location.kind,
        "table": str(location),
        "dry_run": dry_run,
        "count": len(found),
        "bytes": sum(orphan.bytes for orphan in found),
        "names": [orphan.name for orphan in found],
    }


def _hours(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of hours. Write 0 or more, such as 1.5")
    return number
