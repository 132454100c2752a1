"""Identity and sequence of each record, read by Spark's own functions; records without them have a reason.

The reason is the reason of a worker's dead letter (`ratchet-reason`), also if several reasons apply.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from kafka_ratchet.rule import number_forms as forms
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES
from kafka_ratchet.spark_sink.rows.judging.rule import REPLAYS_HEADER, JudgeRule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

IDENTITY, SEQUENCE, REASON, REPLAYED = "_ratchet_identity", "_ratchet_sequence", "_ratchet_reason", "_ratchet_replayed"
"""Columns added to those of Spark's Kafka source, and never part of a table.

They are the identity as bytes, the sequence as a whole number, the reason as text (null for records that can be
judged), and true for records sent again from the dead letters."""

DOUBTFUL = "_ratchet_doubtful"
"""Column with the sequence header of a record if its format may have been guessed wrongly.

Its value is the header's bytes if these are eight bytes other than digits, or hexadecimal text. It is b"" for a short
decimal number with a length other than eight bytes, because such headers are only counted. It is null for all other
headers.
"""

RECORD = ("partition", "offset", "timestamp", "key", "value")
"""Columns of Spark's Kafka source that become rows."""

_FOUND, _TIMES = "_ratchet_found", "_ratchet_times"
_NAMES, _VALUES = "_ratchet_names", "_ratchet_values"

SHORT_PART = 127
"""Maximum bytes of an identity's part if the varint with the part's length has one byte."""


def read(records: DataFrame, rule: JudgeRule) -> DataFrame:
    """Add identity, sequence and reason to the records.

    Args:
        records: records of Spark's Kafka source, with headers.
        rule: deduplication settings, which name the parts of a record that contain identity and sequence.
    """
    from pyspark.sql import functions as F

    names = [rule.sequence_header, *rule.headers]
    # Functions that Spark compiles: those with a lambda (`filter`, `exists`) make objects for each header.
    found = records.select(*RECORD, F.col("headers.key").alias(_NAMES), F.col("headers.value").alias(_VALUES))
    all_names, all_values = F.col(_NAMES), F.col(_VALUES)
    replayed = F.coalesce(F.array_contains(all_names, REPLAYS_HEADER), F.lit(False)).alias(REPLAYED)
    # One step for each value that is used more than once: otherwise Spark would compute it as often.
    values, times = [], []
    for n, name in enumerate(names):
        if name is None:
            value, often = F.col("key") if rule.identity[n - 1] == "key" else F.lit(b""), F.lit(1)
        else:
            value = F.get(all_values, (F.array_position(all_names, name) - 1).cast("int"))
            often = F.size(all_names) - F.size(F.array_remove(all_names, name))
        values.append(value.alias(f"{_FOUND}{n}"))
        times.append(often.alias(f"{_TIMES}{n}"))
    found = found.select(*RECORD, replayed, *values, *times)
    kept = [*RECORD, REPLAYED]
    sequence, why_no_sequence = _sequence(rule)
    identity, why_no_identity = _identity(rule)
    found = found.select(
        *kept,
        sequence.alias(SEQUENCE),
        identity.alias(IDENTITY),
        why_no_sequence.alias(f"{REASON}_1"),
        why_no_identity.alias(f"{REASON}_2"),
        *([_doubtful().alias(DOUBTFUL)] if rule.is_guessed else []),
    )
    # A whole number beyond 64 bits is null; so is a negative one in eight bytes.
    reason = F.coalesce(F.col(f"{REASON}_1"), F.when(F.col(SEQUENCE) < 0, "sequence-negative"), F.col(f"{REASON}_2"))
    doubtful = [DOUBTFUL] if rule.is_guessed else []
    found = found.select(*kept, SEQUENCE, IDENTITY, reason.alias(REASON), *doubtful)
    good = F.col(REASON).isNull()
    return found.select(
        *kept,
        F.when(good, F.col(IDENTITY)).alias(IDENTITY),
        F.when(good, F.col(SEQUENCE)).alias(SEQUENCE),
        REASON,
        *doubtful,
    )


def _sequence(rule: JudgeRule) -> tuple[Column, Column]:
    """Return the column of sequences, and the column of reasons for missing ones.

    The caller handles negative sequences.
    """
    from pyspark.sql import functions as F

    nothing = F.lit(None).cast("string")
    if rule.sequence_header is None:
        return F.lit(0).cast("long"), nothing
    value, times = F.col(f"{_FOUND}0"), F.col(f"{_TIMES}0")
    is_text, of_text, is_integer, of_bytes = _forms(f"{_FOUND}0", rule.sequence_form)
    reason = (
        F.when(times > 1, "sequence-repeated")
        .when(value.isNull() | (F.length(value) == 0), "sequence-missing")
        .when(~is_text & ~is_integer, "sequence-not-a-number")
        .when(
            is_text & of_text.isNull(),
            F.when(value.cast("string").startswith("-"), "sequence-negative").otherwise("sequence-out-of-range"),
        )
    )
    return F.when(is_text, of_text).when(is_integer, of_bytes), reason


