"""Conversion of fresh records to a pyarrow RecordBatch, and of an agent's outputs to records.

The columns of the engine point into the fetched bytes, so a column is made by one copy of its bytes and without a
step of Python per record. Output is written in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.agents.event import event_ids, known_times
from kafka_ratchet.agents.kernels import count_headers, find_headers, write_headers
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.batch.rows import Spans, encode_rows
from kafka_ratchet.transport.delivery import Delivery, Output

try:
    import pyarrow as pa
except ModuleNotFoundError:  # pragma: no cover - the tests have it
    pa = None

Rows = NDArray[np.int64]

KEY, VALUE, TIMESTAMP, SEQUENCE, HEADERS, OFFSET = "key", "value", "timestamp", "sequence", "headers", "offset"
ID: Final = "id"
"""Column with the id of each record's event, as text.

A batch has this column only if the program asks for it by name: computing an id takes Python code for each record.
"""
COLUMNS: Final = (KEY, VALUE, TIMESTAMP, SEQUENCE, HEADERS, OFFSET)
"""Columns of a batch that an agent reads, if it names none.

In a yielded batch, the columns `sequence` and `offset` are ignored: its new records get both when they are written.
"""


class CurrentBatch:
    """Current batch of an agent's run, as a pyarrow RecordBatch.

    Attributes:
        arrow: batch passed to the program
    """

    def __init__(self, delivery: Delivery, rows: Rows, columns: Sequence[str]) -> None:
        """Make the batch's columns.

        Args:
            delivery: delivery with the records
            rows: int64[records], indexes of the records
            columns: names of columns, out of COLUMNS and ID
        """
        batch = delivery.batch
        self._delivery, self._rows = delivery, rows
        self.place = f"offsets {int(batch.offsets[rows[0]])} to {int(batch.offsets[rows[-1]])}"
        arrays = [_MAKE[name](delivery, rows) for name in columns]
        fields = [pa.field(name, array.type) for name, array in zip(columns, arrays, strict=True)]
        about = {"topic": batch.topic, "partition": str(batch.partition)}
        self.arrow = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata=about))

    @property
    def newest(self) -> int:
        """Return the index of the record with the latest timestamp.

        The outputs of the batch inherit this timestamp unless they have their own.
        """
        return int(self._rows[np.argmax(known_times(self._delivery.batch.timestamps[self._rows]))])

    def emit(self, output: Any) -> None:
        """Add one output that the program yields for this batch.

        Raises:
            TypeError: the output is neither a mask nor a table of records.
            RecordTooLarge: a record does not fit the output topic.
        """
        if output is self.arrow:
            self._forward(self._rows)
        elif isinstance(output, pa.RecordBatch):
            self._write(output)
        elif isinstance(output, pa.Table):
            for part in output.to_batches():
                self._write(part)
        else:
            self._forward(self._rows[self._mask(output)])

    def _mask(self, output: Any) -> NDArray[np.bool_]:
        if isinstance(output, pa.ChunkedArray):
            output = output.combine_chunks()
        if isinstance(output, pa.BooleanArray):
            if output.null_count:
                raise TypeError(f"yielded a mask with {output.null_count} nulls. Give true or false for each record")
            output = output.to_numpy(zero_copy_only=False)
        if not isinstance(output, np.ndarray) or output.dtype != np.bool_:
            raise TypeError(
                f"yielded {type(output).__name__} for a batch. Yield a boolean mask (numpy or pyarrow), or a "
                "pyarrow RecordBatch or Table with the columns key and value"
            )
        if output.shape != self._rows.shape:
            raise TypeError(
                f"yielded a mask of shape {output.shape} for a batch of {len(self._rows)} records. Give one value "
                "for each record"
            )
        return output

    def _forward(self, rows: Rows) -> None:
        keep = np.zeros(self._delivery.batch.count, np.bool_)
        keep[rows] = True
        self._delivery.forward(keep)

    def _write(self, output: Any) -> None:
        delivery, spec = self._delivery, self._delivery.spec
        count = output.num_rows
        names = output.schema.names
        unknown = sorted(set(names) - {*COLUMNS, ID})
        if unknown or len(set(names)) < len(names) or not {KEY, VALUE} <= set(names):
            raise TypeError(
                f"yielded columns {', '.join(names)}. New records need key and value, and may have timestamp and "
                "headers"
            )
        if not count:
            return
        keys, values = (spans_of(output.column(name), name) for name in (KEY, VALUE))
        headers = packed_headers(output.column(HEADERS)) if HEADERS in names else None
        if TIMESTAMP in names:
            times = _times(output.column(TIMESTAMP))
        else:
            times = np.full(count, delivery.batch.timestamps[self.newest], np.int64)
        what = f"{spec.output}, partition {spec.partition}: yielded for {self.place}"
        for encoded in encode_rows(keys, values, times, spec.output_limit, what, delivery.compression, headers):
            delivery.outputs.append(Output(spec.output, spec.partition, encoded))


def require_columns(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that a program asks for; None selects all except ids.

    Raises:
        SettingsError: pyarrow is missing, or a column is unknown.
    """
    if pa is None:
        raise SettingsError(
            "batches() returns pyarrow's RecordBatch, but pyarrow is missing: pip install pyarrow (it is in the "
            "extra spark)"
        )
    if unknown := [name for name in names or () if name not in _MAKE]:
        raise SettingsError(
            f"batches(columns=...): unknown column {', '.join(unknown)}; write some of {', '.join(_MAKE)}"
        )
    return COLUMNS if names is None else tuple(dict.fromkeys(names))


