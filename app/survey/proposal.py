"""Settings that a survey proposes or leaves out, with a reason for each."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.survey.looking import TIMELIKE, USUAL_ID
from kafka_ratchet.app.survey.places import KEY, PARTITION, WHOLE, Candidate, RecordPart
from kafka_ratchet.app.survey.report import WINDOW_MOST, Finding, NumberOrder, Report

RECORDS_LEAST: Final = 1_000
PRESENT_LEAST: Final = 0.99
"""Minimum share of the records that must have a proposed identity; a worker makes dead letters of the others."""
REPEATED_MOST: Final = 0.5
CONFLICTS_MOST: Final = 0.05
"""Largest share of an identity's repeats that may have another key or value."""
WHOLE_LEAST: Final = 0.5
"""Minimum share of the repeats of an identity without a usual name that equal an earlier record as a whole.

If the repeats differ in headers, nothing shows whether they are repeats or other events with the same content.
"""
LATE_MOST: Final = 0.05
"""Largest share of new records that may have a number below their identity's highest."""
ALIKE: Final = 0.98
"""Minimum share of the best candidate's duplicates that another candidate must find to count as equally good."""
AGES_LEAST: Final = 30
"""Minimum number of duplicates with a known age for a proposal of inactive_after_s."""
AGE_MARGIN: Final = 2
ENTRIES_MARGIN: Final = 2
IDENTITIES_MANY: Final = 100_000
"""Minimum number of identities with a number for a proposal of inactive_after_s."""

MINUTE, HOUR, DAY = 60, 3_600, 86_400
TIMES_S: Final = (
    *(MINUTE * each for each in (1, 2, 5, 10, 15, 30)),
    *(HOUR * each for each in (1, 2, 3, 6, 12)),
    *(DAY * each for each in (1, 2, 3, 7, 14, 30, 60, 90, 180)),
)


@dataclass(frozen=True, slots=True)
class Line:
    """Line of a proposal. value: value of the setting; None: the setting is not proposed, and `reason` says why."""

    setting: str
    value: str | int | list[str] | None
    reason: str


@dataclass
class Proposal(Document):
    """Proposed settings of a stream.

    Attributes:
        finding: results of the proposed candidate; None: nothing is proposed.
        lines: settings with reasons, in the order of the TOML section.
        refused: reason why nothing is proposed; None if something is.
        notes: further sentences for the operator.
    """

    json_keys = (
        "refused",
        "toml",
        "lines",
        "notes",
    )

    name: str
    finding: Finding | None = None
    lines: list[Line] = field(default_factory=list)
    refused: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def toml(self) -> str:
        """Return the TOML section with the reasons as comments; empty if nothing is proposed."""
        if self.refused is not None:
            return ""
        out = [f"[streams.{self.name}]"]
        for line in self.lines:
            if line.value is None:
                out.append(f"# {line.setting}: not proposed: {line.reason}")
            else:
                # JSON's strings, numbers and lists are TOML's; what cannot be printed was never a candidate.
                written = f"{line.setting} = {json.dumps(line.value, ensure_ascii=False)}"
                out.append(f"{written}  # {line.reason}" if line.reason else written)
        return "\n".join(out) + "\n"


def propose(report: Report) -> Proposal:
    """Propose settings for a stream that reads the surveyed topic."""
    proposal = Proposal(stream_name(report.topic))
    if report.records < RECORDS_LEAST:
        proposal.refused = (
            f"{report.records:,} records are too few: at least {RECORDS_LEAST:,} are needed. Publish more, or write "
            "ratchet.toml by the example in README"
        )
        return proposal
    whole = report.findings[0]
    chosen = _best(report)
    if chosen is None:
        proposal.refused = _why_none(report, whole)
        return proposal
    if chosen.candidate.sequence is not None and (why := _misread(report, chosen.candidate.sequence)) is not None:
        proposal.refused = why
        return proposal
    proposal.finding = chosen
    proposal.lines = [
        Line("input", report.topic, ""),
        Line("output", f"{report.topic}.once", ""),
        Line("dead_letters", f"{report.topic}.dead-letters", ""),
        *_identity(report, chosen),
        *_order(chosen),
        *_conflicts(chosen),
        *_across(chosen),
        *_bounds(report, chosen),
    ]
    found, equal = chosen.equal + chosen.across, whole.equal + whole.across
    if equal * ALIKE > found:
        example = f", such as {_at(whole.examples[0])}" if whole.examples else ""
        proposal.notes.append(
            f"{equal - found:,} records that equal an earlier one as a whole are new by this identity{example}: either "
            "similar events, or duplicates that it does not find"
        )
    if found and chosen.numbers is None and not _has_usual_name(chosen):
        example = f", such as {_at(chosen.examples[0])}" if chosen.examples else ""
        proposal.notes.append(
            f"no usual name shows that {chosen.candidate} is the id of an event. Make sure that records with the same "
            f"one are repeats{example}, and not two events with the same content"
        )
    if lost := _lost(chosen):
        kept = any(line.setting == "late" for line in proposal.lines)
        proposal.notes.append(
            f"{lost:,} new records of those read would be dropped as duplicates "
            + (
                'without late = "dead-letter", which makes dead letters of them'
                if kept
                else "by these settings: a worker takes a number that does not rise for a repeat"
            )
        )
    return proposal


