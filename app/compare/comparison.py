"""Comparison of any topic or table with any other: lost, doubled, altered, unexpected or in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from kafka_ratchet.app.compare.address import Address
from kafka_ratchet.app.compare.bounds import Bound, seconds
from kafka_ratchet.app.compare.columns import ValuePair, pairs
from kafka_ratchet.app.compare.engine import VERDICTS, Engine, Name, RowFinding, RunConditions
from kafka_ratchet.app.compare.formats import decoder
from kafka_ratchet.app.compare.side import RequestedValues
from kafka_ratchet.app.compare.table import TableSide, open_table
from kafka_ratchet.app.compare.topic import TopicSide
from kafka_ratchet.app.compare.values import Kind, common, content_parts, exact, shown_identity
from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import SettingsError

MEMORY_MB: Final = 512
SAMPLE: Final = 1000

Progress = Callable[[str, int], None]
"""Function called with the address of a side and the number of its rows read so far."""


class Exit(IntEnum):
    """Exit codes of the command."""

    RIGHT = 0
    WRONG = 1
    FAILED = 2
    """The run ended with an error; with `--every`, the last run."""
    OPEN = 3
    """Nothing is wrong so far; records are in flight, or a side was not read to its end."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a comparison.

    compare: values to compare in addition to the identity.
    since, until: bounds of the source's records to look for in the target.
    grace: age from which a missing record counts as lost, in seconds or as 5m.
    as_is: True: the target must hold each identity as often as the source; False: once.
    timestamp: time column of the source, if it is a table
    sample: number of findings to list of each kind; all are counted.
    value_format, target_format: format of the source's and of the target's values, if it is a topic
    source_options, target_options: options of the source's and of the target's catalog or storage
    """

    compare: Sequence[str] | str = ()
    since: str | None = None
    until: str | None = None
    grace: str | float = 0.0
    as_is: bool = False
    timestamp: str | None = None
    sample: int = SAMPLE
    memory_mb: int = MEMORY_MB
    value_format: str = "json"
    target_format: str | None = None
    schema_registry: str | None = None
    registry_options: Mapping[str, str] = field(default_factory=dict)
    source_options: Mapping[str, str] = field(default_factory=dict)
    target_options: Mapping[str, str] = field(default_factory=dict)
    state: Path | None = None


@dataclass(slots=True)
class Comparison(Document):
    """Result of a comparison.

    lost: records of the source that the target lacks. in_flight: such records younger than the grace.
    doubled: surplus rows of the target.
    altered: rows of the target with other values than the source's records.
    unexpected: rows of the target missing in the source.
    source_rows, target_rows: rows compared; looked_for: rows of the source between `since` and `until`.
    without_identity: number of rows of each side that lack the identity; first_without_identity: place of the first.
    unread: reasons why a side was not read to its end.
    notes: limits of both sides.
    findings: findings with their places, up to `sample` of each kind
    """

    json_keys = (
        "from=source",
        "to=target",
        "by",
        "compare=compared",
        "lost",
        "doubled",
        "altered=altered_if_compared",
        "unexpected",
        "in_flight",
        "oldest_in_flight_s",
        "source_rows",
        "target_rows",
        "looked_for",
        "notes",
        "without_identity",
        "first_without_identity",
        "unread",
        "exit_code",
        "findings",
    )

    source: str
    target: str
    by: list[str]
    compared: list[str]
    lost: int = 0
    doubled: int = 0
    altered: int = 0
    unexpected: int = 0
    in_flight: int = 0
    oldest_in_flight_s: float | None = None
    source_rows: int = 0
    target_rows: int = 0
    looked_for: int = 0
    without_identity: dict[str, int] = field(default_factory=lambda: {"source": 0, "target": 0})
    first_without_identity: dict[str, dict[str, Any]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_wrong(self) -> bool:
        """Return whether a record is lost, doubled, altered or unexpected."""
        return bool(self.lost or self.doubled or self.altered or self.unexpected)

    @property
    def is_open(self) -> bool:
        """Return True if records are in flight, unread or without an identity.

        The result is then not final.
        """
        return bool(self.in_flight or self.unread or any(self.without_identity.values()))

    @property
    def ok(self) -> bool:
        """Return True if everything was compared without findings."""
        return not self.is_wrong and not self.is_open

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0 right, 1 wrong, 3 in flight or not readable to the end."""
        return int(Exit.WRONG if self.is_wrong else Exit.OPEN if self.is_open else Exit.RIGHT)

    @property
    def altered_if_compared(self) -> int | None:
        """Return the number of altered rows; None if no values were compared."""
        return self.altered if self.compared else None


