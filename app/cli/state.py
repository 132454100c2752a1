"""`ratchet state`: exports a stream's identities from Kafka, and imports them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json, Stream, WhichPartitioner
from kafka_ratchet.app.partitioner import Partitioner

state = typer.Typer(no_args_is_help=True, help="Export and import the state of a stream's identities.")

File = Annotated[Path, typer.Argument(help="File with a name that ends with .parquet or .ndjson.")]


@state.command("export", epilog="Example: ratchet state export orders.ndjson --stream orders")
def export(file: File, stream: Stream = None, config: Config = None, json: Json = False) -> None:
    """Write the last sequence of each identity in each partition to a new file. Workers may run."""
    import json as json_text

    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.operations.state_export import StateExport
    from kafka_ratchet.app.operations.state_rows import write_rows
    from kafka_ratchet.app.settings import load

    settings = load(config)
    name, _ = settings.stream(stream)
    with named_broker(settings) as bootstrap:
        export = StateExport(settings, bootstrap, name)
        count = write_rows(file, export.rows())
    if json:
        typer.echo(json_text.dumps({"stream": name, "rows": count, "partitions": export.partitions}))
    else:
        typer.echo(f"{count:,} rows of {export.partitions} partitions are in {file}")


@state.command("import", epilog="Example: ratchet state import orders.ndjson --stream orders --dry-run")
def import_(
    file: Annotated[Path | None, typer.Argument(help="File with a name that ends with .parquet or .ndjson.")] = None,
    faust: Annotated[
        str | None,
        typer.Option("--faust", help="MODULE:NAME: tables and offsets of plain Faust workers of that program."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would change, and change nothing.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also replace stored sequences by lower ones of the file.")
    ] = False,
    all_partitions: Annotated[
        bool, typer.Option("--all-partitions", help="Import each identity into every partition.")
    ] = False,
    partition_column: Annotated[
        bool,
        typer.Option(
            "--partition-column", help="Take each key's partition from the file, instead of computing it from the key."
        ),
    ] = False,
    partitioner: WhichPartitioner = Partitioner.MURMUR2,
    reason: Annotated[str, typer.Option(help="Reason, recorded in the changelog with your name.")] = "",
    stream: Stream = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Import last sequences from a file, while no worker of the application runs.

    The import lowers a sequence only with --replace. Each partition is imported in one transaction; after an
    interruption, run the command again. --faust shop:app imports tables and offsets of plain Faust workers instead
    (docs/guide/faust.md).
    """
    import msgspec

    if faust is not None:
        _take_over(faust, config, dry_run=dry_run, json=json)
        return
    if file is None:
        raise typer.BadParameter("FILE is missing: name a file, or a Faust program with --faust MODULE:NAME")

    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.operations.state_import import ImportOptions, StateImport, prepare_import
    from kafka_ratchet.app.operations.state_rows import read_rows
    from kafka_ratchet.app.settings import load

    settings = load(config)
    name, spec = settings.stream(stream)
    rows = read_rows(file, numbered=spec.sequence != "none")
    how = ImportOptions(partitioner, partition_column, all_partitions, replace, reason or f"import of {file.name}")
    with named_broker(settings) as bootstrap:
        if not dry_run:
            prepare_import(settings, bootstrap, name)
        importer = StateImport(settings, bootstrap, name, how)
        done = importer.run(rows, dry_run=dry_run)
        is_stale = any(each.uncounted is not None for each in done) and importer.is_stale
    if json:
        body = {"stream": name, "dry_run": dry_run, "partitions": msgspec.to_builtins(done)}
        typer.echo(msgspec.json.encode(body).decode())
        return
    would = "would be " * dry_run
    ending = f"The import {'would end' if dry_run else 'ends'} the halt over this"
    if is_stale:
        ending = (
            "The application has claimed the topic that was there before: after the import, the partition stays halted "
            f"until `ratchet resume --stream {name} --reason TEXT --execute`"
        )
    for each in done:
        typer.echo(
            f"partition {each.partition}: {each.added:,} {would}added, {each.raised:,} {would}raised, "
            f"{each.replaced:,} {would}replaced, {each.kept:,} kept as they are"
        )
        if each.uncounted is not None:
            start, end = each.uncounted
            typer.echo(
                f"partition {each.partition}: the group has committed offset {end}, and the changelog has only records "
                f"counted below {start}: it was deleted and created again, or lost its end. {ending}. "
                f"An identity counted from {start} to {end - 1} and missing in the file "
                "counts as new if its records are sent again"
            )
        for request in each.superseded:
            typer.echo(
                f"partition {each.partition}: the request {request.id} to forget the identity {request.name!r} "
                f"{'would' if dry_run else 'will'} not be applied again, and the sequence of the file stays. It was "
                f"requested {request.author}. If the identity must begin again, run `ratchet forget` after the import"
            )
    if not done:
        typer.echo(f"{file} has no rows")


def _take_over(program: str, config: Path | None, *, dry_run: bool, json: bool) -> None:
    """Import the tables and offsets of plain Faust workers."""
    import msgspec

    from kafka_ratchet.app.faust_host.moving import take_over

    done = take_over(program, config, dry_run=dry_run)
    if json:
        body = {"program": program, "dry_run": dry_run, "partitions": msgspec.to_builtins(done)}
        typer.echo(msgspec.json.encode(body).decode())
        return
    would = "would be " * dry_run
    for each in done:
        place = "its beginning" if each.position is None else f"offset {each.position:,}"
        typer.echo(f"{each.stream}, partition {each.partition}: {each.keys:,} keys {would}taken over, from {place} on")
    if not done:
        typer.echo("Plain Faust has left nothing: no offsets, and no changelogs")
