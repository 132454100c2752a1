"""Repeated comparison: metrics for Prometheus, and a line for each run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from kafka_ratchet.app.compare.comparison import Comparer, Comparison, Exit
from kafka_ratchet.app.compare.engine import VERDICTS, Verdict
from kafka_ratchet.errors import RatchetError, SettingsError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

EVERY_LEAST_S: Final = 1.0

HELP: Final[Mapping[Verdict, str]] = {
    "lost": "Records of the source that are not in the target.",
    "doubled": "Surplus rows of the target, with an identity that it has already.",
    "altered": "Rows of the target with values that the source does not have.",
    "unexpected": "Rows of the target that the source does not have.",
    "in_flight": "Records of the source that are not in the target, and younger than the grace.",
}


class Gauges:
    """Prometheus gauges of the newest comparison.

    Args:
        source: source's address, used as label `from`.
        target: target's address, used as label `to`.
        every_s: seconds from the start of one run to the start of the next.

    Raises:
        SettingsError: prometheus-client is not installed.
    """

    def __init__(self, source: str, target: str, every_s: float) -> None:
        try:
            from prometheus_client import CollectorRegistry, Gauge
        except ModuleNotFoundError:
            raise SettingsError(
                "--metrics-port: the package prometheus-client is not installed: pip install 'kafka-ratchet[verify]'"
            ) from None
        self.registry: CollectorRegistry = CollectorRegistry()
        labels = {"from": source, "to": target}

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"ratchet_verify_{name}", text, list(labels), registry=self.registry)

        self._labels = labels
        self._counts = {name: gauge(name, HELP[name]) for name in VERDICTS}
        self._oldest = gauge("oldest_in_flight_seconds", "Age of the oldest record in flight; 0: there is none.")
        self._ran = gauge(
            "last_run_timestamp_seconds", "Time of the last comparison that ended; before the first, of the start."
        )
        self._ran.labels(**labels).set(time.time())  # so that an alert sees a first comparison that never ends
        # If the process dies in each first comparison, the time of the last run is always that of a recent start.
        started = gauge("started_timestamp_seconds", "Time of the start of the process.")
        started.labels(**labels).set(time.time())
        interval = gauge("interval_seconds", "Seconds from the start of one comparison to the start of the next.")
        interval.labels(**labels).set(every_s)
        self._readable = gauge(
            "complete", "1 if the last run read both sides whole and every row has the identity, else 0."
        )

    def show(self, result: Comparison) -> None:
        """Set the gauges from a comparison's result."""
        for name, gauge in self._counts.items():
            gauge.labels(**self._labels).set(getattr(result, name))
        self._oldest.labels(**self._labels).set(result.oldest_in_flight_s or 0)
        self._readable.labels(**self._labels).set(0 if result.unread or any(result.without_identity.values()) else 1)
        self._ran.labels(**self._labels).set(time.time())

    def fail(self) -> None:
        """Set the gauge that shows that a comparison failed."""
        self._readable.labels(**self._labels).set(0)


def watch(
    comparer: Comparer,
    every_s: float,
    show: Callable[[Comparison], None],
    fail: Callable[[RatchetError], None],
    stop: threading.Event,
) -> int:
    """Repeat a comparison until stopped; return the exit code of the last run.

    Args:
        comparer: comparison to repeat.
        every_s: seconds from the start of one run to the start of the next.
        show: function called with each result.
        fail: function called with the error of a failed run; the next run follows.
        stop: event that ends the repetition.

    Raises:
        SettingsError: the time between runs is too short.
    """
    if every_s < EVERY_LEAST_S:
        raise SettingsError(f"--every: the time between runs is too short; write {EVERY_LEAST_S:g} s or more")
    code = int(Exit.OPEN)
    while not stop.is_set():
        began = time.monotonic()
        try:
            result = comparer.run()
        except SettingsError:
            raise
        except RatchetError as error:
            comparer.roll_back()
            code = int(Exit.FAILED)
            fail(error)
        else:
            code = result.exit_code
            show(result)
        stop.wait(max(0.0, every_s - (time.monotonic() - began)))
    return code
