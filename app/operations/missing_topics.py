"""Missing topics of a stream: their creation by `ratchet resume`, and the remedy in its errors."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from kafka_ratchet.app.names import changelog_name, is_repartition_topic
from kafka_ratchet.app.repartition import RepartitionSettings, arrivals_of
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker.ownership import names_of
from kafka_ratchet.app.worker.topics import prepare
from kafka_ratchet.producers import admin_client
from kafka_ratchet.topic_log.clients import partition_counts

NO_WORKER: Final = "Start no worker before: it would forward every record of the input"
"""End of a remedy for a stream that never ran."""
NOT_BY_HAND: Final = "Do not create it by hand"
"""Beginning of a remedy for an internal topic.

Made by hand, the topic would have the broker's retention, and lose records before the stream has judged them.
"""


def prepare_new(settings: Settings, bootstrap: str, name: str) -> None:
    """Create the topics of a stream that no worker has served yet, if its input exists.

    With `create_topics` off it creates the changelog, as a worker does, and refuses other missing topics. It does
    nothing if the stream repartitions its input.

    Raises:
        RatchetError: as in `prepare`.
    """
    stream = settings.streams[name]
    if stream.repartition_by:
        return
    found = partition_counts(admin_client({"bootstrap.servers": bootstrap, **settings.kafka}), names_of(settings, name))
    if stream.input in found and changelog_name(settings.app, name) not in found:
        prepare(bootstrap, settings, name, stream)


def remedy_for(
    topic: str, settings: Settings, name: str, found: Container[str], *, adopt: bool, without_changelog: str | None
) -> str:
    """Return the remedy for a missing topic of a stream.

    Args:
        topic: name of the missing topic.
        settings: settings with the stream.
        name: name of the stream.
        found: existing topics of the stream.
        adopt: whether the operator has given `--adopt`.
        without_changelog: remedy of another command for a stream without a changelog; None: of `ratchet resume`.
    """
    stream, changelog = settings.streams[name], changelog_name(settings.app, name)
    is_internal = is_repartition_topic(topic, settings.app)
    creates = settings.creates_topics(name) or isinstance(stream, RepartitionSettings)
    if changelog in found:
        by_worker = "start a worker once, which creates it and then halts until you decide"
        if is_internal:
            return f"{NOT_BY_HAND}, but {by_worker}"
        return f"Create it, or {by_worker}" if creates else f"Create it with as many partitions as {changelog} has"
    by_hand = ""
    if topic == stream.input and not is_internal:
        by_hand = "Create it with its final number of partitions. "
    if without_changelog is not None:
        return by_hand + without_changelog
    if is_internal and topic == stream.input:
        by_hand = f"{NOT_BY_HAND}. "
    elif topic not in (stream.input, changelog) and not creates:
        by_hand = "Create it with as many partitions as the input has, because create_topics is false. "
    made = "the topics" if creates else "the changelog"
    if stream.repartition_by:
        return by_hand + _remedy_behind_arrivals(name, made)
    if is_internal and topic == stream.input:
        return f"{by_hand}A worker with the program creates it"
    # A worker halts a stream with a changelog. Without one, it forwards every record of the input.
    how = f"`ratchet resume` with --from and --execute creates {made}"
    if adopt:
        how += " only without --adopt: run it so once. If it creates them and is then refused because another "
        how += "application has claimed the output, add --adopt again"
    return f"{by_hand}In a stream without a changelog, {how}. {NO_WORKER}"


def _remedy_behind_arrivals(name: str, made: str) -> str:
    """Return the remedy for a stream with `repartition_by` and without a changelog.

    made: topics of the stream that a worker creates
    """
    arrivals = arrivals_of(name)
    return (
        f"Stream {name} judges what {arrivals} sends it, so the first offset of the input is a decision about that "
        f"stream: `ratchet resume --stream {arrivals}` with --from and --execute creates its topics and the internal "
        f"topic, and a worker then creates {made} of {name}. `ratchet state import --stream {name}` creates the topics "
        f"of both streams. {NO_WORKER}"
    )