def _best(report: Report) -> Finding | None:
    good = [each for each in report.findings if _is_good(report, each)]
    # A duplicate that passes can still be found later; a dropped new record is lost.
    for those in ([each for each in good if not _lost(each)], good):
        most = max((each.equal + each.across for each in those), default=0)
        if most:
            alike = [each for each in those if each.equal + each.across >= ALIKE * most]
            return min(alike, key=lambda each: (each.conflicts + each.across_conflicts > 0, _tier(each)))
    # Without duplicates, only a usual name or a number that counts by one shows that a candidate is an identity.
    known = (each for each in good if _tier(each) == 0 or (each.numbers is None and _has_usual_name(each)))
    return min((each for each in known if not _lost(each)), key=_tier, default=None)


def _misread(report: Report, sequence: RecordPart) -> str | None:
    """Return why the sequences in this header or field need the setting sequence_form; None if they need none."""
    why = dict(report.forms).get(str(sequence))
    return None if why is None or "sequence_form" not in why else f"{sequence}: {why}"


def _tier(each: Finding) -> int:
    """Return the rank of a candidate among those with equal results, 0 for the best.

    With a number that counts by one, a worker's state has one entry for each identity; with an id, it has one for each
    event. A number that only rises, such as a time, may be the same for two events in future.
    """
    if each.numbers is not None:
        return 0 if each.numbers.counts and not _is_timelike(each) else 3
    return 1 if _is_named(each) else 4 if _is_timelike(each) else 2


def _is_timelike(each: Finding) -> bool:
    return TIMELIKE.search((each.candidate.sequence or each.candidate.identity[0]).words) is not None


def _is_named(each: Finding) -> bool:
    places = each.candidate.identity
    return len(places) > 1 or places[0] == KEY or _has_usual_name(each)


def _has_usual_name(each: Finding) -> bool:
    """Return True if a header or field of a candidate has an id's usual name.

    Return False for a record key: it has no name, and may identify an event or, for example, a customer.
    """
    return any(USUAL_ID.search(place.words) for place in each.candidate.identity)


def _is_good(report: Report, each: Finding) -> bool:
    if each.candidate.identity == (WHOLE,) or each.records < PRESENT_LEAST * report.records:
        return False
    repeats = each.duplicates + each.across + each.across_conflicts
    if each.conflicts + each.across_conflicts > CONFLICTS_MOST * repeats or repeats > REPEATED_MOST * each.records:
        return False
    numbers = each.numbers
    if numbers is None and _is_unproven(report, each):
        return False
    if numbers is not None and each.across + each.across_conflicts:
        return False  # a repartition mixes the partitions in any order, and a worker drops lower numbers
    return numbers is None or numbers.late <= LATE_MOST * (numbers.rises + numbers.late)


def _is_unproven(report: Report, each: Finding) -> bool:
    """Return True if an id without a usual name has many repeats that differ from the earlier record in headers."""
    whole = report.findings[0]
    return not _has_usual_name(each) and whole.equal + whole.across < WHOLE_LEAST * (each.equal + each.across)


