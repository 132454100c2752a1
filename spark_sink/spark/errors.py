"""Conversion of Spark's failures to one error text, without stack traces of two languages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile

from kafka_ratchet.spark_sink.errors import SparkFailed

MAX_REASON = 500
"""Maximum number of characters of a reason; a message of the JVM may contain a whole plan."""


@contextmanager
def spark_errors_named(topic: str, start: Mapping[int, int], end: Mapping[int, int]) -> Iterator[None]:
    """Convert Spark's errors in the block to `SparkFailed`; Spark has already logged these errors in full."""
    try:
        yield
    except spark_errors() as error:
        raise SparkFailed(
            f"topic {topic}: Spark could not compute the rows of offsets {ranges(start, end)} ({reason_of(error)}). "
            "Earlier commits stay; correct the cause, then run again"
        ) from error


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the error classes of Spark, both Python's and Java's."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError
    except ImportError:  # pyspark-client has no side of Java
        return (PySparkException,)
    return PySparkException, Py4JError


def messages_of(error: Exception) -> Iterator[str]:
    """Yield the messages of a Spark error and of its causes in Java, each Java message after a full stop."""
    cause = getattr(error, "java_exception", None)
    while cause is not None:
        yield f".{cause.toString()}"
        cause = cause.getCause()
    yield str(error)


def reason_of(error: BaseException) -> str:
    """Return the line that names the failure: the exception's line of a Python traceback, else the first line."""
    # py4j's Py4JJavaError has this attribute; pyspark-client lacks py4j.
    text = str(getattr(error, "java_exception", error))
    lines = takewhile(lambda line: line.strip() and not line.startswith("\tat "), text.strip().splitlines())
    said = list(lines) or [type(error).__name__]
    is_traceback = any("Traceback" in line for line in said[:2])
    return said[_raised_at(said) if is_traceback else 0].strip()[:MAX_REASON]


def _raised_at(traceback: list[str]) -> int:
    """Return the index of the line with the exception; further lines of its message may follow."""
    frames = [at for at, line in enumerate(traceback) if line.startswith("  File")]
    following = range(frames[-1] + 1 if frames else 0, len(traceback))
    return next((at for at in following if not traceback[at].startswith("  ")), -1)


def ranges(start: Mapping[int, int], end: Mapping[int, int]) -> str:
    """Return the offset ranges of the partitions with new offsets, as text for messages."""
    return ", ".join(f"{p}: {start[p]}-{offset}" for p, offset in end.items() if offset != start[p])
