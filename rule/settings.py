"""Settings of the rule, declared once: defaults, bounds, meaning, and the parties that have to agree on them.

The settings of a stream, the rules of a worker group, the owner entry of a partition and the Spark job are derived from
`RuleSettings`. `docs/reference/settings.md` explains each setting to users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple

from kafka_ratchet.rule.identity import (
    PRODUCER_HEADER,
    SEQUENCE_HEADER,
    Identity,
    SequenceForm,
    SequenceSource,
)

Late = Literal["drop", "dead-letter"]
Conflicts = Literal["ignore", "count", "dead-letter"]

WINDOW_MOST: Final = 4096
"""Maximum of reorder_window."""


BY_DEFAULT: Final = SequenceSource("header", SEQUENCE_HEADER)


class Setting(NamedTuple):
    """Declaration of one setting.

    Args:
        about: help text of options.
        agreed: "always" if the rules of a worker group always contain the setting; "if set" if the rules contain the
            setting only with a value other than the default.
        entry: field of a partition's owner entry that contains the setting. "rule": if the setting changes, existing
            state becomes meaningless. "judging": the setting may change while there is state; the entry omits its
            default.
        spark: whether Spark judges by the setting too.
    """

    about: str
    agreed: Literal["always", "if set"]
    entry: Literal["rule", "judging"]
    spark: bool = True


SETTINGS: Final = {
    "identity": Setting(
        "identity that sequences belong to: producer, key, partition, header:NAME, or several", "always", "rule"
    ),
    "sequence": Setting("header:NAME; or none, if each identity is the id of one record", "always", "rule"),
    "sequence_form": Setting("form of a sequence in a header", "always", "rule"),
    "reorder_window": Setting(
        "number of sequences below the last one that may come late, each once", "if set", "judging"
    ),
    "late": Setting("result of a record below the window", "if set", "judging"),
    "conflicts": Setting("result of a record with the last sequence and another value", "if set", "judging", False),
    "dense": Setting("sequences without holes, so that missing ones are counted", "if set", "judging", False),
}
"""Declarations of the fields of `RuleSettings`, by name."""


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Settings for judging the records of a stream.

    Raises:
        ValueError: two settings contradict each other, or one is outside of its bounds; the error names them.
    """

    identity: Identity = Identity.PRODUCER
    sequence: SequenceSource = BY_DEFAULT
    sequence_form: SequenceForm = SequenceForm.GUESS
    reorder_window: int = 0
    late: Late = "drop"
    conflicts: Conflicts = "ignore"
    dense: bool = False

    def __post_init__(self) -> None:
        check_window(self.reorder_window)
        has_form = self.sequence_form is not SequenceForm.GUESS
        if has_form and self.sequence.kind == "none":
            raise ValueError(
                'sequence_form applies to sequences in a header, and this stream has sequence = "none". '
                "Remove sequence_form"
            )
        if has_form and self.sequence.kind != "header":
            raise ValueError(
                "sequence_form applies to sequences in a header, and this stream reads them from a "
                f"{self.sequence.kind}. Remove sequence_form"
            )
        names_many = self.identity == Identity.PARTITION or self.identity.header == PRODUCER_HEADER
        if self.sequence.kind == "none" and names_many:
            raise ValueError(
                f'sequence = "none" lets one record of each identity pass, and identity = "{self.identity}" gives many '
                "records the same one. Name what is different in each event, such as identity = "
                '"header:NAME", "field:PATH" or "key"'
            )
        if self.late != "drop" and not self.reorder_window:
            raise ValueError(
                f'late = "{self.late}" applies to records below the reorder_window, and this stream has none. Set '
                "reorder_window, or remove late"
            )
        if self.sequence.kind == "none" and (self.reorder_window or self.dense):
            raise ValueError(
                'reorder_window and dense need numbered records, and this stream has sequence = "none". Remove them'
            )

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> RuleSettings:
        """Parse settings from texts as `texts` returns them; a missing setting gets its default.

        Raises:
            ValueError: a setting cannot be parsed; see also the class.
        """
        read: dict[str, Any] = {
            "identity": Identity.parse,
            "sequence": SequenceSource.parse,
            "sequence_form": SequenceForm,
            "reorder_window": int,
            "dense": "True".__eq__,
        }
        return cls(**{name: read.get(name, str)(text) for name, text in texts.items()})

    def texts(self, names: frozenset[str], *, if_set: bool = False) -> dict[str, str]:
        """Return settings as texts, in the order of their declaration.

        Args:
            names: names of the settings to include.
            if_set: whether to leave out defaults.
        """
        return {
            name: str(value)
            for name in SETTINGS
            if name in names and ((value := getattr(self, name)) != DEFAULTS[name] or not if_set)
        }

    @property
    def agreed(self) -> dict[str, str]:
        """Return the settings that all workers of a group have to agree on, as texts."""
        return self.texts(AGREED) | self.texts(AGREED_IF_SET, if_set=True)

    @property
    def entry(self) -> dict[str, str]:
        """Return the settings that must not change over existing state, as texts.

        The field `rule` of a partition's owner entry in the changelog contains these settings.
        """
        return self.texts(RULE)

    @property
    def judging(self) -> dict[str, str]:
        """Return the non-default settings that may change over existing state, as texts.

        The field `judging` of a partition's owner entry in the changelog contains these settings.
        """
        return self.texts(JUDGING, if_set=True)


def check_window(size: int) -> int:
    """Return a reorder window after checking its bounds.

    Raises:
        ValueError: the window is outside of its bounds.
    """
    if not 0 <= size <= WINDOW_MOST:
        raise ValueError(f"reorder_window {size} is not between 0 and {WINDOW_MOST}. Write a number in this range")
    return size


DEFAULTS: Final[dict[str, Any]] = {each.name: each.default for each in fields(RuleSettings)}
DEFAULT_TEXTS: Final = RuleSettings().texts(frozenset(SETTINGS))

AGREED: Final = frozenset(name for name, each in SETTINGS.items() if each.agreed == "always")
AGREED_IF_SET: Final = frozenset(SETTINGS) - AGREED
RULE: Final = frozenset(name for name, each in SETTINGS.items() if each.entry == "rule")
JUDGING: Final = frozenset(SETTINGS) - RULE
SPARK: Final = frozenset(name for name, each in SETTINGS.items() if each.spark)
"""Names of the settings that Spark judges by."""