def _why_none(report: Report, whole: Finding) -> str:
    """Return why no identity is proposed, by the candidate that comes nearest."""
    near = [
        each
        for each in report.findings[1:]
        if (each.conflicts or each.across_conflicts)
        and each.records >= PRESENT_LEAST * report.records
        and each.duplicates + each.across + each.across_conflicts <= REPEATED_MOST * each.records
    ]
    if near:
        each = max(near, key=lambda finding: finding.distinct)
        repeats = each.duplicates + each.across + each.across_conflicts
        example = f" Look at {_at(each.conflict_examples[0])}." if each.conflict_examples else ""
        return (
            f"{each.conflicts + each.across_conflicts:,} of the {repeats:,} repeats of {each.candidate} have another "
            f"key or value: they may be events of their own, or the value differs with each sending.{example} "
            "State that identity if you know that it is one"
        )
    unproven = [
        each
        for each in report.findings[1:]
        if each.numbers is None and _is_unproven(report, each) and each.records >= PRESENT_LEAST * report.records
    ]
    if unproven:
        each = max(unproven, key=lambda finding: finding.distinct)
        example = f" Look at {_at(each.examples[0])}." if each.examples else ""
        return (
            f"{each.equal + each.across:,} records repeat {each.candidate} with the same key and value, and only "
            f"{whole.equal + whole.across:,} with the same headers too: they may be other events with the same content."
            f"{example} State that identity if you know that it is one"
        )
    held = [each for each in report.findings[1:] if each.records >= PRESENT_LEAST * report.records]
    if mixed := [each for each in held if each.numbers is not None and each.across]:
        each = max(mixed, key=lambda finding: finding.across)
        return (
            f"{each.across:,} repeats of {each.candidate} came in another partition than the first. An internal stream "
            "brings them together in any order, and a worker would then drop new records with a lower number. "
            "Have the sender give each event an id, or write each identity to one partition"
        )
    if whole.equal + whole.across:
        return (
            f"{whole.equal + whole.across:,} records equal an earlier one as a whole, and no header or field of all "
            "records tells one event from another: two events may be alike. Have the sender give each event an id"
        )
    if any(each.candidate == Candidate((KEY,)) and _is_good(report, each) for each in report.findings):
        return (
            "no record came twice, and no key did. These records do not show whether a key is one event's, or that of "
            "something, such as a customer, with later events that would be dropped as duplicates. "
            "State that identity if you know that each event has a key of its own"
        )
    return "nothing that all records have tells one event from another, and no record came twice"


def _identity(report: Report, each: Finding) -> list[Line]:
    said = f"{each.equal + each.across:,} duplicates found by it among {report.records:,} records"
    if not each.equal + each.across:
        by = "name" if each.numbers is None else "number, which counts by one"
        said = f"by its {by}; no record came twice among {report.records:,}"
    lacking = "" if not each.without else f"; {each.without:,} records lack it and become dead letters"
    lines = [Line("identity", each.candidate.setting, said + lacking)]
    if each.numbers is None:
        return [*lines, Line("sequence", "none", "it has no number: an id is seen or it is not")]
    numbers = each.numbers
    share = numbers.rises / max(numbers.rises + numbers.late, 1)
    what = f"it rises in {share:.2%} of the new records of {numbers.identities:,} identities"
    return [*lines, Line("sequence", str(each.candidate.sequence), what)]


def _window(numbers: NumberOrder) -> tuple[int, int]:
    """Return the smallest reorder window that accepts all late numbers, else the largest.

    Returns:
        (window, number of late records that it accepts)
    """
    windows = numbers.windows
    return next(((size, passes) for size, passes in windows if passes >= numbers.late), windows[-1])


def _lost(each: Finding) -> int:
    """Return the number of new records too late for the proposed window.

    If the largest window accepts fewer than half of the late records, no window is proposed, and all late records
    count.
    """
    numbers = each.numbers
    if numbers is None or not numbers.late:
        return 0
    _, passes = _window(numbers)
    return numbers.late if passes < numbers.late / 2 else numbers.late - passes


def _order(each: Finding) -> list[Line]:
    numbers = each.numbers
    if numbers is None or not numbers.late:
        return []
    size, passes = _window(numbers)
    effect = (
        f"{numbers.late:,} new records came after a higher number of their identity, up to {numbers.late_most:,} "
        f"below it: this window accepts {passes:,} of them"
    )
    lost = _lost(each)
    if lost == numbers.late:
        why = f"{effect}, even {WINDOW_MOST:,}. Numbers are not in order, and a worker drops late ones as duplicates"
        return [Line("reorder_window", None, why)]
    lines = [Line("reorder_window", size, effect)]
    if lost:
        why = f"the other {lost:,} become dead letters and are not dropped, and so do duplicates that come as late"
        lines.append(Line("late", "dead-letter", why))
    return lines


