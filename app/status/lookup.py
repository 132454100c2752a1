"""Parsers of queries for one identity (text or hex, and perhaps a sequence), and the answers to them.

The status address, the page and `ratchet tables` use these parsers, so they accept and refuse the same queries.
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
"""Answers to the question if a record has arrived; `answer_of` explains each."""

ANSWERS: Final[Mapping[SequenceVerdict, Answer]] = {
    DUPLICATE: "persisted",
    UNKNOWN: "in flight",
    FRESH: "unseen",
    TOO_LATE: "unknown",
}

LIMIT, LIMIT_MOST = 100, 500
"""Default and greatest number of producers in one answer. A worker blocks its event loop while it looks them up."""

MAX_PARAMETERS = 8
"""Maximum number of parameters of a query string; a look-up has at most five."""


class QueryError(RatchetError):
    """Error for an invalid query; the text says how to correct it."""


def parse_identity(text: str | None, hexadecimal: str | None) -> bytes:
    """Return the identity's bytes from text (as UTF-8) or from hex digits; b"" if both are empty or None.

    Raises:
        QueryError: text and digits are both given, or are invalid.
    """
    if text and hexadecimal:
        raise QueryError("the identity is given both as text and as hex. Give one of the two")
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
    """Return the bytes of a stream's identity, from the texts of its parts or from hex digits.

    Args:
        identity: the stream's setting `identity`, with the sources of its parts.
        texts: text of each part, in order; or one text, a JSON list of these.
        hexadecimal: hex digits of the whole identity; None: not given.

    Without texts and digits, the result is b"", the only identity of a stream with identity "partition". In a stream
    with identity "key", an empty text or empty digits stand for the empty key.

    Raises:
        QueryError: texts or digits are missing, invalid, or do not fit the stream's identity.
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
    """Return the parameters identity and hex of an address, as `parse_parts` takes them.

    A web form always sends both parameters. A parameter that the user has not filled in is empty there, and counts as
    not given. If an address has only one of the two parameters, an empty one stands for the empty key.
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
    """Return the sequence in a text; None for an empty text.

    Raises:
        QueryError: the text is not a whole number from 0 to 2^63 - 1.
    """
    return _number_of(text, "sequence")


def parse_partition(text: str | None) -> int | None:
    """Return the partition number in a text; None for an empty text.

    Raises:
        QueryError: the text is not a possible partition number.
    """
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,7}", text):
        raise QueryError("the partition must be a whole number, from 0")
    return int(text)


def parse_offset(text: str | None) -> int | None:
    """Return the offset in a text; None for an empty text.

    Raises:
        QueryError: the text is not a whole number from 0 to 2^63 - 1.
    """
    return _number_of(text, "offset")


def _number_of(text: str | None, what: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > SEQUENCE_MAX:
        raise QueryError(f"the {what} must be a whole number from 0 to {SEQUENCE_MAX}")
    return int(text)


def parse_limit(text: str | None) -> int:
    """Return the number of names to list; the default for an empty text.

    Raises:
        QueryError: the text is not a whole number from 1 to `LIMIT_MOST`.
    """
    if not text:
        return LIMIT
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= LIMIT_MOST:
        raise QueryError(f"the limit must be a whole number from 1 to {LIMIT_MOST}")
    return int(text)


def parse_query(raw: str, most: int = MAX_PARAMETERS) -> dict[str, str]:
    """Return the parameters of a raw query string by name.

    Raises:
        QueryError: there are more than `most` parameters, one is given twice, or the query is not UTF-8.
    """
    try:
        pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=most)
    except UnicodeDecodeError:
        raise QueryError("the query is not UTF-8. Give the identity's bytes as hex digits, with hex=") from None
    except ValueError:
        raise QueryError(
            f"the query has more than {most} parameters. Remove those that this address does not use"
        ) from None
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
    """Return the verdict on a record with this sequence, by the two maps of PIP-6, persisted and pushed.

    Args:
        sequence: the record's sequence.
        persisted: last sequence of the identity in a committed transaction; None: there is none.
        pushed: last sequence of the identity in any transaction, committed or open; None: there is none.
        window: the stream's `reorder_window`; 0: no window.
        seen: two flags: True if the sequence was seen in the window below `persisted`, and True if it was seen in the
            window below `pushed`.
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
    """Return the answer whether a record with this sequence has arrived in one of its possible partitions.

    persisted   The record is committed, or (without a reorder_window) a later one of its identity. Sent again, it
                would be dropped.
    in flight   The record was judged in a transaction still open. The caller should ask again.
    unseen      The record has not arrived so far. Sent again, it would be forwarded.
    forgotten   A sequence at least as high had arrived, but an operator has forgotten the identity. Sent again, the
                record would be forwarded.
    depends     The answers of the partitions differ. The caller should name the partition. However,
                persisted with in flight gives in flight, and unseen with forgotten gives forgotten.
    unknown     A possible partition has no answering worker, or the sequence is below the window. In the second case
                the record would not be forwarded.

    Args:
        verdicts: verdict on the record, by partition that knows the identity.
        partitions: all partitions of the stream.
        not_asked: partitions without an answering worker.
        identity: the stream's setting. With "key", all records of an identity are in one partition, so only partitions
            that know the identity count, if there are any.
        partition: the record's partition; None: not known.
        forgotten: partitions with a forgotten last sequence at least as high.
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
        # Committed in some partitions, in an open transaction in the others.
        return "in flight" if answers == {"persisted", "in flight"} else "depends"
    return answers.pop() if answers else "unknown"
