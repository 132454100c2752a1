"""Inference of columns in the executors: the fields of JSON objects and their types.

pyspark sends this module by value; executors need pyarrow and nothing of this package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Fields:
    """Fields of the JSON objects that one task has read, with their types.

    Args:
        illegal: pattern of characters that a column's name must not have.
        max_names: highest number of names to remember.
        max_name_bytes: length in bytes of the longest name that can be a column.
    """

    def __init__(self, illegal: str, max_names: int, max_name_bytes: int) -> None:
        self._illegal, self._max_names, self._max_name_bytes = re.compile(illegal), max_names, max_name_bytes
        self.types: dict[str, set[str]] = {}
        self.seen: dict[str, int] = {}
        self.left_out: dict[str, str] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Count the fields of one object."""
        for name, value in event.items():
            if name not in self.types:
                if len(self.types) + len(self.left_out) >= self._max_names:
                    continue
                if why := self._refusal(name):
                    self.left_out[ascii(name[: self._max_name_bytes])] = why
                    continue
                self.types[name], self.seen[name] = set(), 0
            self.types[name].update(_letter(value))
            self.seen[name] += 1

    def _refusal(self, name: str) -> str:
        """Return the reason why a name cannot be a column; "" if the name can."""
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            return "the name is no Unicode text"
        if not 0 < size <= self._max_name_bytes:
            return f"a name has 1 to {self._max_name_bytes} bytes"
        if self._illegal.search(name):
            return "a name may not have any of ' ,;{}()=', tab, newline"
        if not name.isprintable():
            return "the name has characters that cannot be seen"
        return ""


def sampling(
    illegal: str, max_objects: int, max_names: int, max_name_bytes: int
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a task that turns batches of values into rows of `infer.FOUND`.

    The values are in the first column of each batch.

    Args:
        illegal: see `Fields`.
        max_objects: number of objects to sample.
        max_names: see `Fields`.
        max_name_bytes: see `Fields`.
    """

    def sample(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        fields = Fields(illegal, max_names, max_name_bytes)
        values = objects = 0
        for batch in batches:
            if objects >= max_objects:
                continue  # Spark requires its batches to be consumed
            for value in batch.column(0).to_pylist():
                values += value is not None
                event = _object(value)
                if event is not None:
                    objects += 1
                    fields.add(event)
                if objects >= max_objects:
                    break
        rows: list[tuple[Any, ...]] = [
            (name, "", "".join(sorted(types)), fields.seen[name]) for name, types in fields.types.items()
        ]
        rows += [(name, why, "", 0) for name, why in fields.left_out.items()]
        rows.append((None, "", "", values))
        schema = pa.schema([("name", "string"), ("reason", "string"), ("types", "string"), ("seen", "int64")])
        columns = zip(zip(*rows, strict=True), schema.types, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(column, kind) for column, kind in columns], schema=schema)

    return sample


def _object(value: bytes | None) -> dict[str, Any] | None:
    """Parse a value as a JSON object; None if it is not an object."""
    try:
        found = json.loads(value.decode("utf-8"), parse_int=_number) if value else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(text: str) -> int | str:
    # Parsing a text of any length would take time that grows with its square.
    return int(text) if len(text) <= 20 else text


def _letter(value: object) -> str:
    """Return the letter that stands for a value's type; "" for null."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "b"
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return "i" if abs(value) <= 2**53 else "l"  # "l" would lose digits as a double
    return "f" if isinstance(value, float) else "s"
