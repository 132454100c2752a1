"""Task that deduplicates: it reads a Kafka partition's records in order, and yields the new ones.

The executors run nested functions with their own imports: cloudpickle sends them by value, so executors need pyarrow
and nothing of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from kafka_ratchet.rule import number_forms as forms
from kafka_ratchet.rule.form_look import number_look
from kafka_ratchet.rule.reasons import REASONS, REPLAY_NOT_NEW
from kafka_ratchet.rule.verdicts import TOO_LATE
from kafka_ratchet.spark_sink.rows.judging.reading import DOUBTFUL, IDENTITY, REASON, RECORD, REPLAYED, SEQUENCE
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.spark.python_worker import Task

if TYPE_CHECKING:
    import pyarrow as pa

LAST, SEEN = "_last", "_seen"
"""Columns with the last sequence of an identity, and with the seen sequences below it. `SEEN` exists only with a
reorder window, and contains sequences within that window."""

NOT_NEW: Final = REASONS[REPLAY_NOT_NEW]

CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Bytes of records that a task holds in memory and judges at a time. For each such chunk, the task looks up the last
sequences of identities that no earlier chunk had, so there should be few chunks."""

STATE_ROWS: Final = 50_000
"""Number of last sequences that a task returns at a time."""

Known = Callable[[int, Sequence[bytes]], Iterable[tuple[bytes, int, Sequence[int] | None]]]
"""Function that looks up the last sequences stored before a slice; executors call it.

Its arguments are the number of a Kafka partition, and identities of that partition. It yields each stored identity with
its last sequence and the seen sequences below it (None without a reorder window). If it yields an identity several
times, the highest last sequence counts.
"""


