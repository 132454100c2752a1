"""Offsets and lags of the result tables, for the page. They are read in a thread, since a store may be slow."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import msgspec
import structlog

from kafka_ratchet.app.event_loop import in_thread
from kafka_ratchet.app.extras import missing_extra
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.open_transactions import BlockedRange, ask_about
from kafka_ratchet.app.status.results import (
    access_of,
    place_of,
    planner_of,
    require_startable_of,
    result_stream,
    spec_of,
    store_of,
    topic_of,
)
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.spark_sink.errors import SinkError
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.status import SinkStatus, sink_status
from kafka_ratchet.spark_sink.secrets import hidden

log = structlog.get_logger(__name__)

KAFKA_TIMEOUT_S = 5.0
"""Maximum seconds to wait for Kafka, as in the rest of the page."""

FRESH_FOR_S = 5.0
"""Minimum seconds between two requests to the store, which may be a busy database, however many pages are open."""

STALE_MOST_S = 10.0
"""Maximum seconds since an answer for the page to show it, with its time, while the next request runs."""

PATIENCE_S = 1.0
"""Maximum seconds that a page waits for the store's answer.

The browser fetches the page again every two seconds, and so shows a later answer.
"""


@dataclass(frozen=True, slots=True)
class ResultPartition:
    """Progress of a result table in one partition of its topic, named as in `ratchet sink status`.

    offset: next offset to read; None: the job has not committed yet.
    lag: number of offsets left to read; None: the topic does not have the stored offset, so the job cannot continue.
    lag_s: age in seconds of the oldest record without a row.
    """

    partition: int
    offset: int | None
    end: int
    lag: int | None
    lag_s: float | None
    blocked: int | msgspec.UnsetType = msgspec.UNSET
    """Number of offsets that an open transaction holds back; unset if there are none."""


@dataclass(frozen=True, slots=True)
class Results:
    """Progress of one sink that the settings define, as the status page shows it.

    taken_at: time of the store's answer, ISO 8601, UTC; None: no answer yet.
    error: error text for the operator; None: no error.
    name: name of the section [sinks.NAME]; for [sink], the job's name.
    command: command that starts the job.
    """

    job: str
    store: str
    place: str
    topic: str | None
    generation: int | None
    partitions: list[ResultPartition]
    lag: int | None
    lag_s: float | None
    taken_at: str | None = None
    error: str | None = None
    name: str = ""
    command: str = "ratchet sink"
    waits: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Sentences about partitions that wait for the end of an open transaction; unset if there are none."""


class SinksView:
    """Reader of the state of all sinks of the settings, for the page.

    Args:
        bootstrap: host:port[,host:port].
        settings: settings with the sinks.
    """

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self._views = {
            name: ResultsView(
                bootstrap, settings.of_sink(name), name, f"ratchet sink {name}" if settings.sinks else None
            )
            for name in settings.every_sink()
        }

    async def latest(self) -> list[Results]:
        """Return the state of each sink, in the order of the settings."""
        found = await asyncio.gather(*(view.latest() for view in self._views.values()))
        return [results for results in found if results is not None]

    async def one(self, name: str) -> tuple[Results, Settings] | None:
        """Return the sink with this name of its section or job, and its settings; None without such a sink."""
        for section, view in self._views.items():
            if name in {section, view.settings.sink.name} and (results := await view.latest()) is not None:
                return results, view.settings
        return None


