"""Library for users' own Spark programs: commits of DataFrames with their Kafka offsets.

`exactly_once` makes a sink of a table. A loop over `Sink.batches` reads a topic from the table's offsets on;
`Sink.batch` is a function for foreachBatch of Structured Streaming. Rows and offsets change in one action. Neither way
needs a checkpoint, because the table has the offsets.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from kafka_ratchet.spark_sink.errors import (
    Fenced,
    OffsetsLost,
    OptionRefused,
    SchemaDiffers,
    TablePutBack,
    TopicRecreated,
)
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner, resume, warn_of_missing_beginning
from kafka_ratchet.spark_sink.job.reading import MAX_RECORDS, Job, records, slices
from kafka_ratchet.spark_sink.job.start import require_first_job
from kafka_ratchet.spark_sink.job.unreadable import (
    UnreadableRanges,
    look_for_unreadable,
    overflow_explained,
    pieces,
    timestamps_named,
)
from kafka_ratchet.spark_sink.rows.judging.reading import sequence_of
from kafka_ratchet.spark_sink.rows.partition_by import partition_fields
from kafka_ratchet.spark_sink.rows.timestamps import MOST_MS
from kafka_ratchet.spark_sink.rows.write_mode import Kind, WriteMode, reduced, table_schema
from kafka_ratchet.spark_sink.spark.errors import ranges, spark_errors_named
from kafka_ratchet.spark_sink.spark.kafka_options import java_options
from kafka_ratchet.spark_sink.spark.micro_batch import (
    NO_DATA_MICRO_BATCHES,
    SKIPS_LOSS,
    MicroBatch,
    SourceClient,
    micro_batch,
    require_query_start,
)
from kafka_ratchet.spark_sink.spark.session import is_connect, require_release
from kafka_ratchet.spark_sink.stores.location import ENGINE, TableLocation
from kafka_ratchet.spark_sink.stores.open_store import require_options
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.store import NEW_TOPIC, require_local_master
from kafka_ratchet.spark_sink.targets import location_in_catalog, location_of, place_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from kafka_ratchet.spark_sink.stores.store import ResultStore

log = logging.getLogger("spark_sink")

SEQUENCE_HEADER: Final = "ratchet-sequence"
PRODUCER_HEADER: Final = "ratchet-producer"
"""Header with the producer's name in records that a producer of Ratchet has numbered; `SEQUENCE_HEADER` has the
number."""

PLACE: Final = {"partition": "_kafka_partition", "offset": "_kafka_offset"}
"""Columns with a record's partition and offset: names in result tables, by names in Spark's Kafka source."""

_SEQUENCE_BYTES: Final = "_ratchet_sequence_bytes"

NOT_ON_CONNECT: Final = (
    "sink.batch: Spark Connect runs foreachBatch in its server, without the micro-batch's offsets. Loop over "
    "sink.batches, with follow=True for a run without an end, or start the query by classic Spark"
)

SENDS_LATER: Final = (
    "job {job}: an operator with state (a window in the mode append, or a timeout) gives rows after its watermark has "
    "moved, in micro-batches without offsets. After a crash the table would not show whether it has those rows. Set "
    f"{NO_DATA_MICRO_BATCHES} to false and start the query again: the rows then come with the next records"
)

EARLIEST_OF_SPARK: Final = -2
"""Number that stands for a partition's first offset in options of Spark's Kafka source."""

MAX_RUNS: Final = 10_000
"""Maximum number of queries with a known last micro-batch; more than run at the same time."""


class LastCalls:
    """Numbers of the last micro-batches that `Sink.batch` has committed, by run of a query, job and place."""

    def __init__(self, limit: int = MAX_RUNS) -> None:
        self._limit, self._numbers, self._lock = limit, OrderedDict[tuple[str, ...], int](), threading.Lock()

    def of(self, run: tuple[str, ...]) -> int | None:
        """Return the number of a run's last micro-batch; None: no call is known."""
        return self._numbers.get(run)

    def note(self, run: tuple[str, ...], number: int) -> None:
        """Keep the number of a run's last micro-batch, and forget the run that called least recently."""
        with self._lock:
            self._numbers[run] = number
            self._numbers.move_to_end(run)
            if len(self._numbers) > self._limit:
                self._numbers.popitem(last=False)


