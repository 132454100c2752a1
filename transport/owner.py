"""Owner of a changelog partition: the topics and rules of its positions and sequences.

One entry of each changelog partition, committed at the first start and again whenever it changes:

    b"o"      UTF-8 JSON, see `Owner`

A lane resumes from numbers: an input offset, a changelog offset, a sequence. A number means nothing without its topic
or rule. A topic may have been deleted and created again under its name. Two pairs of application and stream may have
the same changelog name. A rule may have been edited after the state was written. So a lane that takes over first
compares this entry with the present topics and rules, and halts if they differ. The entry also records the operators'
decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.errors import OwnerDiffers
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.record_batch import RecordBatch

KEY: Final = b"o"
FORMAT: Final = 1
"""Format of the entry, and so of the whole changelog partition. Lanes refuse a newer format."""
FIRST_RULE: Final = frozenset({"identity", "sequence", "sequence_form", "output"})
"""Settings of a rule in every owner entry since the first version. An entry has a later setting only if its value is
not the default."""
RECORDS, AGENTS, UNDECIDED = "records as they came", "what agents yield", "undecided"
"""Values of a rule's setting "output", which describe the content of the output topic.

RECORDS is the default. UNDECIDED is written by an operator's decision, and by an import before the first record. It
accepts either of the others afterwards.
"""
NEWEST_DECISIONS: Final = 100
"""Number of newest decisions that an owner entry keeps. The entry has to fit a record, and each decision may have a
long reason."""
INPUT, OUTPUT, CHANGELOG, POLICY = "input", "output", "changelog", "policy"
"""Roles of a topic in a stream."""


class Topic(msgspec.Struct, frozen=True):
    """Topic's name and id. id: in the base64 text that Kafka's tools print."""

    name: str
    id: str

    def __str__(self) -> str:
        return f"{self.name} (id {self.id})"


class Mark(msgspec.Struct, frozen=True):
    """State of a partition when an operator made a decision, stored for `ratchet verify`.

    rule: stream settings for the records before the decision
    output, dead_letters, duplicates: ends of the partition in these topics; 0 where the stream has no such topic.
    intervals, edits: number of policy intervals and of edits in the changelog
    identities: number of identities in the table
    replaced: topics (`INPUT`, `OUTPUT`, `POLICY`) that the stream replaced with the decision
    """

    rule: dict[str, str]
    output: int
    dead_letters: int
    duplicates: int
    intervals: int
    edits: int
    identities: int
    replaced: tuple[str, ...] = ()


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """Decision of an operator about a partition.

    at: ISO 8601, UTC; by: user and machine; what: the command line; reason: the operator's reason; before, after: the
    next input offset before and after the decision; None if unknown. mark: state of the partition then; None if not
    recorded
    """

    at: str
    by: str
    what: str
    reason: str
    before: int | None = None
    after: int | None = None
    mark: Mark | None = None

    @property
    def forgets(self) -> bool:
        """Return True if the decision deleted the last sequences of all identities."""
        return "--forget" in self.what.split()


class DuplicatesFrom(msgspec.Struct, frozen=True, omit_defaults=True):
    """Topic that receives dropped records, from an input offset on. topic: None if dropped records are only counted."""

    start: int
    topic: Topic | None = None


class JudgingFrom(msgspec.Struct, frozen=True):
    """Deduplication settings other than the defaults, from an input offset on.

    These settings may change while a table has state, unlike those of a rule (docs/decisions/0039).
    """

    start: int
    settings: dict[str, str]


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Owner entry of a changelog partition: the application, rule and topics that its state belongs to.

    app, stream: names of application and stream.
    rule: settings that the state depends on, by name: "identity", "sequence", ..., and "output" (see `RECORDS`).
    topics: topics by their role in the stream; see `INPUT`.
    decisions: operators' decisions, the newest last.
    broken: loss found in the input's log; "" without one. Retention may remove the evidence; only an operator's
        decision clears the text.
    duplicates: topics of dropped records, by rising offset; before the first, dropped records were only counted.
    judging: changed deduplication settings, by rising offset; before the first, the defaults applied.
    """

    app: str
    stream: str
    rule: dict[str, str]
    topics: dict[str, Topic]
    decisions: tuple[Decision, ...] = ()
    broken: str = ""
    duplicates: tuple[DuplicatesFrom, ...] = ()
    judging: tuple[JudgingFrom, ...] = ()
    format: int = FORMAT

    def pack(self) -> tuple[bytes, bytes]:
        """Return key and value of the changelog entry."""
        whole = msgspec.structs.replace(self, decisions=self.decisions[-NEWEST_DECISIONS:])
        return KEY, msgspec.json.encode(msgspec.to_builtins(whole) | {"format": self.format})

    @classmethod
    def unpack(cls, value: bytes) -> Owner:
        """Decode the value of an owner entry.

        Raises:
            OwnerDiffers: the entry has a newer format, or another program wrote it.
        """
        try:
            known = _FORMAT_OF.decode(value).format
            if known > FORMAT:
                raise OwnerDiffers(
                    f"the owner entry was written in format {known} by a newer Ratchet, and this version reads "
                    f"format {FORMAT}. Run the newer version"
                )
            return _OWNER_OF.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise OwnerDiffers(
                f"the owner entry cannot be read ({error}). Check that no other program writes to this topic"
            ) from None

    def rule_differences(self, now: Owner) -> list[str]:
        """Return one phrase for each rule setting that differs between this owner and the present one."""
        found = []
        for name in sorted(now.rule.keys() | self.rule.keys()):
            before, present = self.rule.get(name), now.rule.get(name)
            if name in FIRST_RULE and (name == "output" or before is None or present is None):
                continue
            if before != present:
                found.append(
                    f"its records were judged with {_setting(name, before)}, but the settings say {_quote(present)}"
                )
        return found

    def has_other_topic(self, part: str, now: Owner) -> bool:
        """Return True if this owner and the present one differ in the topic of a role (`INPUT`, ...)."""
        topic, here = self.topics.get(part), now.topics.get(part)
        return topic is not None and here is not None and topic != here

    def comparable(self, now: Owner, *, has_processed: bool) -> Owner:
        """Return this owner without the differences that an operator may still make.

        Nothing depends on the rule and the topics of the first start until the partition has processed a record. So the
        operator may correct a setting or a misspelt topic name until then. A topic created again under its name stays a
        difference, because its unread records are lost.

        Args:
            now: owner with the present topics and rule.
            has_processed: True if the partition has processed a record, or state was imported.
        """
        if has_processed or self.decisions:
            return self
        named = ((part, self.topics.get(part), now.topics.get(part)) for part in (INPUT, OUTPUT, POLICY))
        topics = {part: there for part, held, there in named if held and there and held.name != there.name}
        # Timers write to the output without a record.
        kept = {"output": AGENTS} if self.rule.get("output") == AGENTS else {}
        found = msgspec.structs.replace(self, rule={**now.rule, **kept}, topics={**self.topics, **topics})
        # Neither a loss nor the offsets of another input mean anything.
        return msgspec.structs.replace(found, broken="", duplicates=()) if INPUT in topics else found

    def differences(self, now: Owner) -> list[str]:
        """Return one phrase for each difference between this owner and the present one."""
        found = []
        if (self.app, self.stream) != (now.app, now.stream):
            found.append(
                f"it belongs to application {self.app!r}, stream {self.stream!r}, and this is application {now.app!r}, "
                f"stream {now.stream!r}"
            )
        found += self.rule_differences(now)
        held, holds = self.rule.get("output", RECORDS), now.rule.get("output", RECORDS)
        if UNDECIDED not in (held, holds) and held != holds:
            found.append(
                f"its output topic contains {held}, but this worker would write {holds} (`ratchet worker --app`)"
            )
        for part in (INPUT, OUTPUT, CHANGELOG, POLICY):
            if self.has_other_topic(part, now):
                found.append(f"its {part} was {self.topics[part]}, and is {now.topics[part]} now")
        return found