def compare(
    source: str,
    target: str,
    by: str | Sequence[str],
    compare: str | Sequence[str] = (),
    *,
    settings: Settings | None = None,
    bootstrap: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Compare a topic or table with another, without writing to them.

    Args:
        source: address of the records sent, such as "kafka:orders".
        target: address of the records that arrived, such as "postgresql://host/db?table=orders".
        by: identity on both sides, such as "field:id=id"; several parts form one identity.
        compare: values to compare in addition to the identity, named as in `by`.
        settings: client options of Kafka; None: defaults.
        bootstrap: Kafka's address, in place of the settings' one.
        progress: function called with an address and the number of its rows read so far.
        options: fields of `Options`.

    Raises:
        SettingsError: an address, name or option is wrong.
        SourceError: a side cannot be opened or read.
        TopicMissing: there is no such topic.
        BrokerUnavailable: Kafka does not answer.
    """
    known = settings or Settings()
    if bootstrap is not None:
        known = known.model_copy(update={"bootstrap": bootstrap})
    with Comparer(source, target, by, Options(compare=compare, **options), known) as comparer:
        return comparer.run(progress)


class Comparer:
    """Comparison of two addresses, which can be run repeatedly. It is a context manager.

    Raises:
        SettingsError: an address, name or option is wrong.
    """

    def __init__(self, source: str, target: str, by: str | Sequence[str], options: Options, settings: Settings) -> None:
        self._options, self._settings = options, settings
        self._source, self._target = Address.parse(source), Address.parse(target)
        self._by = pairs(by, self._source, self._target, "--by")
        self._compared = pairs(options.compare, self._source, self._target, "--compare") if options.compare else []
        if not self._by:
            raise SettingsError("--by is missing: name the identity, such as --by field:id=id")
        if options.sample < 0:
            raise SettingsError(f"--sample {options.sample}: write a number from 0 on")
        self._grace_s = seconds(options.grace, "--grace")
        self._bounds(0)
        self._engine = Engine(options.memory_mb, options.state)
        try:
            self._engine.require_same(
                {
                    "from": str(self._source),
                    "to": str(self._target),
                    "by": ", ".join(f"{each.source}={each.target}" for each in self._by),
                    "compare": ", ".join(f"{each.source}={each.target}" for each in self._compared),
                    "value format": f"{options.value_format}, {options.target_format or options.value_format}",
                }
            )
        except BaseException:
            self._engine.close()
            raise

    @property
    def source(self) -> str:
        """Return the source's address, without a password."""
        return str(self._source)

    @property
    def target(self) -> str:
        """Return the target's address, without a password."""
        return str(self._target)

    def roll_back(self) -> None:
        """Discard the rows and values kept by a failed run."""
        self._engine.roll_back()

    def __enter__(self) -> Comparer:
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.close()

    def _bounds(self, now_ms: int) -> tuple[Bound | None, Bound | None]:
        found = []
        for option, text in (("--since", self._options.since), ("--until", self._options.until)):
            bound = None if text is None else Bound.parse(text, option, now_ms)
            if bound is not None and bound.ms is None and not self._source.is_topic:
                raise SettingsError(f"{option} {text!r}: {self._source} has no offsets; give a time")
            found.append(bound)
        return found[0], found[1]

    def run(self, progress: Progress | None = None) -> Comparison:
        """Read both sides and compare them.

        The target is read as of an earlier moment than the source; records of the time between count as in flight.

        Raises:
            SettingsError: an option does not fit a side, or a table declares other types than at the last run.
            SourceError, BrokerUnavailable: a side cannot be read, or Kafka does not answer.
            TopicReplaced, LogTruncated: the topic was created again, or has lost records already read.
        """
        now_ms = round(time.time() * 1000)
        since, until = self._bounds(now_ms)
        result = Comparison(str(self._source), str(self._target), _names(self._by), _names(self._compared))
        with ExitStack() as stack:
            self._engine.begin()
            source, target, edges = self._opened(stack)
            if isinstance(source, TableSide) and (since or until or self._grace_s) and source.timestamp is None:
                raise SettingsError(
                    f"--since, --until and --grace need the time column of {self._source}. Name it with --timestamp "
                    "COLUMN"
                )
            by = [exact(kind) for kind in self._kinds(source, target, self._by)]
            compared = self._kinds(source, target, self._compared)
            self._require_same_types(source, target, [*by, *compared])
            ends: dict[Name, dict[int, int]] = {}
            sides: tuple[tuple[Name, TopicSide | TableSide], ...] = (("target", target), ("source", source))
            for name, side in sides:
                wanted = RequestedValues(_places(self._by, name, by), _places(self._compared, name, compared))
                self._keep(name, side, wanted, progress)
                result.unread += side.unread
                if isinstance(side, TopicSide):
                    ends[name] = side.next_offsets()
                    result.notes += side.notes()
            self._engine.commit(ends)
            self._name_absent(result, source, target)
            terms = RunConditions(
                as_is=self._options.as_is,
                contents=bool(self._compared),
                since=since,
                until=until,
                cutoff_ms=now_ms - round(self._grace_s * 1000) if self._grace_s else 2**62,
                latest_ms=now_ms + round(self._grace_s * 1000),
                edges=edges,
                sample=self._options.sample,
            )
            counted, findings = self._engine.compare(terms)
            for verdict in VERDICTS:
                setattr(result, verdict, getattr(counted, verdict))
            result.looked_for = counted.looked_for
            if (since or until) and self._engine.count("source") and not counted.looked_for:
                result.unread.append(f"{self._source}: no record is inside of --since and --until; nothing is compared")
            if counted.oldest_ms is not None:
                result.oldest_in_flight_s = max(0.0, (now_ms - counted.oldest_ms) / 1000)
            self._count_nameless(result, sides)
            self._count_without_fields(result, sides)
            result.source_rows, result.target_rows = self._engine.count("source"), self._engine.count("target")
            if result.target_rows and result.target_rows == result.unexpected and result.looked_for:
                result.notes.append(_no_common_identity(result, findings))
            result.findings = [self._shown(each, source, target) for each in findings]
        return result

    def _count_nameless(self, result: Comparison, sides: Sequence[tuple[Name, TopicSide | TableSide]]) -> None:
        """Count each side's rows without an identity, and record the place of the first such row."""
        for name, side in sides:
            count, place = self._engine.nameless(name)
            result.without_identity[name] = count
            if place is not None:
                result.first_without_identity[name] = side.where(*place)

    def _count_without_fields(self, result: Comparison, sides: Sequence[tuple[Name, TopicSide | TableSide]]) -> None:
        """Count records with values in another format, and note that these are not compared."""
        for name, side in sides:
            if not self._compared or not isinstance(side, TopicSide):
                continue
            count, place = self._engine.without_fields(name)
            if place is not None:
                result.unread.append(
                    f"{side.topic}: the values of {count:,} records have no fields in the format "
                    f"{self._format(name)}, and only the identities of these records are compared; the first: "
                    f"{_place(side.where(*place))}. Correct --value-format or --target-format"
                )

    def _name_absent(self, result: Comparison, source: TopicSide | TableSide, target: TopicSide | TableSide) -> None:
        """Add a note about each compared place, such as a field, that no row has.

        Such a place is null on both sides, and two nulls count as equal.
        """
        absent = {"source": self._absent("source", source), "target": self._absent("target", target)}
        for number, pair in enumerate(self._compared):
            if number in absent["source"] and number in absent["target"]:
                result.unread.append(
                    f"no row of {result.source} has {pair.source}, and no row of {result.target} has {pair.target}: "
                    "they are not compared. Correct the names in --compare"
                )
            elif number in absent["source"]:
                result.notes.append(f"no row of {result.source} has {pair.source}")
            elif number in absent["target"]:
                result.notes.append(f"no row of {result.target} has {pair.target}")

    def _absent(self, name: Name, side: TopicSide | TableSide) -> set[int]:
        """Return the indexes of the compared places at which no row of a side has ever had a value."""
        if not self._engine.count(name):
            return set()
        present = self._present(name) if isinstance(side, TopicSide) else side.present
        return {number for number in range(len(self._compared)) if len(self._by) + number not in present}

    def _present(self, name: Name) -> set[int]:
        """Return the indexes of the wanted places at which any record of a topic has ever had a value."""
        return {int(number) for number in (self._engine.kept(f"places of {name}") or "").split()}

    def _format(self, name: Name) -> str:
        options = self._options
        return options.value_format if name == "source" else options.target_format or options.value_format

    def _opened(self, stack: ExitStack) -> tuple[TopicSide | TableSide, TopicSide | TableSide, dict[int, int] | None]:
        """Open both sides, and fix an earlier moment for the target than for the source.

        Returns (source, target, end offset by partition of the source). The last is None if the source is a table.

        A topic is read up to its end as of the first read; a table is read as of its opening. So a
        table as source is opened last, once the target's end is fixed. Otherwise the table would lack rows that came to
        both sides after its opening.
        """
        if self._source.is_topic:
            source = self._open("source")
            stack.callback(source.close)
            edges = _edges(source)
        target = self._open("target")
        stack.callback(target.close)
        if not self._source.is_topic:
            if isinstance(target, TopicSide):
                self._go_on("target", target)
            source, edges = self._open("source"), None
            stack.callback(source.close)
        return source, target, edges

    def _open(self, name: Name) -> TopicSide | TableSide:
        options = self._options
        address = self._source if name == "source" else self._target
        if address.is_topic:
            decode = decoder(self._format(name), address.place, options.schema_registry, options.registry_options)
            return TopicSide(address, self._settings, decode)
        if name == "source":
            return open_table(address, options.source_options, options.timestamp)
        return open_table(address, options.target_options, None)

    def _kinds(
        self, source: TopicSide | TableSide, target: TopicSide | TableSide, chosen: list[ValuePair]
    ) -> list[Kind]:
        left = source.kinds([each.source for each in chosen])
        right = target.kinds([each.target for each in chosen])
        return [common(a, b) for a, b in zip(left, right, strict=True)]

    def _require_same_types(
        self, source: TopicSide | TableSide, target: TopicSide | TableSide, kinds: Sequence[Kind]
    ) -> None:
        """Check that a table declares the same types as at the last run.

        The last run has kept texts of a topic's values, which depend on these types.

        Raises:
            SettingsError: a table declares other types than at the last run.
        """
        types = ", ".join(kinds)
        kept = self._engine.kept("types")
        if kept not in (None, types) and any(isinstance(side, TopicSide) for side in (source, target)):
            raise SettingsError(
                f"the compared columns had other types at the last run: {kept} then, {types} now. The rows kept "
                "from the topic do not fit them. Start a new comparison, with another file for --state"
            )
        self._engine.keep("types", types)

    def _keep(
        self, name: Name, side: TopicSide | TableSide, wanted: RequestedValues, progress: Progress | None
    ) -> None:
        """Read one side, and store its rows in the engine."""
        if not isinstance(side, TopicSide):
            self._engine.forget(name)
        elif not side.is_end_fixed:
            self._go_on(name, side)
        read = 0
        address = str(self._source if name == "source" else self._target)
        for rows in side.rows(wanted):
            self._engine.add(name, rows)
            read += len(rows)
            if progress is not None:
                progress(address, read)
        if isinstance(side, TopicSide):
            side.require_same_topic(side.id, "when this comparison began")
            self._engine.keep(f"places of {name}", " ".join(map(str, sorted(side.present | self._present(name)))))

    def _go_on(self, name: Name, side: TopicSide) -> None:
        """Continue reading a topic at the offsets of the last run, if there was one.

        Raises:
            TopicReplaced: the topic was deleted and created again since the last run.
            LogTruncated: the topic has lost records already read.
        """
        kept = self._engine.kept(f"id of {name}")
        if kept is not None:
            side.require_same_topic(kept, "at the last run")
        self._engine.keep(f"id of {name}", side.id)
        side.fix_end()
        side.read_from(self._engine.progress(name))
        for number, gap in side.gaps.items():
            self._engine.keep_gap(name, number, gap.first, gap.end)
        for number, first, end in self._engine.gaps(name):
            side.unread.append(
                f"{side.topic}, partition {number}: offsets {first:,} to {end - 1:,} were deleted before a run had "
                "read them; their records are not compared"
            )

    def _shown(self, found: RowFinding, source: TopicSide | TableSide, target: TopicSide | TableSide) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "finding": found.kind,
            "identity": shown_identity(found.identity),
            "count": found.count,
            "source": None if found.source is None else source.where(*found.source),
            "target": [target.where(*place) for place in found.targets],
        }
        if found.expected is not None and found.found is not None:
            names = _names(self._compared)
            pairs_of = zip(names, content_parts(found.expected), content_parts(found.found), strict=True)
            shown["values"] = {name: {"source": a, "target": b} for name, a, b in pairs_of if a != b}
        return shown