def _gather(data: NDArray[np.uint8], starts: Rows, lengths: Rows, floor: Rows) -> Any:
    """Return spans of a buffer as a binary array; a negative length is null.

    Arrow needs contiguous elements, so the bytes between two spans become an element too, and `take` drops it while
    copying. floor: int64[spans], ascending, the start to use for each null span.
    """
    is_null = lengths < 0
    ends = np.zeros(2 * len(starts) + 1, np.int32)  # a batch has 1 GiB at most (max_batch_mb)
    ends[:-1:2] = np.where(is_null, floor, starts)
    ends[1::2] = np.where(is_null, floor, starts + lengths)
    ends[-1] = ends[-2] if len(starts) else 0
    whole = pa.Array.from_buffers(pa.binary(), 2 * len(starts), [None, pa.py_buffer(ends), pa.py_buffer(data)])
    return whole.take(pa.array(np.arange(0, 2 * len(starts), 2), mask=is_null if is_null.any() else None))


def _column(first: int, length: int) -> Callable[[Delivery, Rows], Any]:
    def make(delivery: Delivery, rows: Rows) -> Any:
        columns = delivery.batch.columns
        return _gather(delivery.batch.data, columns[first, rows], columns[length, rows], columns[records.BODY, rows])

    return make


def _sequences(delivery: Delivery, rows: Rows) -> Any:
    if delivery.sequences is None:
        return pa.nulls(len(rows), pa.int64())
    return pa.array(delivery.sequences[rows])


def _headers(delivery: Delivery, rows: Rows) -> Any:
    """Return the headers of each record as a map, in their order; a name may occur several times."""
    batch: RecordBatch = delivery.batch
    begins, ends = batch.columns[records.HEADERS, rows], batch.columns[records.BODY_END, rows]
    offsets = np.zeros(len(rows) + 1, np.int32)
    count_headers(batch.data, begins, ends, offsets)
    names, values = np.empty((2, offsets[-1]), np.int64), np.empty((2, offsets[-1]), np.int64)
    find_headers(batch.data, begins, ends, names, values)
    keys = _gather(batch.data, names[0], names[1], names[0])
    try:
        keys = keys.cast(pa.string())
    except pa.ArrowInvalid:
        keys = pa.array([str(name, "utf-8", "replace") for name in keys.to_pylist()], pa.string())
    items = _gather(batch.data, values[0], values[1], values[0])
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items)


_MAKE: Final[dict[str, Callable[[Delivery, Rows], Any]]] = {
    KEY: _column(records.KEY, records.KEY_LENGTH),
    VALUE: _column(records.VALUE, records.VALUE_LENGTH),
    TIMESTAMP: lambda delivery, rows: pa.array(delivery.batch.timestamps[rows]),
    SEQUENCE: _sequences,
    HEADERS: _headers,
    OFFSET: lambda delivery, rows: pa.array(delivery.batch.offsets[rows]),
    ID: lambda delivery, rows: pa.array(event_ids(delivery, rows.tolist()), pa.string()),
}


def spans_of(array: Any, name: str) -> Spans:
    """Return the elements of a binary or text array as spans: data, starts and lengths.

    `encode_rows` takes such spans. A null has length -1.

    Raises:
        TypeError: the array has another type.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    wide = (pa.large_binary(), pa.large_string())
    if array.type not in (pa.binary(), pa.string(), *wide):
        try:
            array = array.cast(pa.large_binary())
        except pa.ArrowNotImplementedError:
            raise TypeError(f"yielded column {name} of type {array.type}. Convert it to binary or string") from None
    _, offsets, data = array.buffers()
    kind = np.int64 if array.type in wide else np.int32
    ends = np.frombuffer(offsets, kind)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(ends)
    if array.null_count:
        lengths[~_valid(array)] = -1
    found = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    found.flags.writeable = False  # the compiled pass knows one kind of array
    return found, ends[:-1], lengths


def _valid(array: Any) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _times(array: Any) -> Rows:
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms"), safe=False)
    elif not pa.types.is_integer(array.type):
        raise TypeError(
            f"yielded column timestamp of type {array.type}. Convert it to int64 (ms since the epoch) or a timestamp"
        )
    if array.null_count:
        raise TypeError(f"yielded column timestamp with {array.null_count} nulls. Give each record a timestamp")
    times: Rows = array.cast(pa.int64()).to_numpy().astype(np.int64)
    return times


def packed_headers(array: Any) -> Spans:
    """Return each row's headers as a span of bytes, encoded as in a record: count first.

    Raises:
        TypeError: the array is not a map, or a header has no name.
    """
    kind = array.type
    if not pa.types.is_map(kind):
        raise TypeError(f"yielded column headers of type {kind}. Convert it to map<string, binary>")
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    first, counts = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    if array.null_count:
        counts[~_valid(array)] = 0
    names, values = spans_of(array.keys, "headers"), spans_of(array.items, "headers")
    each = 10 + names[2] + np.maximum(values[2], 0)
    room = int(each.sum()) + 5 * len(array)
    out, starts, lengths = np.empty(room, np.uint8), np.empty(len(array), np.int64), np.empty(len(array), np.int64)
    write_headers(first, counts, *names, *values, out, starts, lengths)
    return out, starts, lengths
