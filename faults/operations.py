"""Operators' actions on running workers: each must lead to a lasting refusal, and to no lost or doubled event."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka.admin import NewTopic

from faults.count import Difference
from faults.environment import POLICY_REPLACED, RULE_CHANGED, Environment, Style, Worker
from faults.events import IDENTITIES, PARTITIONS
from faults.kafka import EmbeddedKafka
from kafka_ratchet.app.local.child_process import ChildProcess
from kafka_ratchet.app.names import policy_topic
from kafka_ratchet.app.worker.topics import COMPACTED
from kafka_ratchet.errors import FaultRunFailed
from kafka_ratchet.producers import made_topic

REFUSED = 2
"""Exit code of a command that refuses its task."""


def operations(folder: Path, seed: int, *, style: Style = Style.RECORDS) -> tuple[Difference, int, int]:
    """Recreate policies, edit a rule, rename an application, and move a partition back.

    Returns:
        errors of the output, events sent, number of refusals and halts
    """
    with (
        EmbeddedKafka(folder / "kafka", nodes=1, workers=1) as kafka,
        Environment(kafka, folder / "environment", workers=1, seed=seed, style=style) as environment,
    ):
        worker = environment.workers[0]
        worker.start()
        environment.wait_for_progress(environment.positions(), "the first commits")
        refused = _recreate_policies(environment, worker)
        refused += _edit_rule(environment, worker)
        refused += _rename_application(environment)
        for kind in IDENTITIES:  # while it runs; records read again are dropped
            environment.read_again[kind] += resume(environment, f"by-{kind}", "--partition", "0", "--from", "earliest")
        environment.wait_for_progress(environment.positions(), "progress after partitions were moved back")
        sent, difference, _ = environment.finish()
        return difference, len(sent), refused


def _recreate_policies(environment: Environment, worker: Worker) -> int:
    topic, admin = policy_topic(environment.app), environment.kafka.admin()
    worker.mark()
    admin.delete_topics([topic], operation_timeout=30)[topic].result(60)
    while not made_topic(admin, NewTopic(topic, 1, 1, config=COMPACTED), 60):
        pass  # the deletion is still under way
    environment.wait_for_halts(worker, dict.fromkeys(environment.inputs, POLICY_REPLACED))
    for kind in IDENTITIES:
        resume(environment, f"by-{kind}")
    environment.wait_for_progress(environment.positions(), "progress after the policies were taken as they are")
    return len(IDENTITIES) * PARTITIONS


def _edit_rule(environment: Environment, worker: Worker) -> int:
    worker.stop()
    text = environment.config.read_text("utf-8")
    environment.config.write_text(text.replace('identity = "key"', 'identity = "producer"'), "utf-8")
    worker.start()
    environment.wait_for(lambda: worker.has_logged("status_address"), "its address of today")
    environment.wait_for_halts(worker, {f"{environment.app}.key.in": f"{RULE_CHANGED} identity"})
    worker.stop()
    environment.config.write_text(text, "utf-8")
    worker.start()
    environment.wait_for_progress(environment.positions(), "progress after the rule was put back")
    return PARTITIONS


def _rename_application(environment: Environment) -> int:
    renamed = environment.folder / "renamed.toml"
    renamed.write_text(
        environment.config.read_text("utf-8").replace(f'app = "{environment.app}"', 'app = "renamed"'), "utf-8"
    )
    state = str(environment.folder / "renamed-state")
    command = ("worker", "-c", str(renamed), "--state-folder", state, *environment.style.options)
    code, said = _command(environment, "renamed", *command)
    if code != REFUSED or "is written by application" not in said:
        raise FaultRunFailed(f"a renamed application was not refused: {code}, {said[-2000:]}")
    return 1


def resume(environment: Environment, stream: str, *more: str) -> int:
    """Run `ratchet resume` for a stream.

    Returns:
        number of records that the stream's partitions read again

    Raises:
        FaultRunFailed: the command refuses.
    """
    arguments = ("--stream", stream, *more, "--reason", "a fault run", "--execute", "--json")
    code, said = _command(environment, "resume", "resume", "-c", str(environment.config), *arguments)
    if code:
        raise FaultRunFailed(
            f"ratchet resume {' '.join(arguments)} failed with exit code {code}; the end of its log: {said[-2000:]}"
        )
    answers = [line for line in said.splitlines() if line.startswith('{"stream"')]  # the log holds earlier ones too
    answer = json.loads(answers[-1])
    return sum(partition["again"] for partition in answer["partitions"])


def _command(environment: Environment, name: str, *arguments: str) -> tuple[int, str]:
    """Run a command to its end; return its exit code and its output."""
    process = ChildProcess(
        environment.folder, name, *arguments, environment={"RATCHET_BOOTSTRAP": environment.kafka.bootstrap}
    )
    code = process.wait()
    return code, process.log.read_text("utf-8", "replace")
