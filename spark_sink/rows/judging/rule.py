"""By what the records of a raw topic are judged, and what of a worker's rule Spark has no words for."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from kafka_ratchet.spark_sink.errors import OptionRefused

PRODUCER_HEADER: Final = "ratchet-producer"
SEQUENCE_HEADER: Final = "ratchet-sequence"
REPLAYS_HEADER: Final = "ratchet-replays"
"""Header of a record that `ratchet dead-letters replay` has sent again: where it is not new, it is a reject."""

MAX_IDENTITY_BYTES: Final = 1024
"""Longer identities are invalid, as for a worker."""

MAX_PARTS: Final = 8
MAX_WINDOW: Final = 4096

SEQUENCE_MAX: Final = 2**63 - 1

Form = Literal["guess", "text", "integer", "little-endian"]
Late = Literal["drop", "dead-letter"]

IDENTITIES: Final = "producer, key, partition or header:NAME, or a list of key and header:NAME"
SEQUENCES: Final = "header:NAME or none"
WORKERS: Final = (
    "Or let workers judge: they read fields and functions (docs/guide/kinds.md), and the sink reads the output"
)

_BETWEEN_PARTS: Final = re.compile(r"\s*,\s*(?=key\s*(?:,|$)|(?:header|field|function):)")
"""A comma that is part of a header's name stays in it. As `kafka_ratchet.rule.identity` has it."""


@dataclass(frozen=True)
class JudgeRule:
    """How records are judged. The words are those of a stream's settings.

    Raises:
        OptionRefused: a part of it cannot be, or only workers have it.
    """

    topic: str
    """The raw topic. It is part of the rule: last sequences of one topic say nothing of another."""
    identity: tuple[str, ...] = ("producer",)
    sequence: str = f"header:{SEQUENCE_HEADER}"
    sequence_form: Form = "guess"
    reorder_window: int = 0
    late: Late = "drop"

    def __post_init__(self) -> None:
        if not 1 <= len(self.identity) <= MAX_PARTS:
            raise OptionRefused(f"identity: an identity has 1 to {MAX_PARTS} parts")
        for part in self.identity:
            _require_identity(part, alone=len(self.identity) == 1)
        if len(set(self.identity)) < len(self.identity):
            raise OptionRefused("identity: a part of it is there twice. Remove one")
        kind, _, name = self.sequence.partition(":")
        if self.sequence != "none" and (kind != "header" or not name):
            raise OptionRefused(
                f"sequence {self.sequence!r}: with from_input, Spark reads sequences from {SEQUENCES}. {WORKERS}"
            )
        if self.sequence == "none" and self.identity in {("partition",), ("producer",), (f"header:{PRODUCER_HEADER}",)}:
            raise OptionRefused(
                f'sequence "none" lets one record of each identity pass, and identity {self.identity[0]!r} gives many '
                "records the same one. Name what is different in each event, such as header:NAME or key"
            )
        self._require_window()

    def _require_window(self) -> None:
        if not 0 <= self.reorder_window <= MAX_WINDOW:
            raise OptionRefused(f"reorder_window {self.reorder_window} is not between 0 and {MAX_WINDOW}")
        if self.late != "drop" and not self.reorder_window:
            raise OptionRefused(
                f'late = "{self.late}" is about records below the reorder_window, and there is none. Set it, or leave '
                "late out"
            )
        if self.sequence == "none" and (self.reorder_window or self.sequence_form != "guess"):
            raise OptionRefused('reorder_window and sequence_form are about numbers, and sequence is "none"')

    @property
    def headers(self) -> tuple[str | None, ...]:
        """For each part of the identity the header's name; None: it is no header."""
        return tuple(_header(part) for part in self.identity)

    @property
    def sequence_header(self) -> str | None:
        """The header with the sequence; None: there are no sequences, and an identity is either seen or not."""
        return None if self.sequence == "none" else self.sequence.partition(":")[2]

    def as_dict(self) -> dict[str, Any]:
        """What is stored beside the rows, and compared at each start."""
        return {
            "topic": self.topic,
            "identity": list(self.identity),
            "sequence": self.sequence,
            "sequence_form": self.sequence_form,
            **({"reorder_window": self.reorder_window, "late": self.late} if self.reorder_window else {}),
        }


def described(rule: dict[str, Any] | None) -> str:
    """A stored rule, in words; None: the rows were judged by workers."""
    if rule is None:
        return "records that workers have judged"
    parts = [f"{name} {value if isinstance(value, str | int) else ', '.join(value)}" for name, value in rule.items()]
    return f"its own judging ({'; '.join(parts)})"


def identity_parts(given: str) -> tuple[str, ...]:
    """The parts of an identity as the settings and the command line write it: one, a JSON list, or commas between.

    Raises:
        OptionRefused: it begins as a list and is none.
    """
    if not given.startswith("["):
        return tuple(_BETWEEN_PARTS.split(given))
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(part, str) for part in found):
        raise OptionRefused(f'identity {given!r} begins as a list and is none; write ["header:a", "header:b"]')
    return tuple(found)


def require_without(what: Sequence[str]) -> None:
    """Refuse settings of a stream that only workers follow.

    Args:
        what: them, as the settings say them.

    Raises:
        OptionRefused: there is one.
    """
    if what:
        raise OptionRefused(
            f"from_input: the stream says {what[0]}, which only workers do. Leave it out, or leave from_input out and "
            "let workers judge"
        )


def _header(part: str) -> str | None:
    kind, _, name = part.partition(":")
    return PRODUCER_HEADER if part == "producer" else name if kind == "header" else None


def _require_identity(part: str, *, alone: bool) -> None:
    kind, _, name = part.partition(":")
    if kind == "header" and name and name.isprintable():
        return
    if part == "key" or (alone and part in {"producer", "partition"}):
        return
    if part in {"producer", "partition"}:
        raise OptionRefused(f"identity: {part} cannot be one of several parts. Write {IDENTITIES}")
    raise OptionRefused(f"identity {part!r}: with from_input, Spark reads {IDENTITIES}. {WORKERS}")