def judging(rule: JudgeRule, known: Known | None) -> Task:
    """Return the task that deduplicates the records of Kafka partitions in an executor.

    It takes the columns of `reading.read`, and yields all records except duplicates, with a reason for rejects. The
    changed last sequences follow as rows with `LAST` (with a window, also `SEEN`) and the identity as `key`; all other
    columns are null there.

    The task raises ValueError if a Kafka partition's records are not in the order of their offsets, or if no setting
    states the format of sequences and the guessed format seems wrong (`kafka_ratchet.rule.number_forms`).
    """
    partition_of, states = _partitions(rule, known), _states(rule)
    record, of_reason, of_last, of_seen, window = RECORD, REASON, LAST, SEEN, rule.reorder_window
    chunk_bytes = CHUNK_BYTES

    def tables(batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches joined into tables of about `CHUNK_BYTES`."""
        import pyarrow as pa

        gathered, size = [], 0
        for batch in batches:
            gathered.append(batch)
            size += batch.nbytes
            if size >= chunk_bytes:
                yield pa.Table.from_batches(gathered)
                gathered, size = [], 0
        if gathered:
            yield pa.Table.from_batches(gathered)

    def judge(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        partitions: dict[int, Any] = {}
        schema: Any = None
        for table in tables(batches):
            if schema is None:
                fields = [table.schema.field(name) for name in (*record, of_reason)]
                fields += [pa.field(of_last, pa.int64())]
                fields += [pa.field(of_seen, pa.list_(pa.int64()))] if window else []
                schema = pa.schema([field.with_nullable(True) for field in fields])
            numbers = pc.unique(table["partition"]).to_pylist()
            for number in numbers:
                part = table if len(numbers) == 1 else table.filter(pc.equal(table["partition"], number))
                partition = partitions.setdefault(number, partition_of(number))
                kept, reasons = partition.judge(part)
                left = part.select(list(record)).filter(pa.array(kept, pa.bool_()))
                columns = [*left.columns, pa.array(reasons, schema.field(of_reason).type)]
                columns += [pa.nulls(left.num_rows, field.type) for field in schema if field.name in (of_last, of_seen)]
                yield from pa.Table.from_arrays(columns, schema=schema).to_batches()
        for partition in partitions.values():
            yield from states(partition, schema)

    return judge


def _partitions(rule: JudgeRule, known: Known | None) -> Callable[[int], Any]:
    """Return the class of a task's state for one Kafka partition; its constructor takes the partition's number."""
    window, late_is_rejected = rule.reorder_window, rule.late == "dead-letter"
    too_late, not_new = TOO_LATE, NOT_NEW
    new_watch, is_guessed, first_byte, header = (
        _form_watch_class(),
        rule.is_guessed,
        forms.FIRST_BYTE,
        rule.sequence_header or "",
    )
    of_doubtful, sentence = DOUBTFUL, forms.sentence_maker()
    of_reason, of_identity, of_sequence, of_replayed = REASON, IDENTITY, SEQUENCE, REPLAYED

    class Partition:
        def __init__(self, number: int) -> None:
            self.number, self.offset = number, -1
            self.last: dict[bytes, int] = {}
            self.seen: dict[bytes, set[int]] = {}
            self.changed: set[bytes] = set()
            self.watch = new_watch()

        def judge(self, table: pa.Table) -> tuple[list[bool], list[str | None]]:
            """Judge the records: return whether each is kept, and a reason for each kept record.

            The reason is None for a new record, and names the cause for a reject.
            """
            import pyarrow.compute as pc

            self.require_order(table["offset"].combine_chunks())
            identities, sequences = table[of_identity].to_pylist(), table[of_sequence].to_pylist()
            nothing = [None] * len(identities)
            reasons = nothing if table[of_reason].null_count == len(nothing) else table[of_reason].to_pylist()
            replayed = table[of_replayed].to_pylist() if pc.any(table[of_replayed]).as_py() else nothing
            self.look_up({identity for identity in identities if identity is not None and identity not in self.last})
            lasts, changed = self.last, self.changed
            texts = table[of_doubtful].to_pylist() if is_guessed else nothing
            self.watch.begin(texts)
            kept: list[bool] = []
            why: list[str | None] = []
            for identity, sequence, reason, again, text in zip(
                identities, sequences, reasons, replayed, texts, strict=True
            ):
                last = lasts.get(identity, -1) if reason is None else -1
                # Most integers rise and are small. Those have no other form.
                if text and (reason is not None or sequence >= first_byte or sequence <= last):
                    self.require_form(len(kept), table["offset"], identity, text, last)
                if reason is None:
                    if sequence > last:
                        if window:
                            self.rise(identity, last, sequence)
                        lasts[identity] = sequence
                        changed.add(identity)
                    elif window and self.fills_a_gap(identity, last, sequence):
                        changed.add(identity)
                    elif again:
                        reason = not_new
                    elif late_is_rejected and last - sequence > window:
                        reason = too_late
                    else:
                        kept.append(False)
                        continue
                kept.append(True)
                why.append(reason)
            return kept, why

        def require_form(self, at: int, offsets: Any, identity: bytes | None, text: bytes, last: int) -> None:
            if form := self.watch.form_at(at, last):
                owner = "" if identity is None else f", identity {identity!r}"
                reason = sentence(form, header, text, last)
                raise ValueError(f"partition {self.number}, offset {offsets[at]}{owner}: {reason}")

        def require_order(self, offsets: pa.Array) -> None:
            import pyarrow.compute as pc

            rises = pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py()  # of one offset: null
            if offsets[0].as_py() <= self.offset or rises is False:
                raise ValueError(
                    f"partition {self.number}: the records are not in the order of their offsets. Run the job again"
                )
            self.offset = offsets[-1].as_py()

        def look_up(self, identities: set[bytes]) -> None:
            """Load the last sequences of identities that no earlier record of the task had."""
            if known is None or not identities:
                return
            for identity, last, seen in known(self.number, list(identities)):
                self.last[identity] = max(last, self.last.get(identity, -1))
                if window:
                    self.seen.setdefault(identity, set()).update([*(seen or ()), last])

        def rise(self, identity: bytes, last: int, sequence: int) -> None:
            """Mark the previous last sequence as seen, because a higher sequence replaces it."""
            seen = self.seen.setdefault(identity, set())
            seen.add(last)
            if len(seen) > 2 * window + 64:  # not each time, because it costs as much as there are seen ones
                self.seen[identity] = {each for each in seen if each >= sequence - window}

        def fills_a_gap(self, identity: bytes, last: int, sequence: int) -> bool:
            """Return True if a lower sequence than the last is within the window and unseen.

            Such a sequence is then marked as seen.
            """
            if sequence == last or last - sequence > window or sequence in self.seen[identity]:
                return False
            self.seen[identity].add(sequence)
            return True

    return Partition


def _form_watch_class() -> Callable[[], Any]:
    """Return the class that detects a wrong sequence format in a Kafka partition, like a worker's `FormWatch`."""
    form_of, dismisses = number_look()
    letters, hexadecimal_form, neighbours = forms.LETTERS, forms.HEXADECIMAL, forms.NEIGHBOURS
    space, tilde, least, share = forms.SPACE, forms.TILDE, forms.HEX_LEAST, forms.HEX_SHARE

    def integers(texts: Sequence[bytes | None]) -> list[int]:
        return [int.from_bytes(text, "big", signed=True) for text in texts if text and len(text) == 8]

    class FormWatch:
        def __init__(self) -> None:
            self.texts: Sequence[bytes | None] = ()
            self.recent: list[int] = []
            self.counted = self.decimal = self.hexadecimal = 0

        def begin(self, texts: Sequence[bytes | None]) -> None:
            """Continue with the next records of the partition. texts: sequence headers as in `DOUBTFUL`."""
            self.count_to(len(self.texts))
            self.recent = [*self.recent, *integers(self.texts[-neighbours:])][-neighbours:]
            self.texts, self.counted = texts, 0

        def count_to(self, at: int) -> None:
            self.decimal += self.texts[self.counted : at].count(b"")
            self.counted = at

        def form_at(self, at: int, last: int) -> int:
            """Return the number of the format that a record's sequence header seems to have.

            The number is 0 if the guessed format seems right. at: index of the record; last: last sequence of the
            record's identity.
            """
            text = self.texts[at] or b""
            if len(text) != 8:
                self.count_to(at)
                self.hexadecimal += 1
                is_share = self.hexadecimal >= share * (self.hexadecimal + self.decimal)
                return hexadecimal_form if self.decimal and self.hexadecimal >= least and is_share else 0
            if all(space <= byte <= tilde for byte in text):
                return letters
            (number,) = integers([text])
            form = form_of(number, last)
            if not form or number < 0:
                return form
            around = integers(self.texts[max(at - neighbours, 0) : at + neighbours + 1])
            around += self.recent if at < neighbours else []
            return 0 if any(dismisses(form, number, other) for other in around) else form

    return FormWatch


def _states(rule: JudgeRule) -> Callable[[Any, pa.Schema], Iterator[Any]]:
    """Return the function that yields a `Partition`'s changed last sequences as batches."""
    window, of_last, of_seen, state_rows = rule.reorder_window, LAST, SEEN, STATE_ROWS

    def states(partition: Any, schema: pa.Schema) -> Iterator[Any]:
        import pyarrow as pa

        changed = list(partition.changed)
        for begin in range(0, len(changed), state_rows):
            some = changed[begin : begin + state_rows]
            lasts = [partition.last[identity] for identity in some]
            found: dict[str, list[Any]] = {"partition": [partition.number] * len(some), "key": some, of_last: lasts}
            if window:
                found[of_seen] = [
                    sorted(each for each in partition.seen[identity] if max(0, last - window) <= each < last)
                    for identity, last in zip(some, lasts, strict=True)
                ]
            columns = [
                pa.array(found[field.name], field.type) if field.name in found else pa.nulls(len(some), field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return states
