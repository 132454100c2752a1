"""Search for the rows of output records in result tables, and for the rows' commits."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.results import access_of, missing_stream, planner_of, sinks_of, spec_of
from kafka_ratchet.app.verify.reading import plain_id
from kafka_ratchet.app.verify.rows import RowOffsets
from kafka_ratchet.app.why.answer import RecordPosition, Result
from kafka_ratchet.app.why.scan import Scan
from kafka_ratchet.spark_sink.errors import SinkError
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.results import partition_and_offset, scan


def id_number(text: str) -> int:
    """Convert a topic id from text to a 128-bit number; 0 for a broker without topic ids."""
    return int.from_bytes(base64.urlsafe_b64decode(plain_id(text) + "=="), "big")


def find_rows(
    settings: Settings,
    name: str,
    bootstrap: str,
    places: Iterable[RecordPosition],
    within: Scan,
    topic_id: int | None = None,
) -> tuple[dict[RecordPosition, list[Result]], list[str]]:
    """Find the rows of output records in all result tables of a stream.

    Args:
        settings: settings with the sinks of the tables.
        name: name of the stream.
        bootstrap: host:port[,host:port].
        places: places of the records in the output.
        within: limits of time and size.
        topic_id: id of the output topic as a 128-bit number; None: request the id from Kafka.

    Returns:
        (results by place, one for each table; sentences about results that could not be found)
    """
    wanted = list(places)
    found: dict[RecordPosition, list[Result]] = {}
    limits: list[str] = []
    if wanted and not sinks_of(settings, name) and (missing := missing_stream(settings)):
        limits.append(f"no result table is read: {missing}")
    for each in sinks_of(settings, name) if wanted else []:
        if each.sink.from_input:
            limits.append(
                f"sink {each.sink.name} reads the input itself (from_input), so that its rows are not searched"
            )
            continue
        try:
            results, unknown = _find(each, name, bootstrap, wanted, within, topic_id)
        except SinkError as error:
            of_sink = f" of sink {each.sink.name}" if settings.sinks else ""
            limits.append(f"the result table{of_sink} cannot be read: {error}")
            continue
        limits += unknown
        for place, result in results.items():
            found.setdefault(place, []).append(result)
    return found, limits


def _find(
    settings: Settings, name: str, bootstrap: str, wanted: list[RecordPosition], within: Scan, topic_id: int | None
) -> tuple[dict[RecordPosition, Result], list[str]]:
    kept, access, topic = settings.sink, access_of(settings), settings.streams[name].output
    spec = spec_of(settings, topic, bootstrap)
    location = spec.location(access)
    if topic_id is None:
        topic_id = planner_of(bootstrap, settings, topic).topic_id()
    store = store_class(location.kind)(location, kept.name, topic, topic_id)
    try:
        if store.generation() == 0:
            return {}, []
        stored = store.offsets()
        table = f"{kept.store} {location}"
        kind = "query" if kept.sql is not None or kept.transform is not None else kept.kind
        found = {place: Result(table, kept.name, stored.get(place.partition, 0), kind=kind) for place in wanted}
        limits: list[str] = []
        if kept.kind == "totals" or kept.sql is not None or kept.transform is not None:
            what = "kind totals" if kept.kind == "totals" else "a query or transform"
            limits.append(f"a row of {table} stands for many records ({what}): the row of one record is unknown")
        else:
            rows, is_whole = _offsets(location, wanted, within, rejects=False)
            for place, result in list(found.items()):
                result.rows = int((rows.of(place.partition) == place.offset).sum())
                if not result.rows and not is_whole:
                    del found[place]  # whether it has a row is not known
        if kept.rejects:
            rejects, is_whole = _offsets(location, wanted, within, rejects=True)
            for place, result in list(found.items()):
                result.rejects = int((rejects.of(place.partition) == place.offset).sum())
                if not result.rows and not result.rejects and not is_whole:
                    del found[place]
        # A row may come from a commit after the first request for offsets, so records with a row get the offsets of a
        # later request. Records without a row keep those of the first request.
        later = store.offsets()
        for place, result in found.items():
            if result.rows or result.rejects:
                result.read_to = later.get(place.partition, 0)
        commits = [(called, dict(offsets)) for called, offsets in store.commits()]
    finally:
        store.close()
    for place, result in found.items():
        result.commit = oldest_past(commits, place)
    return found, limits


def _offsets(
    location: TableLocation, wanted: list[RecordPosition], within: Scan, *, rejects: bool
) -> tuple[RowOffsets, bool]:
    """Return the offsets of rows of the wanted records, and True if all were read."""
    found, stops = RowOffsets(), len(within.stopped)
    what = f"{'the rejects' if rejects else 'the rows'} of {location} were read in part only"
    offsets = [place.offset for place in wanted]
    in_one = len({place.partition for place in wanted}) == 1
    records = (wanted[0].partition, min(offsets), max(offsets)) if in_one else None
    batches = scan(location, partition_and_offset(), rejects=rejects, records=records)
    found.add(within.bounded(batches, lambda batch: int(batch.nbytes), lambda batch: what, every=1))
    return found, len(within.stopped) == stops


def oldest_past(commits: list[tuple[str, dict[int, int]]], place: RecordPosition) -> str | None:
    """Return the name of the commit that wrote a record's row; None if it is not known.

    This is the oldest commit with an offset past the record. If it is the oldest known one, an older commit may have
    written the row, and " at the latest" follows the name.
    """
    past = None
    for called, offsets in commits:
        if offsets.get(place.partition, 0) <= place.offset:
            return past
        past = called
    return past if past is None else f"{past} at the latest"