def _doubtful() -> Column:
    """Return the expression for column `DOUBTFUL`: sequence headers in a format that may have been guessed wrongly."""
    from pyspark.sql import functions as F

    value, once = F.col(f"{_FOUND}0"), F.col(f"{_TIMES}0") == 1
    text = value.cast("string")
    of_length = F.when(F.length(value) == 8, F.when(~text.rlike(r"\A-?[0-9]+\z"), value))
    of_length = of_length.when(text.rlike(rf"\A0*[0-9]{{1,{forms.DIGITS - 1}}}\z"), F.lit(b""))
    return F.when(once & (F.length(value) > 0), of_length.when(text.rlike(rf"\A{forms.HEX}\z"), value))


def sequence_of(name: str, form: str) -> Column:
    """Read the sequence in a header's bytes; null unless it is from 0 to 2^63 - 1.

    Args:
        name: column with the bytes.
        form: format of sequences, see `JudgeRule.sequence_form`.
    """
    from pyspark.sql import functions as F

    is_text, of_text, is_integer, of_bytes = _forms(name, form)
    number = F.when(is_text, of_text).when(is_integer, of_bytes)
    return F.when(number >= 0, number)


def _forms(name: str, form: str) -> tuple[Column, Column, Column, Column]:
    """Return two pairs of columns: whether bytes have a format, and the number read by that format.

    The first format is decimal digits; the second is eight bytes, with the number -1 for other lengths.
    """
    from pyspark.sql import functions as F

    value = F.col(name)
    is_text = value.cast("string").rlike(r"\A-?[0-9]+\z") if form in ("guess", "text") else F.lit(False)
    is_integer = F.length(value) == 8 if form != "text" else F.lit(False)
    of_text = F.expr(f"try_cast(cast({name} AS string) AS bigint)")
    # Its first bit is the sign: from 2^63 on, try_cast finds no whole number of 64 bits.
    digits = f"hex({name})"
    if form == "little-endian":
        digits = "concat(" + ", ".join(f"substring({digits}, {at}, 2)" for at in range(15, 0, -2)) + ")"
    # `conv` refuses more than eight bytes in ANSI mode.
    of_bytes = F.expr(f"if(length({name}) = 8, coalesce(try_cast(conv({digits}, 16, 10) AS bigint), -1L), -1L)")
    return is_text, of_text, is_integer, of_bytes


def _identity(rule: JudgeRule) -> tuple[Column, Column]:
    """Return the column of identities, and the column of reasons for missing ones."""
    from pyspark.sql import functions as F

    reasons: list[Column] = []
    parts: list[Column] = []
    for n, name in enumerate(rule.headers, start=1):
        value, times = F.col(f"{_FOUND}{n}"), F.col(f"{_TIMES}{n}")
        missing = value.isNull() if name is None else value.isNull() | (F.length(value) == 0)
        reasons.append(
            F.when(times > 1, "identity-repeated")
            .when(missing, "identity-missing")
            .when(F.length(value) > MAX_IDENTITY_BYTES, "identity-too-long")
        )
        parts.append(value)
    if len(parts) == 1:
        return parts[0], reasons[0]
    # Joined as in a worker, with the length as a varint before each part: one or two bytes.
    whole = F.concat(*[each for part in parts for each in (_varint(F.length(part)), part)])
    lengths = [F.length(part) + F.when(F.length(part) > SHORT_PART, 2).otherwise(1) for part in parts]
    too_long = F.when(reduce(lambda one, other: one + other, lengths) > MAX_IDENTITY_BYTES, "identity-too-long")
    return whole, F.coalesce(*reasons, too_long)


def _varint(length: Column) -> Column:
    from pyspark.sql import functions as F

    short = F.lpad(F.hex(length), 2, "0")
    low = F.lpad(F.hex(length.bitwiseAND(SHORT_PART).bitwiseOR(SHORT_PART + 1)), 2, "0")
    high = F.lpad(F.hex(F.shiftright(length, 7)), 2, "0")
    return F.unhex(F.when(length > SHORT_PART, F.concat(low, high)).otherwise(short))
