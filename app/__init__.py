"""Application: settings, worker, command line, embedded Kafka and web page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafka_ratchet.agents.program import App
    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.app.worker.application import Application

__all__ = ["create_app"]


def create_app(settings: Settings, bootstrap: str | None = None, program: App | None = None) -> Application:
    """Return a worker's application, to run inside another program's process.

    `await application.start()` joins the consumer group, and `await application.stop()` leaves it. `application.app` is
    the Faust app, for timers and tasks. It refuses agents and tables; define those in `program`.

    Args:
        settings: from `kafka_ratchet.app.settings.load`
        bootstrap: host:port[,host:port]; None: `settings.bootstrap`
        program: program with agents and tables; None: each record that is no duplicate is forwarded unchanged

    Raises:
        SettingsError: bootstrap or streams are missing, or an extractor cannot be imported.
        TopicError: a topic is missing or taken, or does not fit the settings.
        BrokerUnavailable: Kafka did not answer.
        RatchetError: see `kafka_ratchet.app.worker.steps.refuse_abandoned`.
    """
    # Imported here, so that `import app` stays light for the commands that need none of it.
    from kafka_ratchet.app.worker.application import Application
    from kafka_ratchet.app.worker.global_tables import prepare_global_tables
    from kafka_ratchet.app.worker.sent_topics import prepare_sent_topics
    from kafka_ratchet.app.worker.steps import prepare_streams, refuse_abandoned, with_steps
    from kafka_ratchet.app.worker.topics import prepare_policy
    from kafka_ratchet.errors import SettingsError

    bootstrap = bootstrap or settings.bootstrap
    if bootstrap is None:
        raise SettingsError(
            "bootstrap is missing. Set it to the address of the Kafka cluster that has the streams' topics"
        )
    settings = with_steps(settings, program)
    prepare_policy(bootstrap, settings)
    refuse_abandoned(bootstrap, settings)
    topics = prepare_streams(bootstrap, settings, program)
    prepare_global_tables(bootstrap, settings, program.global_tables.values() if program else [])
    sends = prepare_sent_topics(bootstrap, settings, program, topics) if program else {}
    return Application(settings, bootstrap, topics, program, sends)
