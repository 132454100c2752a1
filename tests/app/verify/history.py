"""Random histories of one partition, in memory: an oracle for `verify`, which does not use the rule it is to check."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.verify.policies import PolicyRecord, PolicyTopic
from kafka_ratchet.app.verify.reading import OffsetRanges
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.tables.edits import FORGET, Edit
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.transport.owner import INPUT, OUTPUT, POLICY, RECORDS, Decision, Mark, Owner, Topic

IN, OUT, DEAD, POLICIES = "in", "out", "dead", "shop-policy"
HEADERS = "producer", "header:ratchet-sequence"
FIELDS = "field:id", "field:n"
LETTER: Final = ("ratchet-reason", "ratchet-topic", "ratchet-partition", "ratchet-offset")


@dataclass(frozen=True)
class Event:
    """A record, and what each rule finds in it.

    Attributes:
        record: as in the input
        known: identity and sequence by rule; None where the rule finds none
        replayed: sent again from a dead letter
    """

    record: RecordView
    known: dict[tuple[str, str], tuple[bytes, int] | None]
    replayed: bool = False


@dataclass
class Log:
    """Records of a topic by offset; the offsets between them are of markers and aborted transactions."""

    records: dict[int, RecordView] = field(default_factory=dict)
    begin: int = 0
    end: int = 0
    number: int = 0

    def add(self, record: RecordView) -> int:
        """Append a record."""
        self.records[self.end] = record
        self.end += 1
        return self.end - 1

    def skip(self, count: int = 1) -> None:
        """Append a marker, or records of an aborted transaction."""
        self.end += count

    def recreate(self) -> None:
        """Delete the topic and create it again."""
        self.records, self.begin, self.end, self.number = {}, 0, 0, self.number + 1


class History:
    """A worker, its operator and its topics."""

    def __init__(self, choose: random.Random) -> None:
        """Begin with empty topics."""
        self.choose = choose
        self.rule = choose.choice([HEADERS, FIELDS])
        self.setting = choose.choice([None, None, None, False, True])
        self.logs = {name: Log() for name in (IN, OUT, DEAD)}
        self.events: dict[int, Event] = {}
        self.sent: list[Event] = []
        self.position, self.last = 0, dict[bytes, int]()
        self.intervals: list[PolicyInterval] = []
        self.edits: list[Edit] = []
        self.decisions: list[Decision] = []
        self.noted_rule = self.rule
        self.policy_topic, self.said = 0, dict[int, bool | None]()
        self.letters: list[tuple[Event, bool]] = []
        self.time, self.steps = 0, list[str]()
        self.comparable_from = self.letters_from = 0
        """First offset of the output, and of the dead letters, with input that is still there."""
        self.in_doubt, self._changed, self._learnt = False, False, False
        """Set where the last sequences of a deleted input cannot be told from the output."""

    # -- of others

    def publish(self, count: int) -> None:
        """Append new records, repeats, and records that a rule cannot read."""
        for _ in range(count):
            if self.sent and self.choose.random() < 0.3:
                again = self.choose.choice(self.sent)
                self._send(replace(again, record=self._now(again.record)))
                continue
            name, number = self.choose.choice(["a", "b", "c"]), self.choose.randrange(1, 60)
            other, further = self.choose.choice(["x", "y"]), self.choose.randrange(1, 60)
            has_headers, has_fields = self.choose.random() < 0.8, self.choose.random() < 0.8
            headers: list[tuple[str, bytes | None]] = [("trace", b"1")]
            if has_headers:
                headers += [("ratchet-producer", name.encode()), ("ratchet-sequence", b"%d" % number)]
            value = b'{"id": "%s", "n": %d}' % (other.encode(), further) if has_fields else b"no JSON"
            known = {
                HEADERS: (name.encode(), number) if has_headers else None,
                FIELDS: (other.encode(), further) if has_fields else None,
            }
            self._send(Event(self._now(RecordView(b"k", value, headers, 0)), known))

    def _now(self, record: RecordView) -> RecordView:
        self.time += 1
        return replace(record, timestamp_ms=self.time)

    def _send(self, event: Event) -> None:
        self.events[self.logs[IN].add(event.record)] = event
        if not event.replayed:
            self.sent.append(event)

    def open_elsewhere(self) -> None:
        """Leave records of an aborted transaction of another producer in the output."""
        self.logs[OUT].skip(self.choose.randrange(1, 4))

    # -- the worker

    @property
    def policy(self) -> tuple[bool, int]:
        """Return what holds now, and as of which offset of the policy topic."""
        said = max(self.said, default=-1)
        stored = self.said.get(said)
        default = True if self.setting is None else self.setting
        return default if stored is None else stored, said + 1

    def work(self, count: int) -> None:
        """Judge a batch, and commit."""
        end = min(self.position + count, self.logs[IN].end)
        batch = [offset for offset in range(self.position, end) if offset in self.events]
        if not batch:
            return
        deduplicate, policy = self.policy
        self._note_interval(deduplicate, policy, self.position, end, len(batch))
        self.noted_rule = self.rule
        self._changed |= not deduplicate
        written = {OUT: 0, DEAD: 0}
        for offset in batch:
            event, found = self.events[offset], self.events[offset].known[self.rule]
            if not deduplicate:
                to = OUT
            elif found is not None and found[1] > self.last.get(found[0], -1):
                self.last[found[0]], to = found[1], OUT
            elif found is None or event.replayed:
                to = DEAD
            else:
                continue
            written[to] += 1
            if to == OUT:
                self.logs[OUT].add(event.record)
            else:
                self.letters.append((event, False))
                self.logs[DEAD].add(self.letter(event.record, offset, is_read=found is not None))
        for name, records in written.items():
            if records:
                self.logs[name].skip()
        self.position = end

    def letter(self, record: RecordView, offset: int, *, is_read: bool) -> RecordView:
        """Return the dead letter of a record. is_read: it has identity and sequence."""
        reason = b"replay-not-new" if is_read else b"sequence-missing"
        origin = zip(LETTER, (reason, IN.encode(), b"0", b"%d" % offset), strict=True)
        return replace(record, headers=[*record.headers, *origin])

    def _note_interval(self, deduplicate: bool, policy: int, start: int, end: int, count: int) -> None:
        last = self.intervals[-1] if self.intervals else None
        if last is None:
            if (deduplicate, policy) == (True, 0):
                return
            last = PolicyInterval(-1, True, 0, 0, 0, 0)
        at, unjudged = max(policy, last.policy), 0 if deduplicate else count
        if last.number < 0 or last.deduplicate is not deduplicate or start < last.end:
            until = start if deduplicate else end
            self.intervals.append(PolicyInterval(last.number + 1, deduplicate, start, until, at, unjudged))
        elif not deduplicate:
            self.intervals[-1] = last._replace(end=end, policy=at, unjudged=last.unjudged + unjudged)
        elif at > last.policy:
            self.intervals[-1] = last._replace(policy=at)

    # -- the operator

    def switch(self) -> None:
        """Set or unset the policy."""
        self.said[max(self.said, default=-1) + 1] = self.choose.choice([True, False, None])

    def forget(self) -> None:
        """Have a known identity forgotten, or a part of it."""
        if not self.last:
            return
        identity = self.choose.choice(sorted(self.last))
        above = self.choose.choice([None, self.choose.randrange(60)])
        before, self._changed = self.last[identity], True
        after = -1 if above is None else min(before, above)
        who = f"{len(self.edits):016x}", FORGET, self._when(), "ann", "anew"
        self.edits.append(Edit(*who, self.position, identity.hex(), above, before, after))
        self.last.pop(identity)
        if after >= 0:
            self.last[identity] = after

    def _when(self) -> str:
        number = len(self.decisions) + len(self.edits)
        return f"2026-11-22T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"

    def resume(self, *, after: int | None = None, forget: bool | None = None, replaced: tuple[str, ...] = ()) -> None:
        """Record a decision, as `ratchet resume` does."""
        end = self.logs[IN].end
        before = None if INPUT in replaced else self.position
        if after is None:
            after = self.choose.choice([self.position, self.logs[IN].begin, self.choose.randint(0, end)])
        after = max(after, self.logs[IN].begin)
        forget = self.choose.random() < 0.5 if forget is None else forget
        rule = self._rule(self.noted_rule)
        ends = self.logs[OUT].end, self.logs[DEAD].end, 0
        last = self.intervals[-1] if self.intervals else None
        intervals = 0 if last is None else last.number + 1
        mark = Mark(rule, *ends, intervals, len(self.edits), len(self.last), replaced)
        what = "resume" + " --forget" * forget
        self.decisions.append(Decision(self._when(), "ann", what, "because", before, after, mark))
        if last is not None:
            self.intervals.append(PolicyInterval(intervals, True, after, after, 0, 0))
        if forget:
            self.last = {}
        self._learnt |= INPUT in replaced and not forget and bool(self.last)
        self.in_doubt |= self._learnt and (self._changed if INPUT in replaced else OUTPUT in replaced)
        self._changed = (self._changed and not forget) or OUTPUT in replaced
        self.noted_rule, self.position = self.rule, after

    def _rule(self, rule: tuple[str, str]) -> dict[str, str]:
        return {"identity": rule[0], "sequence": rule[1], "sequence_form": "guess", "output": RECORDS}

    def change_rule(self) -> None:
        """Change the rule, and begin without what was counted."""
        self.rule = HEADERS if self.rule == FIELDS else FIELDS
        self.resume(forget=True)

    def replay(self) -> None:
        """Send the dead letters again."""
        left = [number for number, (_, done) in enumerate(self.letters) if not done]
        for number in left[: self.choose.randrange(1, 6)]:
            event = self.letters[number][0]
            self.letters[number] = event, True
            if not event.replayed:
                headers = [*event.record.headers, ("ratchet-replays", b"1")]
                self._send(Event(replace(event.record, headers=headers), event.known, replayed=True))

    def recreate_output(self) -> None:
        """Delete the output, create it again, and decide."""
        decided = {"after": 0, "forget": True} if self.choose.random() < 0.5 else {"after": self.position}
        self.logs[OUT].recreate()
        self.comparable_from = 0
        self.resume(**decided, replaced=(OUTPUT,))  # type: ignore[arg-type]

    def recreate_input(self) -> None:
        """Delete the input, create it again, and decide."""
        self.events, self.sent = {}, self.sent[-20:]
        self.logs[IN].recreate()
        self.letters = [(event, True) for event, _ in self.letters]
        self.resume(after=0, replaced=(INPUT,))
        self.comparable_from, self.letters_from = self.logs[OUT].end, self.logs[DEAD].end

    def recreate_policies(self) -> None:
        """Delete the policy topic, create it again, and decide."""
        if self.said:
            self.policy_topic, self.said = self.policy_topic + 1, {}
            self.resume(after=self.position, forget=False, replaced=(POLICY,))

    def step(self) -> None:
        """Take one random step."""
        names, weights = zip(*STEPS.items(), strict=True)
        (name,) = self.choose.choices(names, weights)
        self.steps.append(name)
        match name:
            case "publish":
                self.publish(self.choose.randrange(1, 12))
            case "work":
                self.work(self.choose.randrange(1, 15))
            case "resume":
                self.resume()
            case _:
                getattr(self, name)()

    def finish(self) -> None:
        """Judge all that is left."""
        while self.position < self.logs[IN].end:
            before = self.position
            self.work(50)
            assert self.position > before

    # -- as the changelog and the settings have it

    @property
    def owner(self) -> Owner:
        """Return the owner entry."""
        topics = {part: Topic(name, self.id_of(name)) for part, name in ((INPUT, IN), (OUTPUT, OUT))}
        if self.said:
            topics[POLICY] = Topic(POLICIES, self.id_of(POLICIES))
        return Owner("shop", "events", self._rule(self.noted_rule), topics, tuple(self.decisions))

    def id_of(self, name: str) -> str:
        """Return the id of a topic."""
        number = self.policy_topic if name == POLICIES else self.logs[name].number
        return f"{name}-{number}"

    @property
    def settings(self) -> Settings:
        """Return the settings of the workers."""
        stream = StreamSettings(
            input=IN,
            output=OUT,
            dead_letters=DEAD,
            identity=self.rule[0],  # type: ignore[arg-type]
            sequence=self.rule[1],
            deduplicate=self.setting,
        )
        return Settings(app="shop", bootstrap="none:1", streams={"events": stream})


STEPS: Final = {
    "publish": 8,
    "work": 8,
    "switch": 1.5,
    "forget": 1.5,
    "resume": 1,
    "change_rule": 0.7,
    "replay": 1,
    "open_elsewhere": 1,
    "recreate_output": 0.3,
    "recreate_input": 0.3,
    "recreate_policies": 0.3,
}


class MemoryReader:
    """Reader of a history, in place of `TopicReader`."""

    history: History
    partitions = 1

    def __init__(self, *_: object) -> None:
        """Nothing is opened."""
        self.topic_ids = {name: self.history.id_of(name) for name in (IN, OUT, DEAD)}
        self.topic_ids |= {POLICIES: self.history.id_of(POLICIES)}

    def letters_topic(self) -> tuple[str, str, str]:
        return "shop", DEAD, self.topic_ids[DEAD]

    def offset_ranges(self) -> OffsetRanges:
        logs, position = self.history.logs, self.history.position
        own = {0: position}
        ends = {0: logs[IN].end}, {0: logs[OUT].end}, {0: logs[DEAD].end}
        begins = {0: logs[IN].begin}, {0: logs[OUT].begin}, {0: logs[DEAD].begin}
        return OffsetRanges(own, own, frozenset(), *ends, {0: logs[IN].end}, *begins)

    def records(self, topic: str, partition: int, end: int, begin: int = 0) -> Iterator[tuple[int, RecordView]]:
        log = self.history.logs[topic]
        assert begin >= log.begin or begin >= end, f"{topic}: {begin} is deleted"
        return iter([(offset, log.records[offset]) for offset in sorted(log.records) if begin <= offset < end])

    def dead_letters(self, begins: dict[int, int], ends: dict[int, int]) -> Iterator[tuple[int, int, RecordView]]:
        return ((0, offset, record) for offset, record in self.records(DEAD, 0, ends[0], begins[0]))

    def changelog_name(self, app: str, stream: str) -> str:
        return f"{app}-{stream}"

    def changelog(self, _: str) -> tuple[dict[int, Any], dict[int, Owner], dict[int, Any]]:
        history = self.history
        return {0: list(history.intervals)}, {0: history.owner}, {0: list(history.edits)}

    def policies(self, name: str) -> PolicyTopic:
        said = {offset: PolicyRecord("events", each) for offset, each in self.history.said.items()}
        return PolicyTopic(name, 0, len(said), dict(said))

    def begins(self, topic: str, _: object) -> dict[int, int]:
        return {0: self.history.logs[topic].begin}

    def blocked(self, *_: object) -> list[object]:
        return []

    def is_compacted(self, topic: str) -> bool:
        return False

    def published(self, _: str) -> None:
        return None


DAMAGES = ("lost", "doubled", "swapped", "altered", "foreign", "letter lost", "letter doubled", "letter altered")


def damage(history: History, kind: str, choose: random.Random) -> bool:
    """Change one thing that a proof has to find; returns False where there is nothing to change."""
    is_letter = kind.startswith("letter")
    log = history.logs[DEAD if is_letter else OUT]
    first = history.letters_from if is_letter else history.comparable_from
    offsets = sorted(offset for offset in log.records if offset >= first)
    if not offsets:
        return False
    at = choose.choice(offsets)
    match kind.removeprefix("letter "):
        case "lost":
            del log.records[at]
        case "doubled":
            log.add(log.records[at])
        case "altered":
            log.records[at] = replace(log.records[at], value=b"altered")
        case "foreign":
            log.add(RecordView(b"k", b"foreign", [("ratchet-producer", b"zz"), ("ratchet-sequence", b"77")], 1))
        case "swapped":
            following = [offset for offset in offsets if offset > at and log.records[offset] != log.records[at]]
            if not following:
                return False
            other = following[0]
            log.records[at], log.records[other] = log.records[other], log.records[at]
    return True
