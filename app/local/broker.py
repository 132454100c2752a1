"""Choice of the Kafka cluster for a command: the one in the settings, else an embedded broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafka_ratchet.app.local.connectivity import require_answer, wait_until_reachable
from kafka_ratchet.app.log_setup import say
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.transport.client.security import client_options

__all__ = ["ChosenBroker", "bootstrap_of", "choose_broker", "named_broker", "open_broker", "wait_until_reachable"]

TEMPORARY: Final = (
    "bootstrap is not set, so a temporary Kafka runs for this command, and is deleted with its topics at the end. To "
    "use another Kafka, set bootstrap in the settings file, or RATCHET_BOOTSTRAP"
)
"""Sentence of a command that starts an embedded broker of its own."""


@dataclass(frozen=True)
class ChosenBroker:
    """Kafka cluster in use: its address, and the folder of its logs if it is an embedded broker."""

    bootstrap: str
    log_folder: Path | None
    """Kafka's log.dirs, for an embedded broker; None for the Kafka in the settings."""


@contextmanager
def choose_broker(settings: Settings | None = None) -> Iterator[str]:
    """Yield the address of the Kafka to use; see `open_broker`. An embedded broker ends when the block ends."""
    with open_broker(settings) as chosen:
        yield chosen.bootstrap


def bootstrap_of(settings: Settings) -> str:
    """Return the address of the Kafka in the settings.

    Raises:
        SettingsError: bootstrap is missing.
    """
    if settings.bootstrap is None:
        raise SettingsError(
            "bootstrap is missing. Set it to the address of the workers' Kafka, in the settings file or in "
            "RATCHET_BOOTSTRAP"
        )
    return settings.bootstrap


@contextmanager
def named_broker(settings: Settings, *, as_worker: bool = True) -> Iterator[str]:
    """Yield the address of the Kafka in the settings, for a command that only reads.

    It neither starts a broker nor waits for the start of one.

    Args:
        settings: settings of the application.
        as_worker: True to also check the options of the worker's Kafka client.

    Raises:
        SettingsError: bootstrap is missing, or a client refuses its options.
        BrokerUnavailable: Kafka does not answer within a few seconds.
    """
    bootstrap = bootstrap_of(settings)
    if as_worker:
        client_options(bootstrap, settings.kafka)
    require_answer(bootstrap, settings.kafka)
    yield bootstrap


@contextmanager
def open_broker(settings: Settings | None = None) -> Iterator[ChosenBroker]:
    """Yield the Kafka to use, as soon as it answers.

    This is the Kafka at `settings.bootstrap`, or without settings at `RATCHET_BOOTSTRAP`. If no address is set, it is
    an embedded broker in a temporary folder, which needs Java. With settings, a sentence on standard error says so.

    Raises:
        BrokerUnavailable: Kafka at `bootstrap` did not answer within `settings.kafka_timeout_s`.
        SetupError: the embedded broker cannot be started.
    """
    is_command = settings is not None
    settings = settings or Settings(bootstrap=os.environ.get("RATCHET_BOOTSTRAP") or None)
    if settings.bootstrap is not None:
        wait_until_reachable(settings.bootstrap, settings.kafka, settings.kafka_timeout_s, say)
        yield ChosenBroker(settings.bootstrap, None)
        return
    from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker  # not loaded where a Kafka is named

    if is_command:
        say(TEMPORARY)
    with EmbeddedBroker() as embedded:
        yield ChosenBroker(embedded.bootstrap, embedded.data_folder)
