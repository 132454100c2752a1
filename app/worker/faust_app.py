"""Faust app of a worker, which joins the consumer group and assigns partitions.

It refuses ordinary Faust agents and tables, because they would work outside of the transactions: Faust reads
uncommitted records, commits offsets apart from its sends, and its tables have no changelog here. Timers, tasks, pages
and in-memory channels work as in Faust.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import faust
from faust.transport.drivers.aiokafka import Transport
from faust.types import ChannelT, TopicT

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.transport.assignment import FAUST_LOGGER, LaneTableManager
from kafka_ratchet.transport.assignor import RuledAssignor

REQUEST_SLACK_S: Final = 5.0
"""Seconds added to the timeout of a rebalance to get the timeout of a request.

With a shorter timeout the client would give up its request to join before the rebalance ends, and all members would
wait for this one. The timeout of a rebalance is the session timeout, which suffices: members learn of a rebalance with
their next heartbeat, and lanes continue to work during the rebalance.
"""


def _refuse(what: str) -> NoReturn:
    raise SettingsError(
        f"{what} would run outside the transactions: it could process records twice, or uncommitted ones, and tables "
        "would have no changelog. Write `@app.agent(app.stream(...))` and `app.Table(...)`, where app = "
        "kafka_ratchet.App(), and start the worker with --app; docs/guide/from-faust.md has more"
    )


class LanesTablesOnly(LaneTableManager):
    """Faust's table manager, restricted to the tables of the lanes."""

    logger = FAUST_LOGGER

    def add(self, table: Any) -> Any:
        """Register a table.

        Raises:
            SettingsError: the table is Faust's own: it would work outside the transactions, without a changelog.
        """
        if not getattr(table, "lane_owned", False):
            _refuse(f"Faust table {table.name}")
        return super().add(table)


class WorkerApp(faust.App):
    """Faust app that hosts the lanes and reads no topic itself."""

    logger = FAUST_LOGGER

    def agent(self, channel: Any = None, **options: Any) -> Any:
        """Register a Faust agent on an in-memory channel, as the lanes' channels are.

        Raises:
            SettingsError: the agent would read a topic.
        """
        if isinstance(channel, TopicT) or not isinstance(channel, ChannelT):
            _refuse("an ordinary Faust agent")

        def register(function: Any) -> Any:
            # Faust does the same, and adds a note for its autodiscovery, which is off. For that note Faust
            # resolves the path of every loaded module, at each start.
            made = self.conf.Agent(
                function,
                app=self,
                channel=channel,
                on_error=self._on_agent_error,
                help=function.__doc__,
                **{"use_reply_headers": True, **options},
            )
            self.agents[made.name] = made
            self.topics.beacon.add(made)
            return made

        return register

    actor = agent

    def _init_fixups(self) -> Any:
        """Return no fixups. Faust's search for them would read the metadata of every installed package."""
        return []

    def _new_transport(self) -> Any:
        """Return the transport for Kafka, without a search through the metadata of every installed package."""
        return Transport(self.conf.broker_consumer, self)

    def _new_conductor(self) -> Any:
        """Return Faust's register of subscribed topics, and have it refuse all but the lanes' changelogs.

        Every Faust stream over a topic registers here first. Faust's assignor needs the lanes' changelogs in it.
        """
        conductor = super()._new_conductor()
        register = conductor.add

        def add(topic: Any) -> None:
            if not (topic.topics and self.tables.changelog_topics.issuperset(topic.topics)):  # a pattern names none
                _refuse(f"a Faust stream over topic {topic}")
            register(topic)

        conductor.add = add
        return conductor


def faust_app(
    settings: Settings,
    bootstrap: str,
    options: Mapping[str, Any],
    rules: Mapping[str, str],
    instance_id: str | None = None,
) -> WorkerApp:
    """Return a worker's Faust app.

    Args:
        settings: all settings.
        bootstrap: host:port[,host:port].
        options: options of the Kafka client.
        rules: rules that members of the group must share.
        instance_id: static id in the group, with which a process gets its partitions back after a crash (KIP-345);
            None: no static id.
    """
    session_s = settings.session_timeout_ms / 1000
    return WorkerApp(
        settings.app,
        broker=[f"kafka://{server}" for server in bootstrap.split(",")],
        broker_credentials=credentials(options),
        broker_client_id=options.get("client_id", "ratchet"),
        broker_session_timeout=session_s,
        broker_heartbeat_interval=session_s / 5,
        broker_request_timeout=session_s + REQUEST_SLACK_S,
        broker_rebalance_timeout=session_s,
        consumer_group_instance_id=instance_id,
        TableManager=LanesTablesOnly,
        PartitionAssignor=RuledAssignor.of(rules),
        datadir=str(settings.state_folder / settings.app / "faust"),
        table_standby_replicas=settings.num_standby_replicas,
        topic_disable_leader=True,
        topic_allow_declare=False,  # kafka_ratchet.app.worker.topics has made them
        web_enabled=False,  # Faust's own endpoints are open to everyone
        web_host=settings.web.host,
        autodiscover=False,
    )


def credentials(options: Mapping[str, Any]) -> Any:
    """Return Faust's credentials for the options of a Kafka client; None for the protocol PLAINTEXT."""
    protocol = options.get("security_protocol", "PLAINTEXT")
    if provider := options.get("sasl_oauth_token_provider"):
        return faust.OAuthCredentials(oauth_cb=provider, ssl_context=options.get("ssl_context"))
    if protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=options.get("sasl_plain_username"),
            password=options.get("sasl_plain_password"),
            mechanism=options.get("sasl_mechanism", "PLAIN"),
            ssl_context=options.get("ssl_context"),
        )
    return faust.SSLCredentials(context=options["ssl_context"]) if protocol == "SSL" else None
