"""Deduplication policies: documents, columns and sentences for `ratchet policy` and the page."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kafka_ratchet.app.inspect.columns import Column
from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.worker.policy import NOTHING, Policies, PolicyOrigin


@dataclass(frozen=True, slots=True)
class StreamPolicy(Document):
    """Deduplication of a stream, and the places that can decide it. policy, setting: None: not set."""

    json_keys = ("deduplicate", "origin", "policy", "setting")

    stream: str
    deduplicate: bool
    origin: PolicyOrigin
    policy: bool | None
    setting: bool | None

    @property
    def switch(self) -> str:
        """Return the state of deduplication, as a word."""
        return switch_word(self.deduplicate)

    @property
    def change(self) -> str:
        """Return the command that changes the state; "" if the settings switch deduplication off."""
        if not self.deduplicate and self.origin in (PolicyOrigin.STREAM_SETTING, PolicyOrigin.GLOBAL_SETTING):
            return ""
        word = switch_word(not self.deduplicate)
        return shlex.join(["ratchet", "policy", "set", word, "--stream", self.stream])


@dataclass(frozen=True, slots=True)
class GlobalPolicy(Document):
    """Policy and setting for all streams without one of their own. None: not set."""

    policy: bool | None
    setting: bool | None


@dataclass(frozen=True, slots=True)
class PolicyState(Document):
    """Policies as `ratchet policy` shows them. offset: offset of the record just written; None: none was written."""

    json_keys = ("global=for_all", "streams", "offset?")

    for_all: GlobalPolicy
    streams: dict[str, StreamPolicy]
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class PolicyRow(Document):
    """Deduplication of a stream as the page shows it."""

    json_keys = (
        "stream=policy.stream",
        "deduplicate=policy.deduplicate",
        "origin=policy.origin",
        "change=policy.change",
    )

    policy: StreamPolicy


@dataclass(frozen=True, slots=True)
class PolicyRecord(Document):
    """Record of the policy topic. by: user@machine of the writer; None: unknown."""

    offset: int
    at: str
    by: str | None
    about: str
    says: str


@dataclass(frozen=True, slots=True)
class PolicyPage(Document):
    """Policies as the page shows them. left_out: number of older offsets of the topic that `history` leaves out."""

    topic: str
    streams: list[PolicyRow]
    history: list[PolicyRecord]
    left_out: int


COLUMNS: Final = (
    Column[StreamPolicy]("stream", "Stream", "text", is_row_heading=True),
    Column[StreamPolicy]("switch", "Deduplication", "state"),
    Column[StreamPolicy]("origin", "Origin", "text"),
)


def stream_policies(policies: Policies, streams: Collection[str]) -> list[StreamPolicy]:
    """Return the deduplication of each of these streams."""
    settings = policies.settings
    return [
        StreamPolicy(
            name,
            *policies.effective(name),
            policies.stored.get(name, NOTHING).deduplicate,
            settings.streams[name].deduplicate,
        )
        for name in streams
    ]


def policy_state(policies: Policies, streams: Collection[str], offset: int | None = None) -> PolicyState:
    """Return the policies for all streams and for these. offset: offset of the record just written."""
    for_all = GlobalPolicy(policies.stored.get(None, NOTHING).deduplicate, policies.settings.deduplicate)
    return PolicyState(for_all, {each.stream: each for each in stream_policies(policies, streams)}, offset)


def switch_word(deduplicate: bool | None) -> str:
    """Return the word for a policy or a setting: "on", "off", or "unset" for None."""
    return "unset" if deduplicate is None else "on" if deduplicate else "off"


def sources_phrase(found: GlobalPolicy | StreamPolicy) -> str:
    """Return the phrase with policy and setting."""
    return f"policy {switch_word(found.policy)}, setting {switch_word(found.setting)}"


def policy_sentence(found: StreamPolicy) -> str:
    """Return the sentence about the deduplication of a stream."""
    return f"{found.stream}: {found.switch} ({found.origin}); {sources_phrase(found)}"