def _no_common_identity(result: Comparison, findings: Sequence[RowFinding]) -> str:
    """Return a sentence about two sides without a common identity.

    Often both sides have the same identities, but write them in different forms.
    """
    first = {each.kind: each.identity for each in reversed(findings)}
    ours, theirs = first.get("lost", first.get("in_flight")), first.get("unexpected")
    forms = (
        "" if ours is None or theirs is None else f", such as {shown_identity(ours)!r} and {shown_identity(theirs)!r}"
    )
    return (
        f"{result.source} and {result.target} have no identity in common{forms}. If the pipeline writes identities in "
        "another form, --by must name a value that is written equally on both sides"
    )


def _edges(source: TopicSide | TableSide) -> dict[int, int] | None:
    """Return the end offset of each partition of the source; None if the source is a table."""
    if not isinstance(source, TopicSide):
        return None
    return {number: span.end for number, span in source.ends().items()}


def _names(chosen: Sequence[ValuePair]) -> list[str]:
    return [each.name for each in chosen]


def _places(chosen: Sequence[ValuePair], name: str, kinds: Sequence[Kind]) -> list[tuple[Any, Kind]]:
    return [(getattr(each, name), kind) for each, kind in zip(chosen, kinds, strict=True)]


def assert_same(source: str, target: str, *, by: str | Sequence[str], **options: Any) -> Comparison:
    """Fail a test if a comparison finds records lost, doubled, altered, unexpected or in flight.

    Args:
        source: as in `compare`.
        target: as in `compare`.
        by: as in `compare`.
        options: as in `compare`.

    Raises:
        AssertionError: the comparison found something; the text has counts and the first findings with their places.
    """
    __tracebackhide__ = True
    result = compare(source, target, by, **options)
    if not result.ok:
        raise AssertionError("\n".join(lines(result, 20)))
    return result