def states_its_form(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return True if `sequence_form` has changed from "guess" to "integer", and no other setting except "output"."""
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)} - {"output"}
    forms = before.get("sequence_form"), now.get("sequence_form")
    return changed == {"sequence_form"} and forms == ("guess", "integer")


def _setting(name: str, value: str | None) -> str:
    return f"the default of {name}" if value is None else f"{name} = {value!r}"


def _quote(value: str | None) -> str:
    return "nothing of it" if value is None else repr(value)


class _Format(msgspec.Struct):
    format: int


# Made at import, not at the first read: stores are opened in several threads, and msgspec 0.22 crashes the process if
# two threads make it inspect a type for the first time.
_FORMAT_OF: Final = msgspec.json.Decoder(_Format)
_OWNER_OF: Final = msgspec.json.Decoder(Owner)


def indices(batch: RecordBatch) -> NDArray[np.intp]:
    """Return the indices of the owner entries in a changelog batch, intp[entries]."""
    named = np.flatnonzero(batch.columns[records.KEY_LENGTH] == len(KEY))
    found: NDArray[np.intp] = named[batch.data[batch.columns[records.KEY, named]] == KEY[0]]
    return found


def read(batch: RecordBatch, index: int) -> Owner:
    """Decode the owner entry at an index of a batch.

    Raises:
        OwnerDiffers: the entry has a newer or foreign format; the text names topic, partition and offset.
    """
    try:
        return Owner.unpack(batch.value(index) or b"")
    except OwnerDiffers as error:
        offset = int(batch.offsets[index])
        raise OwnerDiffers(f"{batch.topic}, partition {batch.partition}, offset {offset}: {error}") from None
