"""Parsers of a question about one identity: text or hex, and perhaps a sequence.

The status address, the page and `ratchet tables` use it, so that all three accept and refuse the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal
from urllib.parse import parse_qsl

import msgspec

from kafka_ratchet.errors import RatchetError
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, SEQUENCE_MAX, Identity, joined
from kafka_ratchet.rule.verdicts import DUPLICATE, FRESH, TOO_LATE, UNKNOWN, SequenceVerdict

Answer = Literal["persisted", "in flight", "unseen", "forgotten", "depends", "unknown", "waiting"]
"""Answers to "did my record arrive?": see `answer_of`."""

ANSWERS: Final[Mapping[SequenceVerdict, Answer]] = {
    DUPLICATE: "persisted",
    UNKNOWN: "in flight",
    FRESH: "unseen",
    TOO_LATE: "unknown",
}

LIMIT, LIMIT_MOST = 100, 500
"""Default and greatest number of producers in one answer. The worker looks each of them up while nothing else runs."""

MAX_PARAMETERS = 8
"""Most parameters of a query string; a look-up has at most five."""


class QueryError(RatchetError):
    """Error for a query that cannot be parsed; the text tells what to write."""


def parse_identity(text: str | None, hexadecimal: str | None) -> bytes:
    """Return the identity's bytes from text (as UTF-8) or from hex digits; b"" if both are empty or None.

    Raises:
        QueryError: the text or the digits are invalid; the message tells what to write.
    """
    if text and hexadecimal:
        raise QueryError("give the identity as text or as hex, not both")
    if hexadecimal:
        try:
            identity = bytes.fromhex(hexadecimal)
        except ValueError:
            raise QueryError("the identity in hex must be pairs of the digits 0-9 and a-f, such as 00ff1b") from None
    else:
        try:
            identity = (text or "").encode("utf-8")
        except UnicodeEncodeError:
            raise QueryError("the identity is not UTF-8 text; give its bytes in hex") from None
    return _bounded(identity)


def _bounded(identity: bytes) -> bytes:
    if len(identity) > MAX_IDENTITY_BYTES:
        raise QueryError(
            f"the identity has {len(identity):,} bytes; the longest one accepted has {MAX_IDENTITY_BYTES:,}"
        )
    return identity


def parse_parts(identity: Identity, texts: Sequence[str], hexadecimal: str | None) -> bytes:
    """Return the bytes of a stream's identity, from the text of each of its parts or from hex digits.

    Args:
        identity: parts of the stream's identities.
        texts: text of each part, in order; or a single JSON list of these.
        hexadecimal: hex digits of the whole identity.

    Without texts and digits it is the identity of a partition. An empty text, or empty digits, is the empty key.

    Raises:
        QueryError: texts or digits are invalid; the message tells what to write.
    """
    parts = identity.parts
    is_empty = not hexadecimal and not any(texts)
    is_given = bool(texts) or hexadecimal is not None
    if is_empty and len(texts) <= 1 and identity != Identity.PARTITION and not (identity == Identity.KEY and is_given):
        more = "; the empty key as an empty text (--key '', or identity= or hex= in an address)"
        raise QueryError(
            f"give the identity: the stream keeps one sequence for each {identity}"
            + (more if identity == Identity.KEY else ", which cannot be empty" if is_given else "")
        )
    if hexadecimal or not texts:
        return parse_identity(next(iter(texts), None), hexadecimal)
    if len(parts) > 1 and len(texts) == 1 and texts[0].startswith("["):
        texts = _listed(texts[0])
    if len(texts) != len(parts):
        wanted = "one part" if len(parts) == 1 else f"{len(parts)} parts, {', '.join(map(str, parts))}"
        raise QueryError(
            f"the identity of this stream has {wanted}, but {len(texts)} are given. Give each part with its own "
            'option, or all as a list such as ["a", "b"]'
        )
    if len(parts) == 1:
        return parse_identity(texts[0], None)
    return _bounded(joined([parse_identity(text, None) for text in texts]))


def typed_identity(query: Mapping[str, str]) -> tuple[list[str], str | None]:
    """Return the parameters identity and hex of an address, for `parse_parts`.

    A web form sends both, empty if not filled in. A single empty parameter is the empty key.
    """
    text, hexadecimal = query.get("identity"), query.get("hex")
    if text is not None and hexadecimal is not None:
        return ([text] if text else []), hexadecimal or None
    return ([] if text is None else [text]), hexadecimal


def _listed(text: str) -> list[str]:
    try:
        return msgspec.json.decode(text.encode(), type=list[str])
    except (msgspec.MsgspecError, UnicodeError):
        raise QueryError(
            'the identity begins like a list but is not a list; write a list of texts such as ["a", "b"]'
        ) from None


def parse_sequence(text: str | None) -> int | None:
    """Parse a sequence; None for an empty text.

    Raises:
        QueryError: it is not a whole number from 0 to 2^63 - 1.
    """
    return _number_of(text, "sequence")


def parse_partition(text: str | None) -> int | None:
    """Parse the number of a partition; None for an empty text.

    Raises:
        QueryError: it is not a possible partition number.
    """
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,7}", text):
        raise QueryError("the partition must be a whole number, from 0")
    return int(text)


def parse_offset(text: str | None) -> int | None:
    """Parse an offset; None for an empty text.

    Raises:
        QueryError: it is not a whole number from 0 to 2^63 - 1.
    """
    return _number_of(text, "offset")


def _number_of(text: str | None, what: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > SEQUENCE_MAX:
        raise QueryError(f"the {what} must be a whole number from 0 to {SEQUENCE_MAX}")
    return int(text)


def parse_limit(text: str | None) -> int:
    """Parse the number of names to list; an empty text gives the default.

    Raises:
        QueryError: it is not a whole number from 1 to `LIMIT_MOST`.
    """
    if not text:
        return LIMIT
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= LIMIT_MOST:
        raise QueryError(f"the limit must be a whole number from 1 to {LIMIT_MOST}")
    return int(text)


def parse_query(raw: str, most: int = MAX_PARAMETERS) -> dict[str, str]:
    """Parse a raw query string into its parameters, at most `most`.

    Raises:
        QueryError: too many parameters, one given twice, or bytes other than UTF-8.
    """
    try:
        pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=most)
    except UnicodeDecodeError:
        raise QueryError("the query is not UTF-8; give the identity's bytes with hex=") from None
    except ValueError:
        raise QueryError(f"the query has more than {most} parameters") from None
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise QueryError("a parameter is given twice; give each once")
    return parameters


def verdict_of(
    sequence: int,
    persisted: int | None,
    pushed: int | None,
    window: int = 0,
    seen: tuple[bool, bool] = (False, False),
) -> SequenceVerdict:
    """Return the verdict on a record with this sequence, by the two maps of PIP-6.

    Args:
        sequence: the record's sequence.
        persisted: the last sequence in a committed transaction; None: without one.
        pushed: the last sequence judged in the open transaction; None: without one.
        window: the stream's `reorder_window`; 0: none
        seen: True if the sequence was seen, in the window below persisted, and in the window below pushed
    """
    found: tuple[tuple[int | None, bool, SequenceVerdict], ...] = (
        (persisted, seen[0], DUPLICATE),
        (pushed, seen[1], UNKNOWN),
    )
    for last, was_seen, verdict in found:
        if last is None or sequence > last:
            continue
        if not window or sequence == last:
            return verdict
        if last - sequence > window:
            return TOO_LATE
        if was_seen:
            return verdict
    return FRESH


def answer_of(
    verdicts: Mapping[int, SequenceVerdict | None],
    partitions: Collection[int],
    not_asked: Collection[int],
    *,
    identity: str,
    partition: int | None,
    forgotten: Collection[int] = (),
) -> Answer:
    """Return the answer whether a record with this sequence has arrived in any possible partition.

    persisted   committed, or (without a reorder_window) a later record of the identity is: sent again it would be
                dropped.
    in flight   judged in a transaction still open: ask again.
    unseen      it has not come so far: it would be forwarded.
    forgotten   a sequence at least as high had arrived, but an operator forgot it: it would be forwarded again.
    depends     the answer differs between partitions: name the partition.
    unknown     a possible partition does not answer now, or the sequence is below the window and would not be
                forwarded.

    Args:
        verdicts: verdicts of the partitions with the identity.
        partitions: all partitions of the stream.
        not_asked: partitions without an answering worker.
        identity: identity of the sequence: a "key" goes to one partition, so partitions without it do not count.
        partition: the record's partition, if it is known.
        forgotten: partitions where a last sequence at least as high was forgotten.
    """

    def of(number: int) -> Answer:
        answer = ANSWERS[verdicts.get(number) or FRESH]
        return "forgotten" if answer == "unseen" and number in forgotten else answer

    if partition is not None:
        if partition in not_asked or partition not in partitions:
            return "unknown"
        return of(partition)
    if not_asked:
        return "unknown"
    where = verdicts.keys() if identity == "key" and verdicts else partitions
    answers = {of(number) for number in where}
    if answers == {"forgotten", "unseen"}:
        return "forgotten"
    if len(answers) > 1:
        # Here committed and there not yet, but nowhere missing.
        return "in flight" if answers == {"persisted", "in flight"} else "depends"
    return answers.pop() if answers else "unknown"