def lines(result: Comparison, most: int) -> list[str]:
    """Return a comparison as lines of text: each finding with its places, then the counts."""
    found = [finding_line(each) for each in result.findings[:most]]
    listed = len(result.findings)
    total = sum(getattr(result, name) for name in VERDICTS)
    if listed > most or total > sum(each["count"] for each in result.findings):
        found.append("more findings are counted and not listed")
    found += [*result.unread, *(f"note: {each}" for each in result.notes)]
    for side, count in result.without_identity.items():
        if count:
            address = result.source if side == "source" else result.target
            first = _place(result.first_without_identity[side])
            by = ", ".join(result.by)
            found.append(f"{address}: {count:,} rows have no identity ({by}) and are not compared; the first: {first}")
    inside = "" if result.looked_for == result.source_rows else f" ({result.looked_for:,} of them looked for)"
    altered = f"altered {result.altered:,}" if result.compared else "altered: not compared"
    counts = (
        f"lost {result.lost:,}, doubled {result.doubled:,}, {altered}, unexpected {result.unexpected:,}, "
        f"in flight {result.in_flight:,}"
    )
    return [
        *found,
        f"{result.source_rows:,} rows of {result.source}{inside}, {result.target_rows:,} of {result.target}",
        counts,
    ]


def finding_line(found: Mapping[str, Any]) -> str:
    """Return one finding as a line of text."""
    places = [_place(found["source"])] if found["source"] else []
    places += [_place(each) for each in found["target"]]
    count = f" {found['count']:,} times" if found["count"] > 1 else ""
    values = "".join(
        f"; {name} {_value(each['source'])} -> {_value(each['target'])}"
        for name, each in found.get("values", {}).items()
    )
    return f"{found['finding'].replace('_', ' ')}{count}: {found['identity']}: {', '.join(places)}{values}"


def _value(text: str | None) -> str:
    return "null" if text is None else text


def _place(place: Mapping[str, Any]) -> str:
    if "topic" in place:
        return f"{place['topic']} partition {place['partition']} offset {place['offset']:,}"
    file = f" of {place['file']}" if "file" in place else ""
    return f"{place['table']} row {place['row']:,}{file}"