_CALLS: Final = LastCalls()

FOLLOW_S: Final = 1.0
"""Seconds between two checks for new records, with `follow`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one commit, with their range of offsets.

    The records have the columns of Spark's Kafka source with headers, and two more: `sequence` (bigint) and `producer`
    (string), null for records that no producer has numbered.
    """

    records: DataFrame
    topic: str
    start: Mapping[int, int]
    """First offset of each partition in the batch."""
    end: Mapping[int, int]
    """Next offset of each partition after the batch, which the commit stores."""

    def __str__(self) -> str:
        return f"{self.topic} {ranges(dict(self.start), dict(self.end))}"


Engine = Literal["delta-rs", "spark"]
ENGINES: Final[Mapping[str, str]] = {"delta-rs": "", ENGINE: ENGINE}
"""Values of `TableLocation.engine`, by public names of engines."""


class SinkOptions(TypedDict, total=False):
    """Optional arguments of `exactly_once` about the table and its store."""

    evolve: bool
    """True: a commit adds missing columns to the table, and widens types."""
    partition_by: str | Sequence[str]
    """Partition column or columns of the table's files."""
    password: str | None
    """Password of a database, if the url has none."""
    storage_options: Mapping[str, str]
    """Options of a bucket."""
    catalog: Mapping[str, str]
    """Properties of an Iceberg catalog, in pyiceberg's names."""
    engine: Engine
    """Writer of the files of a Delta or Iceberg table: "spark" for the format's own writer in Spark, which follows
    the table's rules and properties; "delta-rs" (default) for Ratchet's own."""
    second_job: bool
    """True: commit even if a job of another name has committed the topic to the table."""


