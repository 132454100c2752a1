"""Readiness of a worker for probes. A worker is ready if it processes all its assigned partitions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from kafka_ratchet.transport.assignment import Lanes
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.stalls import StallCause

MOST: Final = 20
"""Maximum number of listed partitions; further ones are only counted."""


def why_not_ready(lanes: Lanes, streams: Mapping[str, str]) -> list[str]:
    """Return the reasons why a worker is not ready, one line each; an empty list if it is ready.

    A halted partition is no reason: it would halt on any worker, and waits for an operator. The lines contain no error
    texts.

    streams: names of the streams, by changelog topic
    """
    if not lanes.has_joined:
        return ["the worker has not joined its group"]
    states = {key: "about to start" for key in lanes.waiting}
    for key, lane in lanes.running.items():
        if not lane.status.halted and lane.status.state is not LaneState.RUNNING:
            states[key] = str(lane.status.state)
    lines = [f"{_named(key, streams)}: {state}" for key, state in sorted(states.items())]
    lines += [] if lines else _without_kafka(lanes)
    return lines[:MOST] + ([f"and {len(lines) - MOST} more"] if len(lines) > MOST else [])


def _without_kafka(lanes: Lanes) -> list[str]:
    """Return one line if Kafka answers none of the lanes, as in a worker without network; else no line."""
    found = [lane.stall() for lane in lanes.running.values() if not lane.status.halted]
    silent = [stall for stall in found if stall is not None and stall.cause == StallCause.NO_ANSWER]
    if not found or len(silent) < len(found):
        return []
    since_s = time.time() - min(stall.since for stall in silent)
    return [f"Kafka has answered none of {len(found)} partitions for {since_s:.0f} s"]


def halted(lanes: Lanes, streams: Mapping[str, str]) -> list[str]:
    """Return one line for each halted partition, with the class of its error."""
    found = [(key, lane.status.halted) for key, lane in sorted(lanes.running.items()) if lane.status.halted]
    return [f"{_named(key, streams)}: halted ({reason}), which a restart does not change" for key, reason in found]


def stalled(lanes: Lanes, streams: Mapping[str, str]) -> list[str]:
    """Return one line for each stalled partition that is not halted, with the cause.

    Stalled partitions alone do not make a worker unready, because another worker would not get further. Only if Kafka
    answers none of its partitions, the worker is unready. The lines omit details.
    """
    found = [(key, lane.stall()) for key, lane in sorted(lanes.running.items()) if not lane.status.halted]
    lines = [f"{_named(key, streams)}: stands still ({stall.cause})" for key, stall in found if stall is not None]
    return lines[:MOST] + ([f"and {len(lines) - MOST} more"] if len(lines) > MOST else [])


def _named(key: tuple[str, int], streams: Mapping[str, str]) -> str:
    return f"stream {streams[key[0]]}, partition {key[1]}"
