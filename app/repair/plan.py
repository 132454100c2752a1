"""Plan of a repair: counts of all wrong rows, and details of the first few of each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.verify.findings import FindingKind

if TYPE_CHECKING:
    from kafka_ratchet.app.verify.identities import Numbers

Action = Literal["put in", "replace", "remove", "stays"]

KINDS: Final[tuple[FindingKind, ...]] = ("lost", "doubled", "altered", "unexpected")
"""Kinds of findings, as `verify --results` counts them."""

COORDINATES = pa.schema([("_kafka_partition", pa.int32()), ("_kafka_offset", pa.int64())])
"""Schema of partition and offset of a record, which identify its row or reject."""


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """Planned change of the wrong rows of one record or key."""

    kind: FindingKind
    action: Action
    where: Literal["result", "rejects"]
    partition: int | None
    offset: int | None
    key: str
    """Key of the rows as text; "": the table has a row for each record, and no key."""
    detail: str

    def __str__(self) -> str:
        place = [] if self.partition is None else [f"partition {self.partition} offset {self.offset}"]
        place += [f"key {self.key}"] if self.key else []
        rejects = " of the rejects" if self.where == "rejects" else ""
        return f"{self.action}{rejects}: {', '.join(place)}: {self.kind}, {self.detail}"


class RecordSet:
    """Set of records, by partition and offset."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int | None, list[int | None]]] = []

    def add(self, partition: int | None, offsets: Iterable[int | None]) -> None:
        """Add records of one partition. A partition or offset None stands for null in a row."""
        self._pieces.append((partition, list(offsets)))

    def table(self) -> pa.Table:
        """Return a table with each collected pair of partition and offset once."""
        partitions = [partition for partition, offsets in self._pieces for _ in offsets]
        offsets = [offset for _, offsets in self._pieces for offset in offsets]
        found = pa.table([partitions, offsets], schema=COORDINATES)
        return found.group_by(COORDINATES.names).aggregate([]).select(COORDINATES.names)


@dataclass
class RepairPlan(Document):
    """Findings in one result table, and the rows that the repair replaces."""

    json_keys = (
        "table",
        "job",
        "kind",
        *(f"{kind}=counts.{kind}" for kind in KINDS),
        "put_in=actions.put in",
        "replace=actions.replace",
        "remove=actions.remove",
        "stays=actions.stays",
        "before",
        "cannot",
        "offsets",
        "rows",
    )

    table: str
    job: str
    kind: str
    sample: int
    """Maximum number of findings of each kind and action to keep in `rows`."""
    offsets: dict[int, int] = field(default_factory=dict)
    counts: Counter[FindingKind] = field(default_factory=Counter)
    """Number of wrong records or keys by kind, including the records or keys that the repair does not change."""
    actions: Counter[Action] = field(default_factory=Counter)
    rows: list[PlannedRow] = field(default_factory=list)
    cannot: list[str] = field(default_factory=list)
    """Sentences about faults that the repair cannot correct."""
    before: int = 0
    """Number of rows that cannot be checked, because retention has deleted their records."""
    gone: pa.Table = field(default_factory=COORDINATES.empty_table)
    put_in: pa.Table = field(default_factory=COORDINATES.empty_table)
    rejects_gone: pa.Table = field(default_factory=COORDINATES.empty_table)
    rejects_put_in: pa.Table = field(default_factory=COORDINATES.empty_table)
    _named: Counter[tuple[FindingKind, Action]] = field(default_factory=Counter)

    @property
    def mends(self) -> bool:
        """Return True if the plan changes any row."""
        tables = (self.gone, self.put_in, self.rejects_gone, self.rejects_put_in)
        return any(each.num_rows for each in tables)

    @property
    def is_right(self) -> bool:
        """Return True if nothing is wrong, and everything could be compared."""
        return not self.counts and not self.cannot

    def add(
        self,
        kind: FindingKind,
        action: Action,
        place: tuple[int | None, int | None],
        detail: str,
        *,
        key: str = "",
        rejects: bool = False,
    ) -> None:
        """Count a finding about one record or key; keep the first few of each kind in `rows`."""
        self.counts[kind] += 1
        self.actions[action] += 1
        if self._named[kind, action] < self.sample:
            self._named[kind, action] += 1
            where: Literal["result", "rejects"] = "rejects" if rejects else "result"
            self.rows.append(PlannedRow(kind, action, where, *place, key, detail))

    def add_offsets(
        self, kind: FindingKind, action: Action, partition: int, offsets: Numbers, detail: str, *, rejects: bool = False
    ) -> None:
        """Count a finding for each record at these offsets; see `add`."""
        if not len(offsets):
            return
        left = self.sample - self._named[kind, action]
        for offset in offsets[: max(0, left)].tolist():
            self.add(kind, action, (partition, offset), detail, rejects=rejects)
        more = len(offsets) - max(0, min(left, len(offsets)))
        self.counts[kind] += more
        self.actions[action] += more

    def counted(self) -> dict[str, int]:
        """Return the counts of findings to store with the commit of the repair."""
        return {**{str(kind): n for kind, n in sorted(self.counts.items())}, **self._actions()}

    def _actions(self) -> dict[str, int]:
        names: tuple[Action, ...] = ("put in", "replace", "remove", "stays")
        return {name.replace(" ", "_"): self.actions[name] for name in names}