class Sink:
    """Sink that commits rows and Kafka offsets to one table in one action; made by `exactly_once`."""

    def __init__(self, target: str, job: str, write_mode: WriteMode, options: SinkOptions) -> None:
        self.target, self.job = target, job
        self._write_mode, self._options = write_mode, options
        self._partition_by = partition_fields(_listed(options.get("partition_by", ())))
        self._storage = dict(options.get("storage_options", {}))
        self._catalog = dict(options.get("catalog", {}))
        self._location = location_of(target, self._storage, self._catalog, options.get("password"))
        self._engine = _engine(options)
        if self._location is not None:
            self._with_engine(self._location)
        self._lock = threading.RLock()
        """Lock held from the choice of the store to the end of a commit: queries of one sink run in several threads."""
        self._store: ResultStore | None = None
        self._place: tuple[str, ...] = ()
        """Place of the opened table, see `place_of`."""
        self._topic: tuple[str, int] = ("", 0)
        """Name and id of the topic that the store is open for."""
        self._offsets: dict[int, int] | None = None
        """Stored offsets, once the table is taken over. None after a failed commit, which may be visible
        nevertheless."""
        self._known: dict[int, int] = {}
        """Stored offsets as this run first read them, before it took the table over."""
        self._schema: StructType | None = None
        self._generation: int | None = None
        """Number of this run's take-over of the table; None: the run has not taken over yet."""
        self._job: Job | None = None
        """Job of the last loop; None: no loop has begun."""
        self._loop: Job | None = None
        """Job of a running loop; None: no loop runs."""
        self._unreadable: dict[tuple[str, int], UnreadableRanges] = {}
        """Ranges that Spark cannot read, by name and id of the topic; each loop adds to them."""

    # -- a loop

    def batches(
        self,
        spark: SparkSession,
        *,
        bootstrap: str,
        topic: str,
        max_records: int = MAX_RECORDS,
        follow: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> Iterator[Batch]:
        """Yield the topic's records after the table's offsets, in batches. Commit each batch before the next.

        Args:
            spark: session of the caller; its settings and views stay as they are.
            bootstrap: host:port[,host:port] of Kafka.
            topic: any topic, also one without Ratchet's headers.
            max_records: offsets in one batch, at most; 1 or more.
            follow: True waits for new records at the topic's end; False stops there.
            options: client options in librdkafka's names, such as security.protocol.

        Raises:
            OptionRefused: an argument cannot be used, or a batch was not committed before the next one.
            SparkFailed: Spark cannot read or compute the records.
            SinkError: the table or Kafka cannot be read; the class names the reason.
        """
        if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
            raise OptionRefused(f"max_records={max_records!r}: write a whole number of at least 1")
        return self._batches(spark, bootstrap, topic, max_records, dict(options or {}), follow=follow)

    def _batches(
        self,
        spark: SparkSession,
        bootstrap: str,
        topic: str,
        max_records: int,
        client: dict[str, str],
        *,
        follow: bool,
    ) -> Iterator[Batch]:
        planner = TopicPlanner(bootstrap, topic, client)
        job = Job(
            bootstrap,
            topic,
            self.job,
            max_records=max_records,
            client_options=client,
            reader_options=java_options(client, {}),
            second_job=self._options.get("second_job", False),
            with_headers=True,
            splits=True,
        )
        with self._lock:
            self.close()  # each loop is a separate run
            topic_id = planner.topic_id()
            job = replace(job, unreadable=self._unreadable.setdefault((topic, topic_id), job.unreadable))
            store = self._open_store(spark, topic, topic_id)
            self._job = job
            require_first_job(job, store)
            stored = self._known = store.offsets()
            # Spark reads by the topic's name, and reads in the commit.
            store.check_before_commit(lambda: planner.require_still_first_topic(stored))
        with self._looping(job):
            offset_range = planner.offset_range()
            warn_of_missing_beginning(offset_range, stored)
            start = resume(offset_range, stored)
            while True:
                yield from self._up_to(spark, job, planner, offset_range, start)
                if not follow:
                    return
                start = offset_range.end
                while start == offset_range.end:
                    time.sleep(FOLLOW_S)
                    offset_range = planner.offset_range()
                    stored = store.offsets() if self._offsets is None else self._offsets
                    if offset_range.end.keys() - start.keys():  # partitions were added
                        warn_of_missing_beginning(offset_range, {**start, **stored})
                    start = resume(offset_range, stored)

    @contextmanager
    def _looping(self, job: Job) -> Iterator[None]:
        """Keep queries of other topics from this sink during a loop: they would open the table for their topic."""
        self._loop = job
        try:
            yield
        finally:
            if self._loop is job:  # no other loop has begun since
                self._loop = None

    def _up_to(
        self, spark: SparkSession, job: Job, planner: TopicPlanner, offset_range: OffsetRange, start: dict[int, int]
    ) -> Iterator[Batch]:
        """Yield the batches up to the end of the range; the caller must commit each before the next."""
        # Spark's source fails at a timestamp beyond this one, and Kafka finds the first such record by its time index.
        beyond = planner.offsets_at(MOST_MS + 1)
        for first, last in slices(start, offset_range.end, job.max_records):
            if odd := {p: max(at, first[p]) for p, at in beyond.items() if at is not None and at < last.get(p, 0)}:
                look_for_unreadable(job, odd, {each: last[each] for each in odd})
            for begin, end in pieces(job.unreadable, first, last):
                planner.require_still_first_topic(begin)
                read = with_producer(records(spark, job, begin, end))
                with _described(spark, f"{self.job}: {job.topic} {ranges(begin, end)}"):
                    yield Batch(read, job.topic, begin, end)
                if self._offsets is None or any(self._offsets.get(each) != at for each, at in end.items()):
                    raise OptionRefused(
                        f"job {self.job}: offsets {ranges(begin, end)} of topic {job.topic} are not committed. Call "
                        "sink.commit(dataframe, batch) before the loop goes on; for no rows, with "
                        "batch.records.limit(0)"
                    )

    def commit(self, dataframe: DataFrame, batch: Batch) -> int:
        """Make the rows and the offsets of a batch visible in one action.

        Args:
            dataframe: rows made of `batch.records`. `upsert` needs the columns partition and offset, or
                _kafka_partition and _kafka_offset, to find the last row of a key.
            batch: the last batch that `batches` yielded.

        Returns:
            Rows of the commit.

        Raises:
            Fenced: another run of the job has taken over, or the table already has the batch; nothing of this call is
                visible.
            TablePutBack: the table was put back to an earlier state, or removed; nothing of this call is visible.
            RowsLost: the rows no longer match the table's offsets; nothing of this call is visible.
            WriteModeDiffers: the job's earlier commits have another kind, key or sums.
            SchemaDiffers: the table has other columns.
            TopicRecreated: the topic was deleted and created again; nothing of this call is visible.
            KafkaUnavailable: Kafka does not answer about the topic; nothing of this call is visible.
            SparkFailed: Spark cannot read or compute the rows; nothing of this call is visible.
            OptionRefused: the batch belongs to another loop, or the rows do not fit the sink; nothing is visible.
            StoreError: the table cannot be written. The commit may be visible nevertheless; a new loop of `batches`
                continues at the table's offsets.
        """
        start, end = dict(batch.start), dict(batch.end)
        with self._lock, timestamps_named(self._job, start, end):
            return self._commit(dataframe, batch.topic, start, end)

    # -- Structured Streaming

    @property
    def batch(self) -> Callable[[DataFrame, int], None]:
        """Return the function that commits a micro-batch: `stream.writeStream.foreachBatch(sink.batch)`.

        Spark calls the function with the rows and the number of the micro-batch. Rows of records before the stored
        offsets are omitted, so that a lost checkpoint does no harm. To recognise these rows, the function needs the
        columns partition and offset, or _kafka_partition and _kafka_offset, of the one record that a row is made of. A
        row of several records would count those of an earlier commit once more.

        Raises:
            OptionRefused: the query, its source or its rows do not allow an exactly-once commit; the message names the
                reason. Examples are a query of two topics, and a source that may read uncommitted records. A session of
                Spark Connect is refused as well.
            OffsetsLost: the query begins after the table's offsets, so that records would be missing.
            TopicRecreated: the table's offsets belong to a deleted topic of the same name.
            SinkError: see `commit`.
        """
        if is_connect():  # before the query is started
            raise OptionRefused(NOT_ON_CONNECT)
        return self._batch

    def _batch(self, dataframe: DataFrame, number: int) -> None:
        given = micro_batch(dataframe)
        if given is None:
            self._require_no_rows(dataframe, number)
            return
        if given.sends_later:
            raise OptionRefused(SENDS_LATER.format(job=self.job))
        if given.skips_loss:
            raise OptionRefused(f"job {self.job}: {SKIPS_LOSS}")
        with self._lock, given.source_client() as client:
            topic_id = client.topic_id()
            if self._loop is not None and self._loop.topic != given.topic:
                raise OptionRefused(
                    f"job {self.job}: a loop over topic {self._loop.topic} uses this sink, so micro-batch {number} of "
                    f"topic {given.topic} is not committed. Give the query a sink of its own"
                )
            self._open_store(dataframe.sparkSession, given.topic, topic_id)
            run = given.run_id, self.job, *self._place
            if _CALLS.of(run) == number:
                raise OptionRefused(
                    f"job {self.job}: sink.batch was called twice for micro-batch {number}. The first call has "
                    "committed the micro-batch's offsets, so the rows of this call are not in the table. Make one "
                    "DataFrame of all rows (union) and call sink.batch once, or use a separate table and sink for each "
                    "DataFrame"
                )
            if not given.has_isolation:
                client.refuse_transactions(given.start, given.end)
            is_new = self._commit_micro_batch(dataframe, number, given, client, topic_id)
        if given.has_state and not is_new:
            dataframe.count()  # its operators have to write their state, or the next micro-batch fails
        _CALLS.note(run, number)

    def _require_same_topic(self, number: int, given: MicroBatch, client: SourceClient, topic_id: int) -> None:
        """Check that the topic of a micro-batch was not created again while Spark read it."""
        if client.topic_id() != topic_id:
            raise TopicRecreated(
                f"topic {given.topic} was deleted and created again while micro-batch {number} read it "
                f"({ranges(dict(given.start), dict(given.end))}). The table has no row of this micro-batch. {NEW_TOPIC}"
            )

    def _require_no_rows(self, dataframe: DataFrame, number: int) -> None:
        """Run a micro-batch without new offsets, and refuse it if it has rows.

        Spark writes the state of the query's operators only if the rows are computed.

        Raises:
            OptionRefused: there are rows. After a crash, the table could not show whether it has rows without offsets.
        """
        if rows := dataframe.count():
            later = SENDS_LATER.format(job=self.job)
            raise OptionRefused(f"micro-batch {number} has {rows} rows without offsets. {later}")

    def _commit_micro_batch(
        self, dataframe: DataFrame, number: int, given: MicroBatch, client: SourceClient, topic_id: int
    ) -> bool:
        """Commit the rows above the table's offsets; return False if the table already has all of them."""
        topic, start = given.topic, given.start
        store = self._open_store(dataframe.sparkSession, topic, topic_id)
        store.check_before_commit(lambda: self._require_same_topic(number, given, client, topic_id))
        if self._offsets is None:
            require_first_job(Job("", topic, self.job, second_job=self._options.get("second_job", False)), store)
        stored = self._offsets if self._offsets is not None else store.offsets()
        if self._generation is None:
            self._known = stored
        if stored:
            _require_none_missing(given, number, stored, client)
        else:
            require_query_start(given, number, self.job)
        begin = {each: stored.get(each, start[each]) for each in given.end}
        ahead = {each: at for each, at in begin.items() if at > start[each]}
        if all(begin[each] >= at for each, at in given.end.items()):
            log.info("job %s: micro-batch %s is in the table already", self.job, number)
            return False
        end = {each: max(at, begin[each]) for each, at in given.end.items()}
        rows = _without_stored(dataframe, start, ahead, given.end, self.job) if ahead else dataframe
        with _described(dataframe.sparkSession, f"{self.job}: {topic} {ranges(begin, end)}"):
            with overflow_explained(topic, begin, end):
                self._commit(rows, topic, begin, end)
        return True

    def starting_offsets(self, topic: str, *, bootstrap: str = "", options: Mapping[str, str] | None = None) -> str:
        """Return the table's offsets of a topic as Spark's Kafka source takes them in `startingOffsets`.

        The result is "earliest" before the first commit. Spark requires an offset of each partition. With `bootstrap`,
        the result also names partitions added since the last commit, which begin at their first record.

        Args:
            topic: the topic.
            bootstrap: host:port[,host:port] of Kafka, to look for added partitions.
            options: client options in librdkafka's names.
        """
        stored = self.offsets(topic)
        if not stored:
            return "earliest"
        if bootstrap:
            found = TopicPlanner(bootstrap, topic, dict(options or {})).offset_range()
            stored = {each: stored.get(each, EARLIEST_OF_SPARK) for each in found.end}
        return json.dumps({topic: {str(each): at for each, at in sorted(stored.items())}})

    # --

    def offsets(self, topic: str) -> dict[int, int]:
        """Return the table's next offset of each partition of a topic."""
        spark = None if self._location is not None else _present_session()
        store = self._make_store(spark, topic, 0)  # a separate one: a run may hold the other one
        try:
            return store.offsets()
        finally:
            store.close()

    def close(self) -> None:
        """Close the connection to the table."""
        with self._lock:
            if self._store is not None:
                self._store.close()
            self._store, self._offsets, self._schema, self._generation = None, None, None, None

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to pickle this object for Spark Connect, which sends foreachBatch functions to its server."""
        if is_connect():
            raise OptionRefused(NOT_ON_CONNECT)
        return self.__dict__

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open_store(self, spark: SparkSession, topic: str, topic_id: int) -> ResultStore:
        """Return the run's store for a topic. A topic created again gets a new store, which compares the topic ids."""
        if self._store is None or self._topic != (topic, topic_id):
            self.close()
            require_release(spark)
            self._store = self._make_store(spark, topic, topic_id)
            self._place = place_of(self._locate(spark))
            self._topic = topic, topic_id
            require_local_master(self._store, spark.conf.get("spark.master", None))
        return self._store

    def _make_store(self, spark: SparkSession | None, topic: str, topic_id: int) -> ResultStore:
        location = self._with_engine(self._locate(spark))
        made = store_class(location.kind)
        if self._engine and spark is not None:
            made.require_engine(spark)
        return made(
            location,
            self.job,
            topic,
            topic_id,
            self._write_mode,
            evolve=self._options.get("evolve", False),
            partition_by=self._partition_by,
        )

    def _locate(self, spark: SparkSession | None) -> TableLocation:
        if self._location is not None:
            return self._location
        return location_in_catalog(self.target, spark, self._storage, self._catalog)

    def _with_engine(self, location: TableLocation) -> TableLocation:
        evolve = self._options.get("evolve", False)
        require_options(location, self._write_mode, evolve=evolve, partition_by=self._partition_by)
        if self._engine and self._engine not in store_class(location.kind).engines:
            raise OptionRefused(
                f"engine {self._engine} is for Delta and Iceberg tables, and not for store {location.kind}. Remove "
                "engine"
            )
        return replace(location, engine=self._engine)

    def _commit(self, dataframe: DataFrame, topic: str, start: dict[int, int], end: dict[int, int]) -> int:
        if self._store is None or self._topic[0] != topic:
            raise OptionRefused(
                f"job {self.job}: this batch belongs to another loop of `batches`. Commit the batch that came last"
            )
        self._require_distinct(dataframe.columns)
        rows = _with_place(dataframe) if self._write_mode.kind == "upsert" else dataframe
        held = self._take_over(self._store, table_schema(self._write_mode, rows.schema))
        expected = {each: at for each, at in start.items() if each in held}
        if any(held[each] != at for each, at in expected.items()):
            raise Fenced(
                f"job {self.job}: the table has offsets {held} of topic {topic}, but this batch begins at {start}: "
                "another run has committed, or the batch was committed before. Start a new loop of `batches`"
            )
        self._offsets = None  # until the end of the commit is known
        with spark_errors_named(topic, start, end):
            count = self._store.commit(reduced(rows, self._write_mode), start, end)
        self._offsets = {**held, **end}
        return count

    def _require_distinct(self, names: Sequence[str]) -> None:
        """Refuse two columns with one name, as a join may give them. Upper and lower case count as the same."""
        totals = self._write_mode.kind == "totals"
        used = {*self._write_mode.key, *self._write_mode.sums} if totals else set(names)
        counts = Counter(name.lower() for name in names)
        doubled = {name.lower() for name in used if counts[name.lower()] > 1}
        if doubled:
            raise OptionRefused(
                f"job {self.job}: the rows have two columns of one name "
                f"({', '.join(name for name in names if name.lower() in doubled)}); the table ignores upper and lower "
                "case. Rename or drop one of them before the commit"
            )

    def _take_over(self, store: ResultStore, schema: StructType) -> dict[int, int]:
        """Return the stored offsets. Open the table for a first commit, changed columns, or after a failure.

        Raises:
            Fenced: another run has taken the table over in the meantime.
            TablePutBack: the table was put back to a state before this run's take-over, or removed since its beginning.
        """
        if self._offsets is not None and self._schema == schema:
            return self._offsets
        if self._generation is not None and (newest := store.generation()) != self._generation:
            if newest < self._generation:
                raise TablePutBack(
                    f"job {self.job}: the table was put back to an earlier state (generation {newest}, where "
                    f"{self._generation} was expected). Start a new loop of `batches`, which goes on from its offsets"
                )
            raise Fenced(
                f"job {self.job}: another run has taken the table over (generation {newest} after "
                f"{self._generation}). Let that run continue, or fence it by a new loop of `batches`"
            )
        if self._generation is None:
            self._require_kept(store.offsets())  # before a new table is made
        try:
            held = store.open(_nullable(schema))
        except SchemaDiffers:
            # The table may forbid null within arrays and maps, as these rows do.
            if (strict := _nullable(schema, within=False)) == _nullable(schema):
                raise
            held = store.open(strict)
        if self._generation is None:
            self._require_kept(held)
        self._generation, self._schema = store.generation(), schema
        if self._offsets is None:
            self._offsets = held
        return self._offsets

    def _require_kept(self, held: Mapping[int, int]) -> None:
        """Check that the table has no lower offsets than when this run first read them.

        Raises:
            TablePutBack: it has; the records between would be missing.
        """
        if any(held.get(each, -1) < at for each, at in self._known.items()):
            raise TablePutBack(
                f"job {self.job}: the table of topic {self._topic[0]} had offsets {self._known} when this run began, "
                f"and has {dict(held)} now: it was removed, created again or put back to an earlier state. Restore the "
                "table, or start a new loop of `batches` or a new query, which goes on from the table's offsets"
            )


def exactly_once(
    target: str,
    *,
    job: str,
    kind: Kind = "append",
    key: str | Sequence[str] = (),
    sums: str | Sequence[str] = (),
    **options: Unpack[SinkOptions],
) -> Sink:
    """Make a sink that commits rows and Kafka offsets in one action.

    Args:
        target: a name in Spark's catalog ("prod.sales.orders", Delta or Iceberg), a path (Delta), or an address. The
            addresses are "delta:PATH", "iceberg:NAMESPACE.TABLE" with `catalog`, "duckdb:FILE?table=T",
            "postgresql://...?table=T", "mysql://...?table=T".
        job: name of the job; a new run fences an older run of the same name.
        kind: "append", "upsert" (the last row of each key) or "totals" (sums by key).
        key: columns that identify a row, for upsert and totals.
        sums: columns to add up, for totals.
        options: see `SinkOptions`.

    Raises:
        OptionRefused: the target or an option cannot be used.
    """
    if unknown := sorted(options.keys() - SinkOptions.__optional_keys__):
        raise OptionRefused(
            f"job {job}: unknown options: {', '.join(unknown)}. Write one of "
            f"{', '.join(sorted(SinkOptions.__optional_keys__))}, or leave them out"
        )
    return Sink(target, job, WriteMode(kind, _listed(key), _listed(sums)), options)


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a text is one name, not its letters."""
    return (names,) if isinstance(names, str) else tuple(names)


def _present_session() -> SparkSession | None:
    """Return the Spark session of this thread or program; None: Spark has not started."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkException:
        return None


def with_producer(read: DataFrame) -> DataFrame:
    """Add the columns sequence and producer; null unless the record has exactly one header of that name."""
    from pyspark.sql import functions as F

    def only(name: str) -> Column:
        found = F.filter("headers", lambda each: each["key"] == name)
        return F.when(F.size(found) == 1, F.get(found, F.lit(0))["value"])

    found = read.withColumn(_SEQUENCE_BYTES, only(SEQUENCE_HEADER))
    added = {"sequence": sequence_of(_SEQUENCE_BYTES, "guess"), "producer": only(PRODUCER_HEADER).cast("string")}
    return found.withColumns(added).drop(_SEQUENCE_BYTES)


def _require_none_missing(given: MicroBatch, number: int, stored: Mapping[int, int], client: SourceClient) -> None:
    """Check that a micro-batch does not begin after the table's offsets.

    Raises:
        OffsetsLost: the table would miss the offsets before the micro-batch.
    """
    for partition, begins in given.start.items():
        if partition in stored:
            held, known = stored[partition], f"has read up to offset {stored[partition]}"
        elif begins:  # added after the table's last commit
            held, known = client.earliest(partition), "has no offset of this partition, which was added later"
        else:
            continue
        if held < begins:
            raise OffsetsLost(
                f"topic {given.topic}/{partition}: the table {known}, and micro-batch {number} begins at {begins}: "
                f"{begins - held} offsets would be missing. Start the query without its checkpoint, with "
                'option("startingOffsets", sink.starting_offsets(topic, bootstrap=...))'
            )


def _without_stored(
    dataframe: DataFrame, start: Mapping[int, int], ahead: Mapping[int, int], end: Mapping[int, int], job: str
) -> DataFrame:
    """Remove the rows of records that the table already has.

    Args:
        dataframe: rows of a micro-batch.
        start: first offset of each partition in the micro-batch.
        ahead: stored offset of each partition that begins below it.
        end: next offset of each partition after the micro-batch.
        job: name of the job, for messages.
    """
    from pyspark.sql import functions as F

    names = dataframe.columns
    place = next((pair for pair in (tuple(PLACE.values()), tuple(PLACE)) if set(pair) <= set(names)), None)
    if place is None:
        raise OptionRefused(
            f"job {job}: the table already has a part of this micro-batch ({dict(ahead)}), but the rows do not show "
            "their offsets. Keep the columns partition and offset in the rows, or start the query with "
            'option("startingOffsets", sink.starting_offsets(topic))'
        )
    partition, offset = map(F.col, place)
    nowhere = F.raise_error(
        f"job {job}: the table has a part of this micro-batch, and rows without partition and offset may belong to "
        "that part. Leave such rows out, or start the query where the table ends (sink.starting_offsets)"
    ).cast("boolean")
    elsewhere = F.raise_error(
        f"job {job}: the table has a part of this micro-batch, and there are rows whose partition and offset are "
        f"outside the micro-batch ({ranges(dict(start), dict(end))}). Give each row the partition and offset of the "
        "record that it is made of, or start the query where the table ends (sink.starting_offsets)"
    ).cast("boolean")
    known = partition.isNotNull() & offset.isNotNull()
    stored = reduce(or_, [(partition == each) & (offset < at) for each, at in ahead.items()])
    inside = reduce(or_, [(partition == each) & offset.between(start[each], at - 1) for each, at in end.items()])
    return dataframe.where(F.when(known & inside, ~stored).when(known, elsewhere).otherwise(nowhere))


def _with_place(dataframe: DataFrame) -> DataFrame:
    names = {before: after for before, after in PLACE.items() if before in dataframe.columns}
    return dataframe.withColumnsRenamed({each: to for each, to in names.items() if to not in dataframe.columns})


def _nullable(schema: StructType, *, within: bool = True) -> StructType:
    """Return the same columns, all nullable.

    Args:
        schema: columns of the rows.
        within: True also allows null within structs, arrays and maps.
    """
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    def loose(kind: DataType) -> DataType:
        if isinstance(kind, StructType):
            return _nullable(kind)
        if isinstance(kind, ArrayType):
            return ArrayType(loose(kind.elementType))
        return MapType(kind.keyType, loose(kind.valueType)) if isinstance(kind, MapType) else kind

    kinds = [loose(each.dataType) if within else each.dataType for each in schema.fields]
    return StructType([StructField(name, kind) for name, kind in zip(schema.names, kinds, strict=True)])


@contextmanager
def _described(spark: SparkSession, text: str) -> Iterator[None]:
    """Set the description of Spark's jobs in the block, and restore the caller's description afterwards."""
    context = getattr(spark, "_sc", None)
    if context is None:  # Spark Connect has none
        yield
        return
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)


def _engine(options: SinkOptions) -> str:
    """Return the value of `TableLocation.engine` for the options."""
    named = options.get("engine", "delta-rs")
    if named not in ENGINES:
        raise OptionRefused(f"engine {named!r} is unknown; write one of {', '.join(ENGINES)}")
    return ENGINES[named]