class ResultsView:
    """Reader of the state of one result table, from its store and Kafka.

    Args:
        bootstrap: host:port[,host:port].
        settings: settings with the `[sink]`, if any.
        name: name of the sink; None: the job's name.
        command: command that starts the job; None: the command without a sink's name.
    """

    def __init__(self, bootstrap: str, settings: Settings, name: str | None = None, command: str | None = None) -> None:
        self._bootstrap, self.settings = bootstrap, settings
        self._is_wanted = "sink" in settings.model_fields_set
        kept = settings.sink
        self._last = Results(
            kept.name,
            kept.store,
            str(place_of(settings)),
            None,
            None,
            [],
            None,
            None,
            name=name or kept.name,
            command=command or "ratchet sink",
        )
        self._planner: TopicPlanner | None = None
        self._asking: asyncio.Future[Results] | None = None
        self._began_at = float("-inf")
        self._answered_at: float | None = None
        """Time of the store's last answer without an error."""

    async def latest(self) -> Results | None:
        """Return the state of the table, at most `STALE_MOST_S` old; None if the settings have no sink."""
        if not self._is_wanted:
            return None
        now = asyncio.get_running_loop().time()
        if self._asking is None and now - self._began_at > FRESH_FOR_S:
            self._began_at = now
            self._asking = in_thread(self._ask)
        if (asking := self._asking) is None:
            return self._last
        if self._answered_at is not None and now - self._answered_at <= STALE_MOST_S and not asking.done():
            return self._last
        await asyncio.wait({asking}, timeout=PATIENCE_S)
        if asking.done():
            if asking is self._asking:  # else another page has stored its answer first
                self._last, self._asking = asking.result(), None
                self._answered_at = None if self._last.error else asyncio.get_running_loop().time()
        elif (waiting_s := asyncio.get_running_loop().time() - self._began_at) > FRESH_FOR_S:
            return replace(self._last, error=f"store {self._last.store} has not answered for {waiting_s:.0f} s")
        return self._last

    def _ask(self) -> Results:
        kept = self.settings.sink
        try:
            _, stream = result_stream(self.settings)
            topic = topic_of(self.settings, stream)
            if self._planner is None:
                self._planner = planner_of(self._bootstrap, self.settings, topic, KAFKA_TIMEOUT_S)
            found = read_progress(self.settings, self._bootstrap, topic, self._planner)
        except (SinkError, SettingsError) as error:
            return replace(self._last, error=hidden(str(error)))
        except ModuleNotFoundError as error:
            return replace(self._last, error=missing_extra(error) or str(error))
        except Exception:  # of a store's own library; its text may have anything in it
            log.exception("results_failed")
            return replace(self._last, error=f"store {kept.store} does not answer; the log of this page says why")
        waits = [str(each) for each in old_transactions(self.settings, self._bootstrap, topic, found)]
        return replace(_results(self._last, topic, found), waits=waits or msgspec.UNSET)


def read_progress(settings: Settings, bootstrap: str, topic: str, planner: TopicPlanner) -> SinkStatus:
    """Read the progress of a sink from its store and Kafka, for commands and the page.

    Raises:
        SinkError: store or Kafka does not answer, or the settings contradict each other.
        SettingsError: with `from_input`, no stream of the settings has that input.
    """
    spec = spec_of(settings, topic, bootstrap)
    access, topic_id = access_of(settings), planner.topic_id()
    startable = partial(require_startable_of, spec, access, topic_id)
    return sink_status(store_of(spec, access, topic_id), planner, startable)


def old_transactions(settings: Settings, bootstrap: str, topic: str, found: SinkStatus) -> list[BlockedRange]:
    """Return the offsets of a sink's topic that open transactions hold back.

    The transactions of workers are left out, because they end within a moment.
    """
    stable, high = found.offset_range.end, found.offset_range.top
    ends = {(topic, number): (stable[number], high[number]) for number in found.offset_range.blocked}
    return [each for each in ask_about(bootstrap, settings, ends) if each.is_old]


def standstill_sentence(trouble: str) -> str:
    """Return the sentence about a job that cannot continue. trouble: the reason."""
    return f"the job does not go on: {hidden(trouble)}"


def _results(last: Results, topic: str, found: SinkStatus) -> Results:
    def tenths(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds, 1)

    rows = [
        ResultPartition(
            number,
            found.offsets.get(number),
            end,
            found.lag[number],
            tenths(found.lag_s[number]),
            found.offset_range.blocked.get(number, msgspec.UNSET),
        )
        for number, end in found.end.items()
    ]
    return Results(
        last.job,
        last.store,
        last.place,
        topic,
        found.generation,
        rows,
        found.total_lag,
        tenths(found.total_lag_s),
        datetime.now(UTC).isoformat(timespec="milliseconds"),
        standstill_sentence(found.trouble) if found.trouble else None,
        name=last.name,
        command=last.command,
    )
