"""Rule for the records of a raw topic: a worker's rule without the settings that Spark does not support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka_ratchet.rule.identity import PRODUCER_HEADER, Identity, SequenceForm, SequenceSource
from kafka_ratchet.rule.settings import DEFAULTS, Late, RuleSettings
from kafka_ratchet.spark_sink.errors import OptionRefused

REPLAYS_HEADER: Final = "ratchet-replays"
"""Header of a record that `ratchet dead-letters replay` has sent again. Unless new, such a record becomes a reject."""

IDENTITIES: Final = "producer, key, partition or header:NAME, or a list of key and header:NAME"
SEQUENCES: Final = "header:NAME or none"
WORKERS: Final = (
    "Or let workers judge: they read fields and functions (docs/guide/kinds.md), and the sink reads the output"
)


@dataclass(frozen=True)
class JudgeRule:
    """Deduplication settings of a raw topic, named as in a stream's settings.

    Raises:
        OptionRefused: a setting is invalid, or only workers support it.
    """

    topic: str
    """Raw topic, as part of the rule: last sequences of one topic mean nothing for another topic."""
    identity: tuple[str, ...] = (str(DEFAULTS["identity"]),)
    sequence: str = str(DEFAULTS["sequence"])
    sequence_form: str = DEFAULTS["sequence_form"].value
    reorder_window: int = DEFAULTS["reorder_window"]
    late: Late = DEFAULTS["late"]

    def __post_init__(self) -> None:
        try:
            settings = self.settings
        except ValueError as error:
            raise OptionRefused(f"from_input: {error}") from None
        for part in settings.identity.parts:
            if part.kind in ("field", "function"):
                raise OptionRefused(f"identity {str(part)!r}: with from_input, Spark reads {IDENTITIES}. {WORKERS}")
        if settings.sequence.kind not in ("header", "none"):
            raise OptionRefused(
                f"sequence {self.sequence!r}: with from_input, Spark reads sequences from {SEQUENCES}. {WORKERS}"
            )

    @property
    def settings(self) -> RuleSettings:
        """Return the settings in the type that workers use."""
        identity, sequence = Identity.parse(self.identity), SequenceSource.parse(self.sequence)
        return RuleSettings(identity, sequence, SequenceForm(self.sequence_form), self.reorder_window, self.late)

    @property
    def headers(self) -> tuple[str | None, ...]:
        """Return the header of each part of the identity; None for other kinds of parts."""
        is_header = ("header", "producer")
        parts = self.settings.identity.parts
        return tuple((part.name or PRODUCER_HEADER) if part.kind in is_header else None for part in parts)

    @property
    def sequence_header(self) -> str | None:
        """Return the header with the sequence; None without sequences.

        Without sequences, an identity is either new or a duplicate.
        """
        return self.settings.sequence.name or None

    @property
    def is_guessed(self) -> bool:
        """Return True if the format of sequences is not set, so that Spark guesses it."""
        return self.sequence_header is not None and self.sequence_form == SequenceForm.GUESS

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as they are stored with the rows, and compared at each start."""
        return {
            "topic": self.topic,
            "identity": list(self.identity),
            "sequence": self.sequence,
            "sequence_form": self.sequence_form,
            **({"reorder_window": self.reorder_window, "late": self.late} if self.reorder_window else {}),
        }


def described(rule: dict[str, Any] | None) -> str:
    """Describe stored deduplication settings; None: workers deduplicated the rows."""
    if rule is None:
        return "records that workers have judged"
    parts = [f"{name} {value if isinstance(value, str | int) else ', '.join(value)}" for name, value in rule.items()]
    return f"its own judging ({'; '.join(parts)})"


def identity_parts(given: str) -> tuple[str, ...]:
    """Split the text of an identity setting into its parts.

    Raises:
        OptionRefused: the text is not an identity.
    """
    try:
        return tuple(str(part) for part in Identity.parse(given).parts)
    except ValueError as error:
        raise OptionRefused(f"identity: {error}") from None


def require_without(what: Sequence[str]) -> None:
    """Refuse a stream with settings that only workers support.

    Args:
        what: names of the stream's settings that only workers support; empty: the stream has no such setting.

    Raises:
        OptionRefused: there is such a setting.
    """
    if what:
        raise OptionRefused(
            f"from_input: the stream's setting {what[0]} is supported by workers only. Remove the setting; or "
            "remove from_input, and let workers deduplicate the topic"
        )