def _conflicts(each: Finding) -> list[Line]:
    found = each.conflicts + each.across_conflicts
    if not found:
        return []
    example = f", such as {_at(each.conflict_examples[0])}" if each.conflict_examples else ""
    return [Line("conflicts", "count", f"{found:,} repeats have another key or value, and would be dropped{example}")]


def _across(each: Finding) -> list[Line]:
    """Return the line about repartition_by if duplicates came in another partition."""
    found = each.across + each.across_conflicts
    if not found or each.candidate.identity == (PARTITION,):
        return []
    return [Line("repartition_by", "identity", f"{found:,} duplicates came in another partition than the first")]


def _bounds(report: Report, each: Finding) -> list[Line]:
    """Return the lines about inactive_after_s and max_identities."""
    numbers = each.numbers
    if numbers is not None and numbers.identities < IDENTITIES_MANY:
        return [Line("inactive_after_s", None, f"{numbers.identities:,} identities are few: a worker can keep all")]
    ages = sum(bucket.records for bucket in each.ages + each.ages_across)
    most_ms = max([each.age_most_ms, *(bucket.most for bucket in each.ages_across if bucket.records)])
    if ages < AGES_LEAST:
        why = f"{ages:,} duplicates with a known age are too few to show how late a duplicate may come"
        return [Line("inactive_after_s", None, why)]
    if most_ms * AGE_MARGIN > report.span_ms:
        why = (
            f"the oldest duplicate came after {span_text(most_ms)}, and the records read span "
            f"{span_text(report.span_ms)}: older duplicates could not be seen. Read more of the topic"
        )
        return [Line("inactive_after_s", None, why)]
    seconds = rounded_up(most_ms * AGE_MARGIN / 1_000)
    clock = "the broker's clock" if report.log_append_time else "the producers' timestamps"
    sample = f" of a sample (1 of {each.one_of:,} ids)" if each.one_of > 1 else ""
    oldest = f"the oldest duplicate{sample} came after {span_text(most_ms)} by {clock}"
    lines = [Line("inactive_after_s", seconds, f"{oldest}; {AGE_MARGIN} times that, rounded up")]
    held = busiest(report.busy, seconds) * (each.distinct + each.across) / max(report.records, 1)
    entries = two_digits(max(held * ENTRIES_MARGIN, report.partitions))
    if numbers is None:
        busy = f"in the busiest {span_text(seconds * 1_000)} about {held:,.0f} came"
        lines.append(Line("max_identities", entries, f"{busy}; {ENTRIES_MARGIN} times that, rounded up"))
    return lines


def busiest(busy: dict[int, int], seconds: int) -> int:
    """Return the greatest number of records within a period of `seconds`. busy: number of records by minute."""
    minutes = sorted(busy)
    width = math.ceil(seconds / MINUTE)
    most = held = first = 0
    for minute in minutes:
        held += busy[minute]
        while minutes[first] <= minute - width:
            held -= busy[minutes[first]]
            first += 1
        most = max(most, held)
    return most


def rounded_up(seconds: float) -> int:
    """Round a number of seconds up to the next usual length of time."""
    return next((each for each in TIMES_S if each >= seconds), math.ceil(seconds / DAY / 365) * 365 * DAY)


def two_digits(number: float) -> int:
    """Round up to two significant digits."""
    unit = int(10 ** max(0, len(str(math.ceil(number))) - 2))
    return math.ceil(number / unit) * unit


def span_text(ms: float) -> str:
    """Return a duration as text, in the largest unit that it fills."""
    for unit, size in (("d", DAY), ("h", HOUR), ("min", MINUTE), ("s", 1)):
        if ms >= size * 1_000:
            return f"{ms / size / 1_000:.3g} {unit}"
    return f"{ms:.0f} ms"


def stream_name(topic: str) -> str:
    """Return a valid name of a stream, made from the name of a topic."""
    name = re.sub(r"[^a-z0-9_-]+", "-", topic.lower()).strip("-_")[:63]
    return name if re.match(r"[a-z]", name) else f"s-{name}"[:63]


def _at(example: Any) -> str:
    return f"partition {example.partition}, offset {example.offset:,} (before it at {example.before:,})"
