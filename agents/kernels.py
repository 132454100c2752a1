"""The compiled pass that reads sequences out of a header."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kafka_ratchet.tables.reasons import (
    NONE,
    SEQUENCE_MISSING,
    SEQUENCE_NEGATIVE,
    SEQUENCE_NOT_A_NUMBER,
    SEQUENCE_OUT_OF_RANGE,
    SEQUENCE_REPEATED,
)
from kafka_ratchet.transport.batch import kernels as records

GUESS, TEXT, INTEGER = 0, 1, 2
"""Forms of a sequence in a header, see `kafka_ratchet.tables.identity.SequenceForm`."""

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]


@njit(**records.OPTIONS)
def read_sequences(data: U8, columns: I64, sequences: I64, reasons: U8, form: int) -> None:
    """Sequences from the header in columns FIRST: 8-byte big-endian, or decimal text.

    form is TEXT, INTEGER or GUESS: eight bytes that read as decimal text (digits, or a minus and digits) are text, any
    other eight bytes are an integer.
    Fills sequences int64[records] and reasons uint8[records].
    """
    for i in range(columns.shape[1]):
        sequences[i] = -1
        start, length = columns[records.FIRST, i], columns[records.FIRST_LENGTH, i]
        if columns[records.FIRST_TIMES, i] > 1:
            reasons[i] = SEQUENCE_REPEATED
            continue
        if length <= 0:
            reasons[i] = SEQUENCE_MISSING
            continue
        negative = data[start] == 45  # "-"
        text = form != INTEGER and not (negative and length == 1)
        if text:
            for q in range(start + (1 if negative else 0), start + length):
                if data[q] < 48 or data[q] > 57:
                    text = False
                    break
        if not text:
            if length != 8 or form == TEXT:
                reasons[i] = SEQUENCE_NOT_A_NUMBER
                continue
            raw = np.uint64(0)
            for q in range(start, start + 8):
                raw = (raw << np.uint64(8)) | np.uint64(data[q])
            number = np.int64(raw)
            if number < 0:
                reasons[i] = SEQUENCE_NEGATIVE
                continue
            sequences[i] = number
            reasons[i] = NONE
            continue
        total = np.uint64(0)
        over = False
        for q in range(start + (1 if negative else 0), start + length):
            digit = np.uint64(data[q] - 48)
            if total > (np.uint64(0x7FFFFFFFFFFFFFFF) - digit) // np.uint64(10):
                over = True
                break
            total = total * np.uint64(10) + digit
        if negative and (over or total > np.uint64(0)):
            reasons[i] = SEQUENCE_NEGATIVE
        elif over:
            reasons[i] = SEQUENCE_OUT_OF_RANGE
        else:
            sequences[i] = np.int64(total)
            reasons[i] = NONE
