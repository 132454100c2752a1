"""User's librdkafka options that affect the batches of `BatchProducer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.producers.client import require_servers
from kafka_ratchet.producers.tls import Options
from kafka_ratchet.transport.batch.chunk import CODECS
from kafka_ratchet.transport.client.security import client_options

MESSAGE_MAX_BYTES: Final = 1_000_000
ROOM_KBYTES: Final = 64 * 1024
REQUEST_TIMEOUT_MS: Final = 30_000
LINGER_MS: Final = 5.0
"""Default of linger.ms in milliseconds, as in librdkafka. The queue's defaults are those of
`kafka_ratchet.producers.accumulator`."""

_SECURITY: Final = ("security.", "sasl.", "ssl.", "enable.ssl.", "client.id")
_NUMBERS: Final = ("message.max.bytes", "queue.buffering.max.kbytes", "request.timeout.ms", "linger.ms")
_COMPRESSION: Final = ("compression.type", "compression.codec")
_SETTLED: Final = (
    # Options that the guarantees need: the same in both producers, whatever the user gives.
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.timeout.ms",
    "delivery.timeout.ms",
    # How librdkafka makes batches out of single records.
    "batch.num.messages",
    "batch.size",
    "queue.buffering.max.messages",
    "sticky.partitioning.linger.ms",
    # Records are given their partition here.
    "partitioner",
    # Options of its log and statistics.
    "log_level",
    "statistics.interval.ms",
)


class ParsedOptions(NamedTuple):
    """Values of a user's librdkafka options, in the form that a `BatchProducer` takes."""

    client: dict[str, Any]
    """Options for aiokafka's clients."""
    compression: str
    message_max_bytes: int
    room_bytes: int
    request_timeout_ms: int
    linger_s: float


def understood(options: Options) -> ParsedOptions:
    """Check a user's librdkafka options and convert them for a `BatchProducer`.

    Raises:
        SettingsError: an option is unknown or invalid (the message names it), or the options have no bootstrap servers.
    """
    require_servers(options)
    for name in options:
        known = (*_NUMBERS, *_COMPRESSION, *_SETTLED, "bootstrap.servers")
        if name not in known and not name.startswith(_SECURITY):
            raise SettingsError(
                f"kafka.{name}: this option exists only in librdkafka, and batches do not pass through librdkafka. "
                "Remove the option, or publish without batches"
            )
    compression = next((str(options[name]).lower() for name in _COMPRESSION if name in options), "none")
    if compression not in CODECS:
        raise SettingsError(f"kafka.compression.type: unknown value. Write one of {', '.join(CODECS)}")
    return ParsedOptions(
        client=client_options(str(options["bootstrap.servers"]), options),
        compression=compression,
        message_max_bytes=int(_number(options, "message.max.bytes", MESSAGE_MAX_BYTES, 1000)),
        room_bytes=1024 * int(_number(options, "queue.buffering.max.kbytes", ROOM_KBYTES, 1)),
        request_timeout_ms=int(_number(options, "request.timeout.ms", REQUEST_TIMEOUT_MS, 1)),
        linger_s=_number(options, "linger.ms", LINGER_MS, 0) / 1000,
    )


def _number(options: Mapping[str, str | int | bool], name: str, otherwise: float, least: float) -> float:
    try:
        value = float(options.get(name, otherwise))
    except ValueError:
        value = -1
    if not least <= value < 2**31:
        raise SettingsError(f"kafka.{name}: must be a number of at least {least:g}. Correct or remove it")
    return value
