"""Outputs that an agent yields for a batch, and the record batches made of them."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
import numpy as np

from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.rows import encode_rows, spans
from kafka_ratchet.transport.delivery import Delivery, Output

FORWARD: Final = object()
"""Output in place of a value: the record itself, byte for byte."""


encode_json: Final = msgspec.json.Encoder().encode


def output_value(output: Any) -> bytes | None:
    """Return an output as bytes to send: bytes unchanged, None as null, other values as JSON."""
    return output if output is None or type(output) is bytes else encode_json(output)


class Outputs:
    """Outputs of an agent for one batch, in the order of their yields."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        """Index of the record that gives each output its key and timestamp."""
        self.values: list[bytes | object | None] = []
        """Bytes of each output; None: a null; FORWARD: the record itself."""
        self.forwards = False
        """True if FORWARD may be among the values."""

    def __len__(self) -> int:
        return len(self.indices)

    def cut(self, length: int = 0) -> None:
        """Drop the outputs added after the first `length`."""
        del self.indices[length:], self.values[length:]

    def flush(self, delivery: Delivery) -> None:
        """Encode the outputs and add them to the delivery.

        Raises:
            RecordTooLarge: a record does not fit the output topic.
        """
        if not self.forwards:
            if self.indices:
                self._encode(delivery, 0, len(self))
            return
        first = 0
        while first < len(self):
            forwards = self.values[first] is FORWARD
            end = first + 1
            while end < len(self) and (self.values[end] is FORWARD) == forwards:
                if forwards and self.indices[end] <= self.indices[end - 1]:
                    break  # the same record once more: a mask has it once
                end += 1
            if forwards:
                keep = np.zeros(delivery.batch.count, np.bool_)
                keep[self.indices[first:end]] = True
                delivery.forward(keep)
            else:
                self._encode(delivery, first, end)
            first = end

    def _encode(self, delivery: Delivery, first: int, end: int) -> None:
        batch, spec = delivery.batch, delivery.spec
        rows = np.array(self.indices[first:end], np.int64)
        keys = batch.data, batch.columns[records.KEY, rows], batch.columns[records.KEY_LENGTH, rows]
        values = cast("list[bytes | None]", self.values[first:end])  # none is FORWARD here
        what = f"{spec.output}, partition {spec.partition}: yielded between offsets {batch.start} and {batch.next - 1}"
        for encoded in encode_rows(
            keys, spans(values), batch.timestamps[rows], spec.output_limit, what, delivery.compression
        ):
            delivery.outputs.append(Output(spec.output, spec.partition, encoded))
