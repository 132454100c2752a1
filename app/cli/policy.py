"""`ratchet policy`: switches deduplication on and off, for one stream or for all, while workers run."""

from __future__ import annotations

import json as json_text
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafka_ratchet.app.cli.options import Config, Json

if TYPE_CHECKING:
    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.app.worker.policy import Policies

policy = typer.Typer(
    no_args_is_help=True, help="Switch deduplication on and off, for one stream or for all, while workers run."
)

OneStream = Annotated[str | None, typer.Option("--stream", help="Only this stream.")]
All = Annotated[bool, typer.Option("--global", help="All streams without a policy of their own.")]


class OnOff(StrEnum):
    """Argument of `ratchet policy set`: on or off."""

    ON = "on"
    OFF = "off"


@policy.command(epilog="Example: ratchet policy get")
def get(stream: OneStream = None, globally: All = False, config: Config = None, json: Json = False) -> None:
    """Show whether each stream is deduplicated, and which policy or setting decides it."""
    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.operations.policy_topic import read_policies
    from kafka_ratchet.app.settings import load

    settings = load(config)
    _check_target(settings, stream, globally, needed=False)
    with named_broker(settings) as bootstrap:
        _show(read_policies(settings, bootstrap), stream, globally, json)


@policy.command("set", epilog="Example: ratchet policy set off --stream orders")
def set_(
    deduplicate: Annotated[OnOff, typer.Argument(help="on; or off: every record is forwarded, duplicates included.")],
    stream: OneStream = None,
    globally: All = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Switch deduplication on or off. Running workers apply the change with the next batch of each partition."""
    _write(stream, globally, config, json, deduplicate is OnOff.ON)


@policy.command(epilog="Example: ratchet policy unset --stream orders")
def unset(stream: OneStream = None, globally: All = False, config: Config = None, json: Json = False) -> None:
    """Remove a policy. Then the setting, or the global policy, decides."""
    _write(stream, globally, config, json, None)


def _write(stream: str | None, globally: bool, config: Any, json: bool, deduplicate: bool | None) -> None:
    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.operations.policy_topic import application_sentence, read_policies, write_policy
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.app.verify.newest import refuse_without_sequence

    settings = load(config)
    _check_target(settings, stream, globally, needed=True)
    with named_broker(settings) as bootstrap:
        if deduplicate:
            refuse_without_sequence(settings, bootstrap, stream)
        offset = write_policy(settings, bootstrap, stream, deduplicate)
        policies = read_policies(settings, bootstrap)
        if not json:
            typer.echo(
                f"written at offset {offset} of {policies.changelog}. {application_sentence(settings, bootstrap)}"
            )
        _show(policies, stream, globally, json, offset)


def _check_target(settings: Settings, stream: str | None, globally: bool, *, needed: bool) -> None:
    """Check the target of a command: --stream and --global exclude each other.

    needed: True to require one of them

    Raises:
        SettingsError: both are given, or one is required and none is given, or the stream does not exist.
    """
    from kafka_ratchet.errors import SettingsError

    chosen = (stream is not None) + globally
    if chosen > 1 or (needed and not chosen):
        raise SettingsError("name the target of the policy: give either --stream NAME or --global")
    if stream is not None:
        settings.stream(stream)


def _show(policies: Policies, stream: str | None, globally: bool, json: bool, offset: int | None = None) -> None:
    from kafka_ratchet.app.inspect.policy import policy_sentence, policy_state, sources_phrase

    found = policy_state(policies, [name for name in policies.settings.streams if stream in (None, name)], offset)
    if json:
        typer.echo(json_text.dumps(found.as_dict()))
        return
    if stream is None:
        typer.echo(f"global: {sources_phrase(found.for_all)}")
    if not globally:
        for each in found.streams.values():
            typer.echo(policy_sentence(each))
